"""Configuration -> all stages in order, as one Prefect flow; the main path on one page."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

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

SHARD_SIZE = 200
"""Items per Prefect task."""

JOURNEY: tuple[Callable[[Context], Stage], ...] = (
    stages.sources,
    stages.reference,
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


class Ran(NamedTuple):
    """What a run of the journey came to."""

    reports: list[StageReport]
    report_path: Path


@task(cache_policy=NO_CACHE, task_run_name="{name} {shard}")
def shard_task(context: Context, name: str, shard: str, items: list[Item], stage: Stage, on_row: OnRow) -> StageReport:
    """One shard of a stage: Prefect shows it, the ledger remembers it."""
    return run_shard(context.lake, name, shard, items, stage.work, workers=stage.workers, on_row=on_row)


def run_stage_in_flow(context: Context, stage: Stage) -> StageReport:
    """Stage -> report, its shards run as Prefect tasks.

    Raises: InfrastructureError when items failed although they were retried; what is finished stays.
    """
    plan = plan_shards(stage.items, SHARD_SIZE)
    with progress(stage.name, len(stage.items)) as on_row:
        reports = [shard_task(context, stage.name, shard, items, stage, on_row) for shard, items in plan.items()]
    report = merge_reports(stage.name, reports)
    if report.num_failed:
        reason = max(report.reasons, key=lambda name: report.reasons[name])
        raise InfrastructureError(
            f"{report.num_failed} of {report.num_in} items of stage {stage.name} failed ({reason}): "
            "mend that and run the same command again, finished work is kept"
        )
    finish_stage(context.lake, stage.name, plan)
    return report


@flow(name="journey")
def journey(context: Context) -> Ran:
    """Every stage in order, then the report."""
    reports = []
    for make_stage in JOURNEY:
        with context.stage_resources():
            reports.append(run_stage_in_flow(context, make_stage(context)))
    return Ran(reports, stages.publish(context, reports))


def run_journey(config_path: Path, work: Path) -> int:
    """Configuration file and folder -> the journey run, its tables printed; exit code 0 when all claims hold."""
    config = load_toml(config_path, JourneyConfig)
    context = Context(config, work)
    ran = journey(context)
    claims = check_claims(context.lake, config)
    screen = console()
    screen.print(stage_table(ran.reports))
    screen.print(claims_table(claims))
    reused = sum(report.num_reused for report in ran.reports)
    total = sum(report.num_in for report in ran.reports)
    seconds = sum(report.seconds for report in ran.reports)
    screen.print(f"{total} items in {seconds:.0f} s; {reused} were already there and were skipped.")
    screen.print(f"Report: {ran.report_path}", soft_wrap=True)
    return 0 if all(claim.holds for claim in claims) else 1
