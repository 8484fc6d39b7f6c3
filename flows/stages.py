"""One function a stage: Context -> items and the work on one item. Heavy parts open when the first item needs them.

A stage's version is part of its items' input hashes: raise it when the same inputs would give other results.
"""

import contextlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

from filters import FILTERS, apply, is_dropped
from flows.context import Context
from mixes.intent import MixIntent, override, read_intent
from mixes.solve import solve_and_lock
from pipeline.containers.wheelhouse import UnbuildableError
from pipeline.decontaminate import build_reference, check_repo, load_names, load_reference
from pipeline.render import render, texts_of
from pipeline.rollout import rollout
from pipeline.sources import fetch, pair_releases
from pipeline.store import Item, Lake, Outcome, Work
from pipeline.tasks import ReferenceRuns, deduplicate, make_reasoning_task, propose, validate
from pipeline.teachers.registry import TeacherHandle
from pipeline.tokenizer import load_tokenizer, train_tokenizer
from pipeline.trees import unpack_tree
from pipeline.types import (
    Benchmark,
    Checkpoint,
    Contamination,
    Mix,
    Repo,
    RepoImage,
    Sample,
    Task,
    Trajectory,
    Verdict,
    content_id,
)
from trainer.parity import check_parity
from trainer.sft import train

VERSIONS = {
    "sources": 1,
    "benchmark": 1,
    "contamination": 1,
    "images": 1,
    "tasks": 1,
    "reasoning": 1,
    "oracle_rollouts": 1,
    "model_rollouts": 1,
    "verdicts": 1,
    "tokenizer": 1,
    "samples": 1,
    "mix": 1,
    "sft": 1,
    "parity": 1,
}
HARNESS = {"swe": "mini_swe_agent", "single_turn": "completion"}
"""Kind of task -> harness that works on it."""
NOTE_EVERY_STEPS = 5
PARITY_PROMPT = (
    "A test of this package fails. The function that is called takes a string and returns another one; the result "
    "differs from what the test expects in a single character. Look at the function, find the comparison that was "
    "changed, and put it right. Then run a short check, look at the difference, and submit your work. Change nothing "
    "that is not needed, and leave the tests as they are. Numbers to keep in mind: 3, 14, 159, 2653, 58979. "
) * 4
"""Longer than several sliding windows, whatever the tokenizer; what is left over is cut off."""


class Stage(NamedTuple):
    """What is to be done, item by item."""

    name: str
    items: list[Item]
    work: Work
    workers: int = 1


def item(stage: str, name: str, payload: Any, *inputs: Any) -> Item:
    """Stage, item's name, payload and everything else its result depends on -> item."""
    return Item(name, content_id([stage, VERSIONS[stage], list(inputs)]), payload)


def sources(context: Context) -> Stage:
    """Configured sources -> Repo records."""
    items = [
        item("sources", f"{source.renamed_to or source.name} {source.version}", source, asdict(source))
        for source in context.config.sources
    ]
    return Stage("sources", items, lambda source: fetch(context.lake, source, context.downloads), 2)


def benchmark(context: Context) -> Stage:
    """Configured references -> one index of hashes."""
    references = context.config.references

    def work(_: None) -> Outcome:
        repos = [record for source in references for record in fetch(context.lake, source, context.downloads).records]
        index = build_reference(context.lake, repos, load_names())
        return Outcome("ok", records=(Benchmark(id=index.id, sources=[repo.source for repo in repos]),))

    inputs = [asdict(source) for source in references]
    return Stage("benchmark", [item("benchmark", "benchmark", None, inputs)], work)


def contamination(context: Context) -> Stage:
    """Repos -> what each has in common with the benchmarks."""
    (known,) = context.lake.records(Benchmark)
    names = load_names()
    config = context.config.decontamination

    def work(repo: Repo) -> Outcome:
        reference = context.open("reference", lambda: contextlib.nullcontext(load_reference(context.lake, known.id)))
        tree = unpack_tree(context.lake.get_blob(repo.tree))
        return Outcome("ok", records=(check_repo(repo, tree, reference, names, config),))

    items = [
        item("contamination", f"{repo.name} {repo.source.version}", repo, repo.id, known.id, asdict(config))
        for repo in context.lake.records(Repo)
    ]
    return Stage("contamination", items, work)


def clean_pairs(lake: Lake) -> list[tuple[Repo, Repo | None, Contamination]]:
    """Lake -> repositories fit for tasks, each with its previous release and the evidence that it is clean."""
    evidence = {record.repo_id: record for record in lake.records(Contamination)}
    pairs = pair_releases(lake.records(Repo))
    return [(repo, previous, evidence[repo.id]) for repo, previous in pairs if not evidence[repo.id].is_contaminated]


def images(context: Context) -> Stage:
    """Clean repos -> container images."""
    config = context.config

    def work(repo: Repo) -> Outcome:
        try:
            return Outcome("ok", records=(context.build_image(repo),))
        except UnbuildableError as error:
            return Outcome("rejected", error.reason)

    items = [
        item("images", f"{repo.name} {repo.source.version}", repo, repo.id, asdict(config.base_image))
        for repo, _, _ in clean_pairs(context.lake)
    ]
    return Stage("images", items, work, config.container_workers)


def tasks(context: Context) -> Stage:
    """Candidates of all clean repos -> valid tasks."""
    lake, config = context.lake, context.config
    image_of = {image.repo_id: image for image in lake.records(RepoImage)}
    reference_runs = ReferenceRuns()
    limits = config.rollout.sandbox

    def work(payload: Any) -> Outcome:
        candidate, repo, evidence = payload
        image = image_of[repo.id]
        context.ensure_image(repo, image)
        return validate(
            lake,
            context.docker(),
            candidate,
            repo,
            image,
            evidence,
            config.tasks,
            config.verifier,
            limits,
            reference_runs,
        )

    items = [
        item(
            "tasks",
            f"{repo.name} {candidate.id[:12]}",
            (candidate, repo, evidence),
            candidate.id,
            image_of[repo.id].recipe_hash,
            evidence.id,
            asdict(config.tasks),
            asdict(config.verifier),
            asdict(limits),
        )
        for repo, previous, evidence in clean_pairs(lake)
        if repo.id in image_of
        for candidate in propose(lake, repo, previous, config.tasks)
    ]
    return Stage("tasks", items, work, config.container_workers)


def reasoning(context: Context) -> Stage:
    """Seeds -> generated tasks with exact answers."""
    config = context.config
    seeds = range(config.seed, config.seed + config.num_reasoning_tasks)

    def work(seed: int) -> Outcome:
        return Outcome("ok", records=(make_reasoning_task(context.lake, seed, config.tasks),))

    items = [item("reasoning", f"reasoning {seed}", seed, seed, asdict(config.tasks)) for seed in seeds]
    return Stage("reasoning", items, work)


def oracle_rollouts(context: Context) -> Stage:
    """Every task for fine-tuning -> the oracle's trajectory of it."""
    chosen = training_tasks(context.lake)
    return rollouts(
        context, "oracle_rollouts", chosen, lambda: context.oracle(chosen), context.config.container_workers, []
    )


def model_rollouts(context: Context) -> Stage:
    """Some tasks for fine-tuning -> the served model's trajectories of them."""
    config = context.config.teacher
    limits = {"swe": config.max_swe_tasks, "single_turn": config.max_single_turn_tasks}
    chosen: list[Task] = []
    for task in training_tasks(context.lake):
        if limits[task.kind] > 0:
            limits[task.kind] -= 1
            chosen.append(task)
    inputs = [config.package, asdict(config.server)]
    return rollouts(context, "model_rollouts", chosen, context.model_teacher, config.workers, inputs)


def training_tasks(lake: Lake) -> list[Task]:
    """Lake -> valid tasks of the fine-tuning split without duplicates, in the order of their ids: of no meaning."""
    ready = sorted(lake.records(Task), key=lambda task: task.id)
    return deduplicate(task for task in ready if task.split == "sft" and task.status == "valid").kept


def rollouts(
    context: Context,
    stage: str,
    chosen: list[Task],
    teacher: Callable[[], TeacherHandle],
    workers: int,
    inputs: list[Any],
) -> Stage:
    """Tasks and a teacher that opens on first use -> one trajectory each."""
    lake, config = context.lake, context.config
    image_of = {image.id: image for image in lake.records(RepoImage)}
    repo_of = {repo.id: repo for repo in lake.records(Repo)}

    def work(task: Task) -> Outcome:
        client, image = None, image_of.get(task.image_id)
        if image is not None:
            client = context.docker()
            context.ensure_image(repo_of[task.repo_id], image)
        run = rollout(
            lake,
            client,
            task,
            image,
            HARNESS[task.kind],
            teacher(),
            context.gateway(),
            config.seed,
            config.rollout,
        )
        return Outcome("ok", records=(run,))

    items = [
        item(stage, task.id, task, task.id, HARNESS[task.kind], config.seed, asdict(config.rollout), inputs)
        for task in chosen
    ]
    return Stage(stage, items, work, workers)


def verdicts(context: Context) -> Stage:
    """Trajectories -> what every filter says; a dropped one is rejected here, with its reasons."""
    config = context.config.filters
    versions = {name: entry.version for name, entry in FILTERS.items()}

    def work(trajectory: Trajectory) -> Outcome:
        found = tuple(apply(trajectory, config))
        if not is_dropped(found):
            return Outcome("ok", records=found)
        drops = sorted({verdict.reason for verdict in found if verdict.action == "drop"})
        return Outcome("rejected", " and ".join(drops), found)

    items = [
        item("verdicts", trajectory.id, trajectory, trajectory.id, asdict(config), versions)
        for trajectory in context.lake.records(Trajectory)
    ]
    return Stage("verdicts", items, work)


def kept_trajectories(lake: Lake) -> list[tuple[Trajectory, list[Verdict]]]:
    """Lake -> trajectories without a drop verdict, each with its verdicts, in the order of their ids."""
    found: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in lake.records(Verdict):
        found[verdict.trajectory_id].append(verdict)
    kept = [(run, found[run.id]) for run in lake.records(Trajectory) if not is_dropped(found[run.id])]
    return sorted(kept, key=lambda pair: pair[0].id)


def tokenizer(context: Context) -> Stage:
    """Kept trajectories -> the student's tokenizer, trained on their text."""
    runs = [run for run, _ in kept_trajectories(context.lake)]
    config = context.config.tokenizer

    def work(_: None) -> Outcome:
        train_tokenizer((text for run in runs for text in texts_of(run)), context.tokenizer_folder, config)
        return Outcome("ok")

    inputs = [[run.id for run in runs], asdict(config)]
    made = Stage("tokenizer", [item("tokenizer", "tokenizer", None, *inputs)], work)
    # A folder that somebody removed is made again, and is the same: equal texts give an equal tokenizer.
    context.tokenizer_folder = context.models / f"tokenizer-{made.items[0].input_hash[:12]}"
    if "tokenizer" in context.lake.stages() and not (context.tokenizer_folder / "tokenizer.json").exists():
        work(None)
    return made


def samples(context: Context) -> Stage:
    """Kept trajectories -> samples for this student."""
    lake = context.lake
    student = load_tokenizer(context.tokenizer_folder)
    task_of = {task.id: task for task in lake.records(Task)}

    def work(payload: tuple[Trajectory, list[Verdict]]) -> Outcome:
        trajectory, found = payload
        return Outcome("ok", records=(render(trajectory, task_of[trajectory.task_id], student, found),))

    items = [
        item("samples", run.id, (run, found), run.id, student.id, sorted(verdict.id for verdict in found))
        for run, found in kept_trajectories(lake)
    ]
    return Stage("samples", items, work)


def mix_intent(context: Context) -> MixIntent:
    """Context -> the configured intent, its budget and context scaled to the data at hand."""
    config = context.config.mix
    intent = read_intent(context.config_folder / config.intent)
    return override(intent, budget="largest", context=config.context_tokens)


def mix(context: Context) -> Stage:
    """Samples -> one locked mix."""
    lake, config = context.lake, context.config
    intent = mix_intent(context)
    pool = sorted(sample.id for sample in lake.records(Sample))

    def work(_: None) -> Outcome:
        return Outcome("ok", records=(solve_and_lock(lake, intent, config.filters).record(),))

    return Stage("mix", [item("mix", intent.name, None, pool, asdict(intent), asdict(config.filters))], work)


def sft(context: Context) -> Stage:
    """Locked mix -> trained checkpoint."""
    lake, config = context.lake, context.config
    (locked,) = lake.records(Mix)

    def on_step(step: int, num_steps: int, loss: float, tokens_per_sec: float) -> None:
        if step % NOTE_EVERY_STEPS == 0 or step == num_steps:
            context.note(f"step {step} of {num_steps}, loss {loss:.2f}, {tokens_per_sec:,.0f} tokens/s")

    def work(_: None) -> Outcome:
        checkpoint = train(lake, locked.id, config.sft, config.model, context.tokenizer_folder, on_step)
        return Outcome("ok", records=(checkpoint,))

    inputs = [locked.id, asdict(config.sft), asdict(config.model)]
    return Stage("sft", [item("sft", locked.name, None, *inputs)], work)


def parity(context: Context) -> Stage:
    """Checkpoint -> proof that vLLM answers with the learner's log-probs."""
    lake, config = context.lake, context.config
    (checkpoint,) = lake.records(Checkpoint)

    def work(_: None) -> Outcome:
        proof = check_parity(lake, checkpoint, config.parity_server, [PARITY_PROMPT])
        status = "ok" if proof.is_equal else "rejected"
        return Outcome(status, "" if proof.is_equal else "log_probs_differ", (proof,))

    inputs = [checkpoint.id, asdict(config.parity_server), PARITY_PROMPT]
    return Stage("parity", [item("parity", checkpoint.id, None, *inputs)], work)
