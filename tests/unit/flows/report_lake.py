"""Folder -> a small lake with every record of the journey, written by the program's own stages."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.render import render, texts_of
from pipeline.store import Item, Lake, Outcome, StageReport, run_stage
from pipeline.tokenizer import ChatTokenizer, TokenizerConfig, load_tokenizer, train_tokenizer
from pipeline.types import (
    Checkpoint,
    Contamination,
    Message,
    Parity,
    Repo,
    RepoImage,
    Sample,
    Statement,
    Task,
    Teacher,
    ToolCall,
    Trajectory,
    Verdict,
    with_id,
)
from tests.unit.builders import model_call, result, source, task, trajectory

HOSTILE = '</pre><script>alert("x")</script><img src=x onerror=alert(1)>'
BASH = {
    "type": "function",
    "function": {"name": "bash", "description": "Run a command.", "parameters": {"type": "object"}},
}
PATCH = "--- a/demo.py\n+++ b/demo.py\n@@ -1,2 +1,2 @@\n def limit(x):\n-    return x < 1\n+    return x <= 1\n"
ARCHIVE_SHA256 = "5b" * 32
LOSSES = [7.25, 6.5, 5.75, 5.125, 4.5, 4.0, 3.625, 3.375]


class Made(NamedTuple):
    """A finished journey."""

    lake: Lake
    stages: list[StageReport]
    tokenizer_folder: Path
    repos: list[Repo]
    tasks: list[Task]
    trajectories: list[Trajectory]
    samples: list[Sample]


def stage(lake: Lake, name: str, records: Iterable[Any], rejected: dict[str, int] | None = None) -> StageReport:
    """Records, and reasons with counts of what was rejected -> a stage that made them."""
    items = [Item(f"{name}-{place}", "v1", (record,)) for place, record in enumerate(records)]
    for reason, number in (rejected or {}).items():
        items += [Item(f"{name}-{reason}-{place}", "v1", reason) for place in range(number)]

    def work(payload: Any) -> Outcome:
        return Outcome("rejected", payload) if isinstance(payload, str) else Outcome("ok", records=payload)

    return run_stage(lake, name, items, work)


def repo(name: str, version: str = "1.0", **overrides: Any) -> Repo:
    fields: dict[str, Any] = {
        "source": source(name=name, version=version, sha256=ARCHIVE_SHA256),
        "name": name,
        "tree": "",
        "num_files": 7,
        "num_bytes": 4096,
        "python_requires": [],
        "test_command": [],
    }
    return with_id(Repo(**(fields | overrides)))


def finding(of: Repo, **overrides: Any) -> Contamination:
    fields: dict[str, Any] = {
        "repo_id": of.id,
        "is_contaminated": False,
        "rule": "none",
        "benchmark": "",
        "benchmark_repo": "",
        "matched_files": [],
        "matched_share": 0.0,
        "reason": "no name and no file matches",
        "reference_id": "ef" * 32,
    }
    return with_id(Contamination(**(fields | overrides)))


def repo_task(of: Repo, image: RepoImage, evidence: Contamination, number: int, statement: str) -> Task:
    return task(
        source=of.source,
        repo=of.name,
        repo_id=of.id,
        image_id=image.id,
        contamination_id=evidence.id,
        seed=number,
        gold_patch=PATCH,
        pass_to_pass=["tests/test_a.py::test_b"],
        statement=Statement(text=statement, origin="failing_tests"),
    )


def solved(of: Task, seed: int, output: str = "2 failed") -> Trajectory:
    """The oracle reads, mends and submits."""
    look = ToolCall(id="a", name="bash", arguments='{"command": "pytest -q"}')
    submit = ToolCall(id="b", name="bash", arguments='{"command": "submit"}')
    messages = [
        Message(role="system", content="You repair programs."),
        Message(role="user", content=of.statement.text),
        Message(role="assistant", content="", reasoning="I run the tests first.", tool_calls=[look]),
        Message(role="tool", content=output, tool_call_id="a"),
        Message(role="assistant", content="", reasoning="The bound is off by one.", tool_calls=[submit]),
    ]
    return trajectory(
        task_id=of.id, seed=seed, tools=[BASH], messages=messages, calls=[model_call(num_messages=2)], patch=PATCH
    )


def answered(of: Task, seed: int) -> Trajectory:
    """Plain text, no tools."""
    messages = [
        Message(role="user", content=of.statement.text),
        Message(role="assistant", content=f"The answer is {of.answer}, since {seed} follows from the rule."),
    ]
    return trajectory(task_id=of.id, seed=seed, messages=messages, calls=[model_call(num_messages=1)])


def failed(of: Task, seed: int) -> Trajectory:
    """A small model calls a tool that does not exist."""
    wrong = ToolCall(id="z", name="fly", arguments="{}")
    messages = [
        Message(role="user", content=of.statement.text),
        Message(role="assistant", content=f"try {seed} {HOSTILE}", tool_calls=[wrong]),
    ]
    return trajectory(
        task_id=of.id,
        seed=seed,
        tools=[BASH],
        teacher=Teacher(name="vllm", model="small-model", weights_hash="77", sampling={}),
        messages=messages,
        calls=[model_call(num_messages=1)],
        exit_status="step_limit",
        native_exit="LimitsExceeded",
        result=result(reward=0.0, fail_to_pass={"tests/test_a.py::test_a": "failed"}, reason="1 test still fails"),
    )


def verdict(of: Trajectory, **overrides: Any) -> Verdict:
    fields: dict[str, Any] = {
        "trajectory_id": of.id,
        "filter": "",
        "filter_version": 1,
        "action": "keep",
        "reason": "",
        "message": -1,
        "span": [],
        "evidence": "",
    }
    return with_id(Verdict(**(fields | overrides)))


def judged(of: Trajectory) -> list[Verdict]:
    """The verdicts that fit how the trajectory was built."""
    if of.teacher.name == "oracle":
        return [verdict(of)]
    return [
        verdict(
            of, filter="invalid_tool_call", action="drop", reason="unknown_tool", message=1, evidence=f"fly {HOSTILE}"
        ),
        verdict(of, filter="unresolved", action="drop", reason="unresolved", evidence="1 test still fails"),
    ]


def make_until_samples(root: Path, statement: str = "limit(1) must be true.", output: str = "2 failed") -> Made:
    """Repositories to samples, and the tokenizer that rendered them."""
    lake = Lake(root / "lake")
    good, planted = repo("alpha", previous_version="0.9"), repo("planted-copy")
    clean = finding(good)
    caught = finding(
        planted,
        is_contaminated=True,
        rule="content",
        benchmark="swe-bench",
        benchmark_repo="psf/requests",
        matched_files=["planted/api.py ~ requests/api.py: 0.98", "planted/auth.py ~ requests/auth.py: 1.00"],
        matched_share=0.91,
        reason="91% of its files match psf/requests",
    )
    image = with_id(
        RepoImage(
            repo_id=good.id,
            ref="treadle/alpha",
            digest="sha256:01",
            recipe_hash="02",
            wheelhouse_hash="03",
            size_bytes=9,
        )
    )
    swe = [repo_task(good, image, clean, number, statement) for number in range(3)]
    sums = [
        task(
            kind="single_turn",
            domain="reasoning",
            strategy="reasoning",
            repo="sums",
            seed=number,
            answer=number,
            statement=Statement(text=f"What is {number} + 0?", origin="generator"),
        )
        for number in range(6)
    ]
    oracle = [solved(of, number, output) for number, of in enumerate(swe)]
    oracle += [answered(of, number) for number, of in enumerate(sums)]
    model = [failed(of, number) for number, of in enumerate(swe)]
    every_task = {of.id: of for of in [*swe, *sums]}
    folder = root / "tokenizer"
    train_tokenizer((text for one in oracle for text in texts_of(one)), folder, TokenizerConfig(vocab_size=400))
    tokenizer: ChatTokenizer = load_tokenizer(folder)
    samples = [render(one, every_task[one.task_id], tokenizer) for one in oracle]
    stages = [
        stage(lake, "sources", [good, planted]),
        stage(lake, "contamination", [clean, caught]),
        stage(lake, "images", [image]),
        stage(lake, "tasks", [*swe, *sums], {"no_test_fails": 4, "does_not_parse": 1}),
        stage(lake, "rollouts", [*oracle, *model]),
        stage(lake, "verdicts", [one for run in [*oracle, *model] for one in judged(run)]),
        stage(lake, "samples", samples),
    ]
    return Made(lake, stages, folder, [good, planted], [*swe, *sums], [*oracle, *model], samples)


def train(lake: Lake, mix_id: str, samples: list[Sample]) -> list[StageReport]:
    """A checkpoint trained on the mix, and its proof of parity."""
    checkpoint = with_id(
        Checkpoint(
            mix_id=mix_id,
            tokenizer_id=samples[0].tokenizer_id,
            parent="",
            path="checkpoints/1",
            weights_hash="aa",
            num_parameters=1_234_567,
            num_steps=len(LOSSES),
            num_trainable_tokens=54_321,
            losses=LOSSES,
            seconds=12.5,
        )
    )
    parity = with_id(
        Parity(
            checkpoint_id=checkpoint.id,
            num_tokens=64,
            max_difference=2.5e-5,
            mean_difference=1e-6,
            tolerance=1e-4,
            is_equal=True,
            completion=f"I ran the tests. {HOSTILE}",
        )
    )
    return [stage(lake, "sft", [checkpoint]), stage(lake, "parity", [parity])]
