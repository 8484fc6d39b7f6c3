"""Candidate -> tests before and after in the sandbox -> Task, or the reason why it is none.

before: the broken tree, once                    failing here and passing after: FAIL_TO_PASS
after:  the solved tree, several times           passing in all runs, before too: PASS_TO_PASS
"""

import hashlib
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pipeline.containers.sandbox import SandboxLimits
from pipeline.decontaminate import matched_paths
from pipeline.store import Lake, Outcome
from pipeline.tasks.candidates import Candidate, solved_tree
from pipeline.tasks.completions import function_code, state_completion
from pipeline.tasks.config import TaskConfig
from pipeline.tasks.paths import source_files
from pipeline.tasks.splits import split_of
from pipeline.tasks.statements import Report, find_leaks, state_failure
from pipeline.trees import Tree, apply_diff, diff_trees, is_test_path, pack_tree
from pipeline.types import Contamination, Repo, RepoImage, Task, with_id
from pipeline.verify import TestRun, VerifierConfig, run_tests

FAILING = ("failed", "error")
Key = tuple[str, str, tuple[str, ...], int]
"""Image, tree hash, test command, number of runs."""


class Finding(NamedTuple):
    """What the runs before and after say about a candidate."""

    reason: str
    """Empty when it is a valid task, else why not."""
    fail_to_pass: list[str]
    pass_to_pass: list[str]
    flake: dict[str, list[int]]
    """Test -> [runs, fails], only tests that failed in some run of the solved tree."""


class ReferenceRuns:
    """Runs of solved trees, each made once and shared by all candidates and threads that need it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[Key, threading.Lock] = {}
        self._runs: dict[Key, list[TestRun]] = {}

    def get(self, key: Key, make: Callable[[], list[TestRun]]) -> list[TestRun]:
        """Key -> its runs; the first caller makes them, others wait. A failure to make them is not kept."""
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._runs:
                self._runs[key] = make()
            return self._runs[key]


class Job(NamedTuple):
    """One candidate and everything its task refers to."""

    candidate: Candidate
    repo: Repo
    image: RepoImage
    contamination: Contamination
    config: TaskConfig
    verifier: VerifierConfig


class Trees(NamedTuple):
    """The versions of the files that one task needs."""

    broken: Tree
    """With all tests."""
    solved: Tree
    """Broken tree with the gold patch, all tests with it."""
    gold_patch: str


def validate(
    lake: Lake,
    client: Any,
    candidate: Candidate,
    repo: Repo,
    image: RepoImage,
    contamination: Contamination,
    config: TaskConfig,
    verifier: VerifierConfig,
    limits: SandboxLimits,
    reference_runs: ReferenceRuns,
) -> Outcome:
    """Candidate -> ok with its Task, or rejected with a stable reason.

    Raises: InfrastructureError when the sandbox fails; the candidate is then tried again.
    """
    if contamination.is_contaminated:
        return Outcome("rejected", "contaminated_repository")
    trees = make_trees(solved_tree(lake, repo), candidate)
    if not trees.gold_patch:
        return Outcome("rejected", "no_source_change")
    if matched_paths(contamination) & changed_paths(trees):
        return Outcome("rejected", "touches_benchmark_file")

    def run(tree: Tree, seed: int) -> TestRun:
        timeout_sec = verifier.timeout_sec
        return run_tests(client, image.ref, tree, repo.test_command, limits=limits, timeout_sec=timeout_sec, seed=seed)

    tree_hash = hashlib.sha256(pack_tree(trees.solved)).hexdigest()
    key = (image.digest or image.ref, tree_hash, tuple(repo.test_command), verifier.after_runs)
    after = reference_runs.get(key, lambda: [run(trees.solved, seed) for seed in range(verifier.after_runs)])
    if problem := reference_problem(after):
        return Outcome("rejected", problem)
    before = run(trees.broken, 0)
    finding = judge(before, after, candidate.strategy, config)
    if finding.reason:
        return Outcome("rejected", finding.reason)
    job = Job(candidate, repo, image, contamination, config, verifier)
    report = _state(job, trees, before, finding)
    # A completion's statement is made of the broken tree alone: what it shows is no secret.
    if candidate.strategy != "function_completion" and find_leaks(
        f"{report.statement.text}\n{report.interface}", trees.gold_patch
    ):
        return Outcome("rejected", "leak")
    return Outcome("ok", records=(_make_task(lake, job, trees, finding, report),))


def make_trees(solved: Tree, candidate: Candidate) -> Trees:
    """Solved tree and candidate -> broken tree, gold patch (package code only) and the tree that the patch leads to."""
    broken = apply_diff(solved, candidate.bug_patch)
    gold_patch = diff_trees(source_files(broken), source_files(solved))
    return Trees(broken, apply_diff(broken, gold_patch), gold_patch)


def changed_paths(trees: Trees) -> set[str]:
    """Trees -> paths that the gold patch touches."""
    paths = trees.broken.keys() | trees.solved.keys()
    return {path for path in paths if trees.broken.get(path) != trees.solved.get(path)}


def reference_problem(runs: list[TestRun]) -> str:
    """Runs of the solved tree -> why nothing can be judged by them, or empty."""
    if any(run.is_timeout for run in runs):
        return "reference_timed_out"
    if any(run.is_forged for run in runs):
        return "reference_forged"
    is_empty = not any("passed" in run.outcomes.values() for run in runs)
    return "reference_failed" if is_empty else ""


def judge(before: TestRun, after: list[TestRun], strategy: str, config: TaskConfig) -> Finding:
    """Runs -> tests to mend, tests to keep, flaky tests; or the reason why the candidate is no task."""
    fails: dict[str, int] = {}
    for test in {test for run in after for test in run.outcomes}:
        fails[test] = sum(run.outcomes.get(test, "absent") not in ("passed", "skipped") for run in after)
    flake = {test: [len(after), count] for test, count in sorted(fails.items()) if 0 < count < len(after)}
    stable = sorted(test for test in fails if all(run.outcomes.get(test) == "passed" for run in after))
    absent = [test for test in stable if test not in before.outcomes]
    fail_to_pass = [test for test in stable if before.outcomes.get(test) in FAILING]
    if strategy == "release_pair":
        fail_to_pass = sorted([*fail_to_pass, *absent])
    pass_to_pass = [test for test in stable if before.outcomes.get(test) == "passed"]
    reason = _rejection(before, absent, fail_to_pass, pass_to_pass, strategy)
    is_loud = len(fail_to_pass) > config.max_fail_to_pass or len(fail_to_pass) > config.max_fail_to_pass_share * len(
        stable
    )
    if not reason and strategy == "syntax_tree_bug" and is_loud:
        reason = "too_loud"
    return Finding(reason, fail_to_pass, pass_to_pass, flake)


def _rejection(
    before: TestRun, absent: list[str], fail_to_pass: list[str], pass_to_pass: list[str], strategy: str
) -> str:
    if before.is_timeout:
        return "timed_out"
    if before.is_forged:
        return "forged"
    if absent and (strategy != "release_pair" or not pass_to_pass):
        return "broke_collection"
    if not fail_to_pass:
        return "no_fail_to_pass"
    return "" if pass_to_pass else "no_pass_to_pass"


def hidden_paths(broken: Tree, fail_to_pass: Iterable[str], changed_tests: Iterable[str]) -> set[str]:
    """Broken tree with all tests -> the test files that only the verifier may read."""
    paths = {*changed_tests, *(test.split("::")[0] for test in fail_to_pass)}
    return {path for path in paths if path in broken and is_test_path(path)}


def _state(job: Job, trees: Trees, before: TestRun, finding: Finding) -> Report:
    candidate = job.candidate
    if candidate.strategy == "function_completion":
        max_chars = job.config.max_module_chars
        return Report(state_completion(trees.broken, candidate.entity, candidate.seed, max_chars), "")
    is_pair = candidate.strategy == "release_pair"
    return state_failure(
        package=job.repo.name,
        version=job.repo.previous_version if is_pair else job.repo.source.version,
        broken=trees.broken,
        solved=trees.solved,
        messages=before.messages,
        fail_to_pass=finding.fail_to_pass,
        patch=trees.gold_patch,
        seed=candidate.seed,
    )


def _make_task(lake: Lake, job: Job, trees: Trees, finding: Finding, report: Report) -> Task:
    candidate, repo = job.candidate, job.repo
    hidden = hidden_paths(trees.broken, finding.fail_to_pass, candidate.changed_tests)
    base = {path: content for path, content in trees.broken.items() if path not in hidden}
    is_completion = candidate.strategy == "function_completion"
    return with_id(
        Task(
            kind=candidate.kind,
            domain=candidate.domain,
            source=repo.source,
            repo=repo.name,
            repo_id=repo.id,
            image_id=job.image.id,
            strategy=candidate.strategy,
            modifier=candidate.modifier,
            entity=candidate.entity,
            seed=candidate.seed,
            base_tree=lake.put_blob(pack_tree(base)),
            hidden_tree=lake.put_blob(pack_tree({path: trees.broken[path] for path in hidden})),
            gold_patch=trees.gold_patch,
            answer={"function": function_code(trees.solved, candidate.entity)} if is_completion else None,
            fail_to_pass=finding.fail_to_pass,
            pass_to_pass=finding.pass_to_pass,
            flake=finding.flake,
            test_command=repo.test_command,
            timeout_sec=job.verifier.timeout_sec,
            step_budget=1 if is_completion else job.config.step_budget,
            statement=report.statement,
            interface=report.interface,
            contamination_id=job.contamination.id,
            split=split_of(repo.name, job.config),
            status="valid",
        )
    )


class Deduplicated(NamedTuple):
    """Tasks without duplicates."""

    kept: list[Task]
    rejected: dict[str, str]
    """Task id -> "duplicate of <id kept>"."""


def deduplicate(tasks: Iterable[Task]) -> Deduplicated:
    """Tasks -> the first of those that change the same entity of a repository and break the same tests."""
    first: dict[tuple[str, str, str, tuple[str, ...]], str] = {}
    kept: list[Task] = []
    rejected: dict[str, str] = {}
    for task in tasks:
        key = (task.repo, task.kind, task.entity, tuple(task.fail_to_pass) or (task.id,))
        if key in first:
            rejected[task.id] = f"duplicate of {first[key]}"
        else:
            first[key] = task.id
            kept.append(task)
    return Deduplicated(kept, rejected)
