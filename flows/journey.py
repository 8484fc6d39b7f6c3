"""Configuration -> all stages in order, as one Prefect flow; the main path on one page."""

import time
from collections.abc import Callable
from pathlib import Path

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows import stages
from flows.claims import check_claims
from flows.config import JourneyConfig
from flows.context import Context
from flows.report import write_report
from flows.screen import claims_table, console, progress, stage_table
from flows.stages import Stage
from pipeline.config import load_toml
from pipeline.errors import InfrastructureError
from pipeline.store import Item, OnRow, StageReport, finish_stage, merge_reports, plan_shards, run_shard
from pipeline.types import Mix

SHARD_SIZE = 200
"""Items per Prefect task."""

JOURNEY: tuple[Callable[[Context], Stage], ...] = (
    stages.sources,
    stages.benchmark,
    stages.contamination,
    stages.images,
    stages.tasks,
    stages.reasoning,
    stages.oracle_rollouts,
    stages.model_rollouts,
    stages.verdicts,
    stages.tokenizer,
    stages.samples,
    stages.mix,
    stages.sft,
    stages.parity,
)
"""What happens, in this order."""


@task(cache_policy=NO_CACHE, task_run_name="{name} {shard}")
def shard_task(name: str, shard: str, items: list[Item], context: Context, stage: Stage, on_row: OnRow) -> StageReport:
    """One shard of a stage: Prefect shows it, the ledger remembers it."""
    return run_shard(context.lake, name, shard, items, stage.work, workers=stage.workers, on_row=on_row)


def run_stage_in_flow(context: Context, stage: Stage) -> StageReport:
    """Stage -> report, its shards run as Prefect tasks.

    Raises: InfrastructureError when items failed although they were retried; what is finished stays.
    """
    plan = plan_shards(stage.items, SHARD_SIZE)
    with progress(stage.name, len(stage.items)) as line:
        context.note = line.note
        reports = [shard_task(stage.name, shard, part, context, stage, line.on_row) for shard, part in plan.items()]
    report = merge_reports(stage.name, reports)
    if report.num_failed:
        reason = max(report.reasons, key=lambda name: report.reasons[name])
        raise InfrastructureError(
            f"{report.num_failed} of {report.num_in} items of stage {stage.name} failed ({reason}): "
            "mend that and run the same command again, finished work is kept"
        )
    finish_stage(context.lake, stage.name, plan)
    return report


@flow(name="journey", validate_parameters=False)
def journey(context: Context) -> list[StageReport]:
    """Every stage in order."""
    reports = []
    for make_stage in JOURNEY:
        with context.stage_resources():
            reports.append(run_stage_in_flow(context, make_stage(context)))
    return reports


def run_journey(config_path: Path, work: Path) -> int:
    """Configuration file and folder -> journey, report and tables on the screen; 0 if all claims hold."""
    started = time.monotonic()
    config = load_toml(config_path, JourneyConfig)
    context = Context(config, config_path.resolve().parent, work)
    reports = journey(context)
    (mix,) = context.lake.records(Mix)
    page = write_report(
        context.lake,
        context.work / "report" / "index.html",
        mix_id=mix.id,
        tokenizer_folder=context.tokenizer_folder,
        stages=reports,
        title="From repositories to a served checkpoint",
    )
    planted = {source.renamed_to for source in config.sources if source.is_planted}
    claims = check_claims(context.lake, min_swe_tasks=config.min_swe_tasks, planted=planted)
    screen = console()
    screen.print(stage_table(reports))
    screen.print(claims_table(claims))
    reused = sum(report.num_reused for report in reports)
    total = sum(report.num_in for report in reports)
    seconds = time.monotonic() - started
    screen.print(f"{total} items in {seconds:.0f} s; {reused} were already there and were skipped.")
    screen.print(f"Report: {page}", soft_wrap=True)
    return 0 if all(claim.holds for claim in claims) else 1
