"""The verifier in real sandboxes: honest work is rewarded, forged results are not."""

import pytest

from pipeline.containers.engine import Client
from pipeline.store import Lake
from pipeline.trees import Tree, diff_trees, pack_tree
from pipeline.types import RepoImage, Task
from pipeline.verify import run_tests, verify_tree
from tests.docker.conftest import BROKEN, LIMITS, SOLVED
from tests.unit import builders

pytestmark = [pytest.mark.docker, pytest.mark.timeout(120)]

HIDDEN = {"tests/test_text.py": SOLVED["tests/test_text.py"]}
BASE = {path: content for path, content in BROKEN.items() if path not in HIDDEN}
COUNT = "tests/test_count.py"
PASSING = [
    f"{COUNT}::test_count[one two]",
    f"{COUNT}::test_count[one  two]",
    f"{COUNT}::test_count[a [b]]",
    f"{COUNT}::TestEmpty::test_none",
]


@pytest.fixture(scope="module")
def task(lake: Lake) -> Task:
    return builders.task(
        base_tree=lake.put_blob(pack_tree(BASE)),
        hidden_tree=lake.put_blob(pack_tree(HIDDEN)),
        gold_patch=diff_trees(BROKEN, SOLVED),
        fail_to_pass=["tests/test_text.py::test_slug"],
        pass_to_pass=[*PASSING, f"{COUNT}::test_skipped"],
        test_command=["tests"],
        timeout_sec=20,
    )


def test_outcomes_and_failure_texts_of_a_run(client: Client, image: RepoImage) -> None:
    run = run_tests(client, image.ref, BROKEN, ["tests"], limits=LIMITS, timeout_sec=20, seed=7)
    outcomes = dict.fromkeys(PASSING, "passed") | {
        f"{COUNT}::test_skipped": "skipped",
        "tests/test_text.py::test_slug": "failed",
    }
    assert run.outcomes == outcomes
    assert (run.problem, run.is_forged, run.is_timeout, run.exit_code) == ("", False, False, 1)
    assert set(run.messages) == {"tests/test_text.py::test_slug"}
    assert "assert 'Hello-Loom' == 'hello-loom'" in run.messages["tests/test_text.py::test_slug"]


def test_a_test_command_without_a_path_runs_everything(client: Client, image: RepoImage) -> None:
    run = run_tests(client, image.ref, SOLVED, ["-x"], limits=LIMITS, timeout_sec=20, seed=0)
    assert len(run.outcomes) == 6 and not run.is_forged and not run.problem


def test_gold_patch_is_rewarded(lake: Lake, client: Client, task: Task, image: RepoImage) -> None:
    final = {path: content for path, content in SOLVED.items() if path not in HIDDEN}
    result = verify_tree(lake, client, task, image.ref, final, limits=LIMITS)
    assert (result.reward, result.is_forged, result.pass_to_pass) == (1.0, False, {})
    assert result.fail_to_pass == {"tests/test_text.py::test_slug": "passed"}
    assert result.reason == "resolved: 1 failing tests pass and 5 others still do"


def test_empty_patch_is_not_rewarded(lake: Lake, client: Client, task: Task, image: RepoImage) -> None:
    result = verify_tree(lake, client, task, image.ref, BASE, limits=LIMITS)
    assert (result.reward, result.is_forged) == (0.0, False)
    assert result.fail_to_pass == {"tests/test_text.py::test_slug": "failed"}
    assert result.reason == "1 tests that should pass do not, such as tests/test_text.py::test_slug"


def test_breaking_another_test_is_not_rewarded(lake: Lake, client: Client, task: Task, image: RepoImage) -> None:
    final = SOLVED | {"knots/text.py": SOLVED["knots/text.py"].replace(b"len(text.split())", b"2")}
    result = verify_tree(lake, client, task, image.ref, final, limits=LIMITS)
    assert result.reward == 0.0 and result.fail_to_pass == {"tests/test_text.py::test_slug": "passed"}
    assert result.pass_to_pass == {f"{COUNT}::TestEmpty::test_none": "failed"}


def in_source(code: str) -> Tree:
    return {"knots/__init__.py": code.encode() + b"\n" + BASE["knots/__init__.py"]}


PATCH = """
import _pytest.runner
real = _pytest.runner.CallInfo.from_call.__func__
def forged(cls, func, when, reraise=None):
    def quiet():
        try:
            func()
        except BaseException:
            pass
    return real(cls, quiet, when, reraise)
_pytest.runner.CallInfo.from_call = classmethod(forged)
"""
HOOK = """
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
    outcome.get_result().longrepr = None
"""
REWRITE = """
try:
    with open("/testbed/tests/test_text.py", "w") as file:
        file.write("def test_slug():\\n    pass\\n")
except OSError:
    pass
"""
JUNIT = """
import atexit, os, sys
def forge():
    path = [argument[11:] for argument in sys.argv if argument.startswith("--junitxml=")][0]
    with open(path, "w") as file:
        file.write('<testsuites><testsuite><testcase file="tests/test_text.py" classname="tests.test_text" '
                   'name="test_slug"/></testsuite></testsuites>')
    os._exit(1)
atexit.register(forge)
"""
ASSERT = "import unittest\nunittest.TestCase.assertEqual = lambda *arguments, **options: None"
ATTACKS: dict[str, tuple[Tree, bool]] = {
    "a conftest that rewrites outcomes": ({"conftest.py": HOOK.encode()}, False),
    "a conftest beside the tests": ({"tests/conftest.py": HOOK.encode()}, False),
    "a changed hidden test": ({"tests/test_text.py": b"def test_slug():\n    pass\n"}, False),
    "start-up code in a pth file": ({"evil.pth": b"import conf", "conf.py": PATCH.encode()}, False),
    "start-up code in sitecustomize": ({"sitecustomize.py": PATCH.encode()}, False),
    "configuration that deselects": ({"pytest.ini": b"[pytest]\naddopts = --deselect tests/test_text.py\n"}, False),
    "a plugin by entry point": (
        {
            "evil.egg-info/PKG-INFO": b"Metadata-Version: 2.1\nName: evil\nVersion: 1\n",
            "evil.egg-info/entry_points.txt": b"[pytest11]\nevil = evil\n",
            "evil.py": HOOK.encode(),
        },
        False,
    ),
    "a pytest of its own": ({"pytest.py": JUNIT.encode()}, False),
    "a patch of pytest in the source": (in_source(PATCH), True),
    "a patch of unittest in the source": (in_source(ASSERT), True),
    "a result written at exit": (in_source(JUNIT), True),
    "tests rewritten by the source": (in_source(REWRITE), False),
    "an early exit": (in_source("import os\nos._exit(0)"), False),
    "an early exit by exception": (in_source("raise SystemExit(0)"), True),
    "a skip": (in_source("import pytest\npytest.skip('no', allow_module_level=True)"), False),
    "a folder in place of a test file": ({"tests": b"not a folder"}, False),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_forging_is_not_rewarded(lake: Lake, client: Client, task: Task, image: RepoImage, attack: str) -> None:
    changes, is_forged = ATTACKS[attack]
    result = verify_tree(lake, client, task, image.ref, BASE | changes, limits=LIMITS)
    assert (result.reward, result.is_forged) == (0.0, is_forged), result.reason
    assert is_forged or result.fail_to_pass["tests/test_text.py::test_slug"] != "passed"


def test_tests_that_hang_end_in_time(lake: Lake, client: Client, task: Task, image: RepoImage) -> None:
    run = run_tests(
        client,
        image.ref,
        BASE | {"tests/test_count.py": b"import time\n\n\ndef test_long():\n    time.sleep(60)\n"},
        ["tests"],
        limits=LIMITS,
        timeout_sec=3,
        seed=0,
    )
    assert run.is_timeout and run.seconds < 15 and run.outcomes == {}
    assert run.problem == "the tests did not end within 3 s"


def test_a_module_that_cannot_be_imported_says_why(client: Client, image: RepoImage) -> None:
    broken = BASE | in_source("import nosuch")
    run = run_tests(client, image.ref, broken, ["tests"], limits=LIMITS, timeout_sec=20, seed=0)
    assert run.outcomes == {COUNT: "error"} and not run.is_forged
    assert run.problem == "no tests collected: ModuleNotFoundError: No module named 'nosuch'"
    assert "No module named 'nosuch'" in run.messages[COUNT]


def test_the_seed_sets_the_order_of_string_hashes(client: Client, image: RepoImage) -> None:
    shown = {"tests/test_hash.py": b"def test_hash():\n    assert 0, hash('loom')\n"}
    texts = [
        run_tests(client, image.ref, shown, ["tests"], limits=LIMITS, timeout_sec=20, seed=seed).messages[
            "tests/test_hash.py::test_hash"
        ]
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]
