"""Task and the tree an agent left -> hidden tests in a fresh sandbox -> VerifierResult that notices forging.

Only changes to source text are taken over, hidden tests are laid over them, and nothing in the working folder can be
changed while tests run. Canaries with random names must pass, fail and err as written: code that makes failures look
like passes does so to them, too. Code that finds the canaries and spares them is not noticed.
"""

import logging
import re
import secrets
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import ClassVar, NamedTuple

from pydantic import Field
from pydantic.dataclasses import dataclass as config_class

from pipeline.config import STRICT
from pipeline.containers.engine import Client
from pipeline.containers.sandbox import SKIPPED_FOLDERS, TESTBED, Sandbox, SandboxLimits
from pipeline.errors import UserError
from pipeline.store import Lake
from pipeline.trees import Tree, is_test_path, unpack_tree
from pipeline.types import Task, VerifierResult

log = logging.getLogger(__name__)

TREE_UID = 0
"""Owns the files under test; the tests run as another user, so that code under test cannot rewrite them."""
MAX_MESSAGE_CHARS = 4000
MAX_PROBLEM_CHARS = 300
MAX_DEPTH = 10
"""Of nested elements in a result; pytest writes five."""
READ_TIMEOUT_SEC = 20
RANK = {"passed": 0, "skipped": 1, "failed": 2, "error": 3}
OUTCOME_OF_TAG = {"failure": "failed", "error": "error", "skipped": "skipped"}
LAUNCH = f"import sys, pytest; sys.argv[0] = pytest.__file__; sys.path.insert(0, '{TESTBED}'); sys.exit(pytest.main())"
"""As `python -m pytest`, but pytest itself is loaded before the working folder can offer another one."""
OPTIONS = (
    f"--rootdir={TESTBED}",
    *("-p", "no:cacheprovider"),
    *("-o", "junit_family=xunit1"),
    "--continue-on-collection-errors",
    "--maxfail=0",
)
"""A module that cannot be collected, or a first failure, must not keep the canaries from running."""
PROTECTED_NAMES = frozenset(
    {
        *("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml"),
        *("sitecustomize", "sitecustomize.py", "usercustomize", "usercustomize.py"),
        *SKIPPED_FOLDERS,
    }
)
"""Files that steer how tests run, and folders that are no part of a tree."""
PROTECTED_SUFFIXES = (".pth", ".egg-info", ".dist-info")


@config_class(frozen=True, config=STRICT, kw_only=True)
class VerifierConfig:
    """How often and how long tests run."""

    after_runs: int = Field(default=3, ge=1)
    """Runs of a solved tree; a test that does not pass in all of them is flaky."""
    timeout_sec: int = Field(default=60, ge=1)
    """Of one run of all tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    """One run of a repository's tests."""

    __test__: ClassVar[bool] = False
    outcomes: dict[str, str]
    """Test id (path::class::name[parameters]) -> passed | failed | error | skipped; the path alone where a file could
    not be collected."""
    messages: dict[str, str] = field(default_factory=dict)
    """Id of a test that failed or erred -> what pytest says about it, its middle cut beyond 4,000 characters."""
    exit_code: int
    seconds: float
    is_timeout: bool
    is_forged: bool
    """A canary did not come out as it was written."""
    problem: str
    """Why the outcomes are missing or cannot be trusted, empty if they can."""


class Canaries(NamedTuple):
    """Planted tests and what must become of them."""

    path: str
    code: bytes
    expected: dict[str, str]
    """Test id -> outcome."""


class Case(NamedTuple):
    """One element of a JUnit file."""

    file: str
    classname: str
    name: str
    outcome: str
    text: str


def run_tests(
    client: Client,
    image_ref: str,
    tree: Tree,
    test_command: list[str],
    *,
    limits: SandboxLimits,
    timeout_sec: float,
    seed: int,
) -> TestRun:
    """Tree and pytest's arguments -> outcomes of its tests in a fresh sandbox; `seed` is of Python's string hashes.

    Raises: InfrastructureError when the sandbox fails, UserError when the arguments would leave canaries out.
    """
    canaries = make_canaries()
    tree = tree | {canaries.path: canaries.code}
    result_path = f"/tmp/{secrets.token_hex(8)}.xml"
    command = [
        *("python", "-P", "-c", LAUNCH),
        *pytest_arguments(test_command, tree),
        *(canaries.path, *OPTIONS, f"--junitxml={result_path}"),
    ]
    environment = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": str(seed), "PYTHONNOUSERSITE": "1"}
    with Sandbox.start(client, image_ref, limits=limits, testbed_uid=TREE_UID) as sandbox:
        sandbox.write_tree(tree, TESTBED, uid=TREE_UID)
        ran = sandbox.execute(command, timeout_sec=timeout_sec, environment=environment)
        written = sandbox.execute(["cat", "--", result_path], timeout_sec=READ_TIMEOUT_SEC)
    outcomes: dict[str, str] = {}
    messages: dict[str, str] = {}
    problem = f"the tests did not end within {timeout_sec:g} s" if ran.is_timeout else ""
    if not problem and (written.exit_code or written.is_truncated):
        problem = f"pytest left no result: {summary(ran.output)}"
    if not problem:
        cases, problem = read_cases(written.output)
        outcomes, messages = collect(cases, tree)
    seen = {test: outcomes.pop(test, "absent") for test in canaries.expected}
    is_forged = not problem and (seen != canaries.expected or ran.exit_code == 0)
    if not problem and ran.exit_code not in (0, 1):
        problem = f"pytest ended with exit code {ran.exit_code}: {summary(ran.output)}"
    if not problem and not any("::" in test for test in outcomes):
        problem = f"no tests collected: {summary(next(iter(messages.values()), ran.output))}"
    return TestRun(
        outcomes=outcomes,
        messages={test: text for test, text in messages.items() if test in outcomes},
        exit_code=ran.exit_code,
        seconds=ran.seconds,
        is_timeout=ran.is_timeout,
        is_forged=is_forged,
        problem=problem,
    )


def pytest_arguments(test_command: list[str], tree: Tree) -> list[str]:
    """Test command -> the same with at least one path: beside the canaries' path, configured ones do not count.

    Raises: UserError for a selection by expression or mark, which would leave the canaries out.
    """
    selecting = [argument for argument in test_command if re.match(r"-[km]", argument)]
    if selecting:
        raise UserError(f"test command {test_command} selects by {selecting[0]}: name paths or use --deselect")
    paths = {".", *tree, *(str(parent) for path in tree for parent in PurePosixPath(path).parents)}
    names_path = any(argument.split("::")[0].rstrip("/").removeprefix("./") in paths for argument in test_command)
    return test_command if names_path else [*test_command, "."]


def make_canaries() -> Canaries:
    """Randomness -> a test file in which one test passes, two fail in different ways and one errs."""
    module, group, broken, passes, asserts, compares, errs = (f"c{secrets.token_hex(6)}" for _ in range(7))
    left, right = secrets.randbelow(10**6), secrets.randbelow(10**6)
    code = f"""import unittest


class {group}(unittest.TestCase):
    def test_{passes}(self):
        self.assertEqual({left} + {right}, {left + right})

    def test_{asserts}(self):
        assert {left} + {right} == {left + right + 1}

    def test_{compares}(self):
        self.assertEqual({left} + {right}, {left + right + 1})


class {broken}(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise RuntimeError({left})

    def test_{errs}(self):
        pass
"""
    path = f"test_{module}.py"
    expected = {
        f"{path}::{group}::test_{passes}": "passed",
        f"{path}::{group}::test_{asserts}": "failed",
        f"{path}::{group}::test_{compares}": "failed",
        f"{path}::{broken}::test_{errs}": "error",
    }
    return Canaries(path, code.encode(), expected)


class _CaseReader:
    """Events of an XML parser -> test cases; nothing else is kept, however large or deep the file is."""

    def __init__(self) -> None:
        self.cases: list[Case] = []
        self._depth = 0
        self._case: Case | None = None
        self._text: list[str] | None = None

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError("elements are nested too deep")
        if tag == "testcase":
            file, classname, name = (attributes.get(key, "") for key in ("file", "classname", "name"))
            self._case = Case(file, classname, name, "passed", "")
        elif self._case and tag in OUTCOME_OF_TAG:
            message = attributes.get("message", "")
            self._case = self._case._replace(outcome=worse(self._case.outcome, OUTCOME_OF_TAG[tag]), text=message)
            self._text = []

    def data(self, text: str) -> None:
        if self._text is not None:
            self._text.append(text)

    def end(self, tag: str) -> None:
        self._depth -= 1
        if self._case and tag in OUTCOME_OF_TAG and self._text is not None:
            self._case = self._case._replace(text="".join(self._text).strip() or self._case.text)
            self._text = None
        elif self._case and tag == "testcase":
            self.cases.append(self._case)
            self._case = None


def worse(one: str, other: str) -> str:
    """Two outcomes -> the worse one."""
    return max(one, other, key=lambda outcome: RANK[outcome])


def read_cases(text: str) -> tuple[list[Case], str]:
    """JUnit XML that hostile code may have written -> test cases, and what is wrong with it."""
    if "<!" in text:
        return [], "the result holds declarations"
    reader = _CaseReader()
    parser = ET.XMLParser(target=reader)
    try:
        parser.feed(text)
        parser.close()
    except (ET.ParseError, ValueError) as error:
        return [], f"the result is no JUnit file: {error}"
    return reader.cases, ""


def collect(cases: Iterable[Case], tree: Tree) -> tuple[dict[str, str], dict[str, str]]:
    """Test cases -> outcomes and failure texts by test id; of two reports on one test the worse counts."""
    modules = {_dotted(path): path for path in tree}
    outcomes: dict[str, str] = {}
    messages: dict[str, str] = {}
    for case in cases:
        test = identify(case, modules)
        outcomes[test] = worse(outcomes.get(test, "passed"), case.outcome)
        if case.outcome in ("failed", "error"):
            messages.setdefault(test, _shorten(case.text))
    return outcomes, messages


def identify(case: Case, modules: dict[str, str]) -> str:
    """Test case -> path::class::name[parameters], as pytest's own node id; parameters stay as they are.

    JUnit joins path and classes with dots, and its file may be another one (that of an inherited test): the longest
    known module that the class name begins with is the path.
    """
    dotted = case.classname or case.name
    parts = dotted.split(".")
    known = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    module = next((name for name in known if name in modules), "")
    if not module and case.file and (dotted + ".").startswith(_dotted(case.file) + "."):
        module = _dotted(case.file)
    path = modules.get(module, case.file or dotted)
    if not case.classname:
        return path if module else f"{path}::{case.name}"
    classes = dotted[len(module) :].strip(".") if module else ""
    return "::".join([path, *(classes.split(".") if classes else []), case.name])


def _dotted(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def _shorten(text: str) -> str:
    """Failure text -> at most MAX_MESSAGE_CHARS of it: how it begins (parameters) and how it ends (the error)."""
    if len(text) <= MAX_MESSAGE_CHARS:
        return text
    head, mark = MAX_MESSAGE_CHARS // 4, "\n[...]\n"
    return text[:head] + mark + text[head + len(mark) - MAX_MESSAGE_CHARS :]


def summary(output: str) -> str:
    """What pytest wrote -> its most telling line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [re.sub(r"^E +", "", line) for line in lines if re.match(r"E  |ERROR|[\w.]*(Error|Exception)\b", line)]
    return (telling or lines or ["it wrote nothing"])[-1][:MAX_PROBLEM_CHARS]


def is_protected(path: str) -> bool:
    """Path -> whether a patch may not change it: it belongs to the tests or steers how they run."""
    parts = PurePosixPath(path).parts
    return is_test_path(path) or any(part in PROTECTED_NAMES or part.endswith(PROTECTED_SUFFIXES) for part in parts)


def allowed_changes(base: Tree, final: Tree) -> Tree:
    """Base tree and the tree an agent left -> base tree with the agent's changes to source text, and nothing else."""
    changed = {path for path in base.keys() | final.keys() if base.get(path) != final.get(path)}
    allowed = {path for path in changed if not is_protected(path) and _is_text(final.get(path, b""))}
    kept = {path: content for path, content in base.items() if path not in allowed}
    return _overlay({path: final[path] for path in allowed if path in final}, kept)


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in content


def _overlay(lower: Tree, upper: Tree) -> Tree:
    """Two trees -> both, `upper` winning, also where one has a file at the place of the other's folder."""
    folders = {str(parent) for path in upper for parent in PurePosixPath(path).parents}
    free = {
        path: content
        for path, content in lower.items()
        if path not in folders and not any(str(parent) in upper for parent in PurePosixPath(path).parents)
    }
    return free | upper


def verify_tree(
    lake: Lake, client: Client, task: Task, image_ref: str, final: Tree, *, limits: SandboxLimits
) -> VerifierResult:
    """Task and the tree a rollout left -> reward 1.0 if every FAIL_TO_PASS passes and no PASS_TO_PASS broke.

    Raises: InfrastructureError when the sandbox fails; that says nothing about the tree.
    """
    started = time.monotonic()
    base, hidden = (unpack_tree(lake.get_blob(blob)) for blob in (task.base_tree, task.hidden_tree))
    tree = _overlay(allowed_changes(base, final), hidden)
    run = run_tests(client, image_ref, tree, task.test_command, limits=limits, timeout_sec=task.timeout_sec, seed=0)
    fail_to_pass = {test: run.outcomes.get(test, "absent") for test in task.fail_to_pass}
    pass_to_pass = {test: run.outcomes.get(test, "absent") for test in task.pass_to_pass}
    broken = {test: outcome for test, outcome in pass_to_pass.items() if outcome not in ("passed", "skipped")}
    failure = _failure(run, [test for test, outcome in fail_to_pass.items() if outcome != "passed"], list(broken))
    if run.is_forged:
        log.warning("forged result task=%s", task.id[:12])
    return VerifierResult(
        reward=0.0 if failure else 1.0,
        fail_to_pass=fail_to_pass,
        pass_to_pass=broken,
        is_forged=run.is_forged,
        reason=failure or f"resolved: {len(fail_to_pass)} failing tests pass and {len(pass_to_pass)} others still do",
        seconds=round(time.monotonic() - started, 3),
    )


def _failure(run: TestRun, failing: list[str], broken: list[str]) -> str:
    """Run and tests -> one sentence on why it is not resolved, empty if it is."""
    if run.is_forged:
        return "forged: planted tests did not come out as they were written"
    if run.problem:
        return run.problem
    if failing:
        return f"{len(failing)} tests that should pass do not, such as {failing[0]}"
    return f"{len(broken)} tests that passed before do not, such as {broken[0]}" if broken else ""
