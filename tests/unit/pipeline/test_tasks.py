"""Tasks: candidates, verdicts over test runs, completions put back, generated questions, splits, duplicates."""

import ast
import datetime
import gc
import itertools
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.store import Lake
from pipeline.tasks import (
    Candidate,
    ReferenceRuns,
    TaskConfig,
    check_answer,
    completion_reply,
    deduplicate,
    explain,
    insert_function,
    make_reasoning_task,
    propose,
    split_of,
)
from pipeline.tasks.completions import function_code, make_completions, state_completion
from pipeline.tasks.paths import is_source_path, without_changelogs
from pipeline.tasks.reasoning import FAMILIES
from pipeline.tasks.syntax import parse_python
from pipeline.tasks.validation import changed_paths, hidden_paths, judge, make_trees, reference_problem
from pipeline.trees import Tree, pack_tree
from pipeline.types import Repo, with_id
from pipeline.verify import TestRun
from tests.unit.builders import source
from tests.unit.builders import task as build_task

CORE = b'''import re

UNIT = 1


class Box:
    @property
    def size(self):
        """How much fits."""
        if not self.items:
            return UNIT
        return len(self.items)


def grow(amount, by=2):
    """Amount -> amount times `by`."""
    if amount < 0:
        raise ValueError("below zero")
    total = amount * by
    return total


def tiny(x):
    """Too little to ask for."""
    return x
'''
TESTS = b"from pkg.core import grow\n\n\ndef test_grow():\n    assert grow(2) == 4\n"
TREE: Tree = {
    "pkg/__init__.py": b"",
    "pkg/core.py": CORE,
    "tests/test_core.py": TESTS,
    "setup.py": b"def f(x):\n    return x + 1\n",
    "CHANGES.rst": b"1.1: grow checks its amount\n",
    "README.md": b"pkg\n",
}
OLD_TREE = TREE | {
    "pkg/core.py": CORE.replace(b'    if amount < 0:\n        raise ValueError("below zero")\n', b""),
    "tests/test_core.py": b"def test_grow():\n    pass\n",
    "README.md": b"old\n",
}


def repo(lake: Lake, tree: Tree, version: str, previous: str = "") -> Repo:
    return with_id(
        Repo(
            source=source(name="pkg", version=version),
            name="pkg",
            tree=lake.put_blob(pack_tree(tree)),
            num_files=len(tree),
            num_bytes=0,
            python_requires=["pytest"],
            test_command=["tests"],
            previous_version=previous,
        )
    )


def run(outcomes: dict[str, str], **overrides: Any) -> TestRun:
    fields: dict[str, Any] = {
        "outcomes": outcomes,
        "messages": {},
        "exit_code": 0,
        "seconds": 1.0,
        "is_timeout": False,
        "is_forged": False,
        "problem": "",
    }
    return TestRun(**(fields | overrides))


GOOD = run({f"t::{letter}": "passed" for letter in "abcdefgh"})


@pytest.mark.parametrize(
    ("before", "strategy", "reason"),
    [
        (run(GOOD.outcomes | {"t::a": "failed"}), "syntax_tree_bug", ""),
        (run(GOOD.outcomes | {"t::a": "error"}), "syntax_tree_bug", ""),
        (GOOD, "syntax_tree_bug", "no_fail_to_pass"),
        (run(dict.fromkeys(GOOD.outcomes, "failed")), "syntax_tree_bug", "no_pass_to_pass"),
        (run({}, is_timeout=True), "syntax_tree_bug", "timed_out"),
        (run(GOOD.outcomes, is_forged=True), "syntax_tree_bug", "forged"),
        (run({"t": "error"}), "syntax_tree_bug", "broke_collection"),
        (run({"t": "error"}), "release_pair", "broke_collection"),
        (run({"t::a": "passed"}), "release_pair", ""),
        (run(GOOD.outcomes | dict.fromkeys(["t::a", "t::b", "t::c"], "failed")), "syntax_tree_bug", "too_loud"),
        (run(GOOD.outcomes | dict.fromkeys(["t::a", "t::b", "t::c"], "failed")), "function_completion", ""),
    ],
)
def test_runs_before_and_after_decide_with_a_reason(before: TestRun, strategy: str, reason: str) -> None:
    assert judge(before, [GOOD, GOOD], strategy, TaskConfig()).reason == reason


def test_flaky_and_skipped_tests_are_left_out_and_flakes_recorded() -> None:
    flaky = replace(GOOD, outcomes=GOOD.outcomes | {"t::a": "failed", "t::b": "skipped"})
    before = run(GOOD.outcomes | dict.fromkeys(["t::a", "t::b", "t::c"], "failed"))
    finding = judge(before, [GOOD, flaky, GOOD], "syntax_tree_bug", TaskConfig())
    assert finding.fail_to_pass == ["t::c"]
    assert finding.pass_to_pass == ["t::d", "t::e", "t::f", "t::g", "t::h"]
    assert finding.flake == {"t::a": [3, 1]}


def test_a_reference_that_does_not_run_is_named() -> None:
    assert reference_problem([GOOD, run({}, is_timeout=True)]) == "reference_timed_out"
    assert reference_problem([run({"t": "error"})]) == "reference_failed"
    assert reference_problem([GOOD]) == ""


def test_reference_runs_are_made_once_however_many_threads_ask() -> None:
    runs, made = ReferenceRuns(), []

    def make() -> list[TestRun]:
        made.append(threading.get_ident())
        time.sleep(0.02)
        return [GOOD]

    key = ("image", "tree", ("tests",), 1)
    threads = [threading.Thread(target=runs.get, args=(key, make)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and runs.get(key, make) == [GOOD]


def test_candidates_are_the_same_for_the_same_seed_and_break_package_code_only(lake: Lake) -> None:
    new = repo(lake, TREE, "1.1")
    config = TaskConfig(max_bugs=5, max_completions=2)
    first = propose(lake, new, None, config)
    assert first == propose(lake, new, None, config)
    assert propose(lake, new, None, replace(config, seed=9)) != first
    assert [candidate.strategy for candidate in first] == ["syntax_tree_bug"] * 5 + ["function_completion"] * 2
    for candidate in first:
        trees = make_trees(without_changelogs(TREE), candidate)
        assert changed_paths(trees) == {"pkg/core.py"}
        assert trees.solved == without_changelogs(TREE)


def test_only_wanted_strategies_are_proposed(lake: Lake) -> None:
    config = TaskConfig(strategies=["function_completion"], max_completions=1)
    assert [found.strategy for found in propose(lake, repo(lake, TREE, "1"), None, config)] == ["function_completion"]


def test_a_release_pair_is_old_code_with_the_tests_of_the_release(lake: Lake) -> None:
    new, old = repo(lake, TREE, "1.1", "1.0"), repo(lake, OLD_TREE, "1.0")
    (candidate,) = propose(lake, new, old, TaskConfig(strategies=["release_pair"]))
    trees = make_trees(without_changelogs(TREE), candidate)
    assert trees.broken["pkg/core.py"] == OLD_TREE["pkg/core.py"]
    assert trees.broken["tests/test_core.py"] == TESTS
    assert trees.broken["README.md"] == b"old\n" and "CHANGES.rst" not in trees.broken
    assert changed_paths(trees) == {"pkg/core.py"} and "raise ValueError" in trees.gold_patch
    assert hidden_paths(trees.broken, [], candidate.changed_tests) == {"tests/test_core.py"}


def test_hidden_files_are_the_test_files_of_failing_tests() -> None:
    failing = ["tests/test_core.py::test_grow[1]", "pkg/core.py::pkg.core.grow", "gone.py::x"]
    assert hidden_paths(TREE, failing, []) == {"tests/test_core.py"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("pkg/core.py", True),
        ("src/pkg/core.py", True),
        ("pkg/tests/test_core.py", False),
        ("setup.py", False),
        ("docs/conf.py", False),
        ("versioneer.py", False),
        ("pkg/data.txt", False),
    ],
)
def test_package_code_is_told_from_the_rest(path: str, expected: bool) -> None:
    assert is_source_path(path) is expected


def test_change_logs_are_left_out_whatever_they_are_called() -> None:
    names = [
        "CHANGELOG.md",
        "docs/changes.rst",
        "HISTORY",
        "NEWS.txt",
        "release-notes.md",
        "pkg/history.py",
        "a.md",
        "newsfragments/1.md",
    ]
    kept = without_changelogs(dict.fromkeys(names, b""))
    assert list(kept) == ["pkg/history.py", "a.md"]


def completion_tree(name: str) -> Tree:
    (found,) = [item for item in make_completions(TREE, 9, 0) if item.function == name]
    return TREE | {found.path: found.source.encode()}


BROKEN_GROW = completion_tree("grow")


def test_documented_functions_with_a_real_body_are_taken_away() -> None:
    assert {item.function for item in make_completions(TREE, 9, 0)} == {"Box.size", "grow"}
    broken = completion_tree("grow")["pkg/core.py"]
    assert b'"""Amount -> amount times `by`."""\n    raise NotImplementedError\n' in broken
    assert b"below zero" not in broken and b"len(self.items)" in broken


@pytest.mark.parametrize("name", ["grow", "Box.size"])
def test_the_true_function_as_reply_restores_the_file(name: str) -> None:
    code = function_code(TREE, f"pkg/core.py::{name}")
    inserted = insert_function(completion_tree(name), f"pkg/core.py::{name}", completion_reply(code))
    assert inserted == (TREE, "")


def test_a_reply_may_hold_talk_other_blocks_and_helpers() -> None:
    reply = (
        "First an idea:\n```python\nx = 1\n```\nNow:\n```py\nimport os\n\ndef grow(amount, by=3):\n"
        "  return amount + by\n\nprint(grow(1))\n```\nDone."
    )
    inserted = insert_function(completion_tree("grow"), "pkg/core.py::grow", reply)
    text = inserted.tree["pkg/core.py"].decode()
    assert inserted.problem == "" and "def grow(amount, by=3):\n    return amount + by\n" in text
    assert "import os" not in text and "print(grow" not in text


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("I cannot do that.", "no_function_in_reply"),
        ("```python\ndef grow(:\n```", "no_function_in_reply"),
        ("```python\ndef shrink(x):\n    return x\n```", "no_function_in_reply"),
        ("```python\ndef grow(x):\n    return " + "(" * 5000 + "\n```", "no_function_in_reply"),
        ("```python\ndef grow(x):\n    return " + "-" * 30_000 + "x\n```", "no_function_in_reply"),
        ("```python\ndef grow(x):\n    return 1\n```" + " " * 50_000, "reply_too_long"),
    ],
)
def test_an_unusable_reply_changes_nothing_and_says_why(reply: str, problem: str) -> None:
    broken = completion_tree("grow")
    assert insert_function(broken, "pkg/core.py::grow", reply) == (broken, problem)


@given(st.text(max_size=200))
@example("```python\ndef grow(x):\n\treturn x\n  y\n```")
@example("def grow(x): return x")
@example("\x00def grow(x):\n    return x")
@example("```python\r\ndef grow(x):\r\n    return x\r\n```")
def test_any_reply_leaves_a_tree_with_the_other_files_as_they_were(reply: str) -> None:
    inserted = insert_function(BROKEN_GROW, "pkg/core.py::grow", reply)
    assert inserted.tree.keys() == BROKEN_GROW.keys()
    assert (inserted.tree == BROKEN_GROW) or inserted.problem == ""
    compile(inserted.tree["pkg/core.py"], "core.py", "exec")


def test_the_request_shows_signature_docstring_and_module_within_its_limit() -> None:
    broken = completion_tree("grow")
    text = state_completion(broken, "pkg/core.py::grow", 0, 6000).text
    assert "def grow(amount, by=2):" in text and "UNIT = 1" in text and "below zero" not in text
    long = TREE | {"pkg/core.py": broken["pkg/core.py"] + b"\n\ndef other():\n" + b"    x = 12345\n" * 400}
    text = state_completion(long, "pkg/core.py::grow", 0, 2000).text
    assert "12345" not in text and "def other(): ..." in text
    text = state_completion(long, "pkg/core.py::grow", 0, 150).text
    assert "class Box: ..." in text and "UNIT = 1" not in text


def test_reasoning_tasks_are_right_by_their_own_worked_solution(lake: Lake) -> None:
    tasks = [make_reasoning_task(lake, seed) for seed in range(2000)]
    assert all(check_answer(task, explain(task)) for task in tasks)
    assert {task.modifier for task in tasks} == set(FAMILIES) and len(FAMILIES) >= 5
    assert len({task.statement.text for task in tasks}) > 1980
    assert make_reasoning_task(lake, 5) == tasks[5]


def test_reasoning_answers_agree_with_a_second_calculation(lake: Lake) -> None:
    for seed in range(900):
        task = make_reasoning_task(lake, seed)
        question, value = task.statement.text, task.answer["value"]
        numbers = [int(number) for number in re.findall(r"\d+", question)]
        if task.modifier == "sorting":
            listed = ast.literal_eval(re.findall(r"\[.*\]", question)[0])
            limit, parity = numbers[len(listed)], int("odd" in question)
            kept = sorted(n for n in listed if n > limit and n % 2 == parity)
            assert value == (", ".join(map(str, kept[::-1] if "descending" in question else kept)) or "none")
        elif task.modifier == "dates":
            start = datetime.date(*numbers[1:4])
            days = datetime.timedelta(numbers[0])
            assert value == str(start + days if "after" in question else start - days)
        elif task.modifier == "sharing":
            assert value == "{}, {}".format(*divmod(numbers[0] - numbers[1], numbers[2]))
        elif task.modifier == "shopping":
            assert int(value) == numbers[4] - numbers[0] * numbers[1] - numbers[2] * numbers[3]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("It is so.\nAnswer: 12, 3", True),
        ("**Answer:** `12,3`.\n\n", True),
        ("answer: 12,  3", True),
        ("Answer: 12, 4", False),
        ("12, 3", False),
        ("Answer: 12, 3\nThat was fun.", False),
        ("", False),
    ],
)
def test_only_the_last_line_answers(reply: str, expected: bool) -> None:
    task = build_task(answer={"value": "12, 3", "solution": ""})
    assert check_answer(task, reply) is expected


def test_splits_keep_a_repository_together_and_reach_their_shares() -> None:
    config = TaskConfig(sft_share=0.6, rlvr_share=0.3)
    splits = [split_of(f"repo-{number}", config) for number in range(4000)]
    assert abs(splits.count("sft") / 4000 - 0.6) < 0.03 and abs(splits.count("rlvr") / 4000 - 0.3) < 0.03
    assert split_of("Parse", config) == split_of("parse", config)
    assert {split_of(f"repo-{number}", TaskConfig()) for number in range(50)} == {"sft"}
    other = [split_of(f"repo-{number}", replace(config, split_key="other")) for number in range(4000)]
    assert other != splits


def test_same_entity_and_same_failing_tests_are_duplicates() -> None:
    first = build_task(seed=1)
    second, elsewhere, louder = build_task(seed=2), build_task(entity="demo.g"), build_task(fail_to_pass=["a", "b"])
    kept, rejected = deduplicate([first, second, elsewhere, louder])
    assert kept == [first, elsewhere, louder]
    assert rejected == {second.id: f"duplicate of {first.id}"}


def test_threads_parse_python_without_disturbing_each_other() -> None:
    class Slow:
        """Garbage whose removal lets another thread run in the middle of a parse."""

        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            time.sleep(0.001)

    def parse(number: int, depth: int) -> int:
        if depth:
            return parse(number, depth - 1)
        for _ in range(10):
            Slow()
        return len(parse_python("x = [a + b * c for a in range(3)]\n" * 60 + f"# {number}\n").body)

    thresholds = gc.get_threshold()
    gc.set_threshold(100)
    try:
        with ThreadPoolExecutor(4) as pool:
            sizes = list(pool.map(parse, range(24), itertools.cycle((0, 15))))
    finally:
        gc.set_threshold(*thresholds)
    assert sizes == [60] * 24


def test_a_candidate_is_its_content() -> None:
    fields: dict[str, Any] = {
        "repo_id": "r",
        "kind": "swe",
        "domain": "agentic_code",
        "strategy": "syntax_tree_bug",
        "modifier": "m",
        "entity": "e",
        "seed": 0,
        "bug_patch": "",
        "changed_tests": [],
    }
    assert with_id(Candidate(**fields)).id != with_id(Candidate(**fields | {"seed": 1})).id
