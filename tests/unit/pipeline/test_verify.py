"""What the verifier believes: ids, outcomes and changes, before any container runs."""

import pytest

from pipeline.errors import UserError
from pipeline.trees import Tree
from pipeline.verify import (
    MAX_MESSAGE_CHARS,
    Case,
    allowed_changes,
    collect,
    identify,
    make_canaries,
    pytest_arguments,
    read_cases,
    summary,
)

MODULES = {"tests.test_a": "tests/test_a.py", "tests.deep.test_b": "tests/deep/test_b.py", "test_c": "test_c.py"}


def case(classname: str, name: str, file: str = "", outcome: str = "passed", text: str = "") -> Case:
    return Case(file, classname, name, outcome, text)


@pytest.mark.parametrize(
    ("found", "test"),
    [
        (case("tests.test_a", "test_x", "tests/test_a.py"), "tests/test_a.py::test_x"),
        (case("tests.test_a", "test_x[a b::c [d]]"), "tests/test_a.py::test_x[a b::c [d]]"),
        (case("tests.test_a.TestOne.TestTwo", "test_x"), "tests/test_a.py::TestOne::TestTwo::test_x"),
        (
            case("tests.deep.test_b.TestInherited", "test_x", "tests/shared.py"),
            "tests/deep/test_b.py::TestInherited::test_x",
        ),
        (case("test_c", "test_x"), "test_c.py::test_x"),
        (case("", "tests.test_a", "tests/test_a.py"), "tests/test_a.py"),
        (case("", "tests.deep.test_b"), "tests/deep/test_b.py"),
        (case("README.rst", "README.rst", "README.rst"), "README.rst::README.rst"),
        (case("somewhere.TestX", "test_x", "/usr/lib/x.py"), "/usr/lib/x.py::test_x"),
    ],
    ids=[
        "a function",
        "parameters with spaces and brackets",
        "nested classes",
        "an inherited test keeps the module that ran it",
        "a module at the root",
        "a module that was not collected",
        "a module that was not collected and names no file",
        "a document",
        "a module that is not in the tree",
    ],
)
def test_ids_are_those_of_pytest(found: Case, test: str) -> None:
    assert identify(found, MODULES) == test


def test_the_worse_of_two_reports_on_a_test_counts() -> None:
    cases = [
        case("tests.test_a", "x"),
        case("tests.test_a", "x", outcome="error", text="teardown"),
        case("tests.test_a", "x", outcome="failed", text="later"),
        case("tests.test_a", "y", outcome="skipped", text="why"),
    ]
    outcomes, messages = collect(cases, {"tests/test_a.py": b""})
    assert outcomes == {"tests/test_a.py::x": "error", "tests/test_a.py::y": "skipped"}
    assert messages == {"tests/test_a.py::x": "teardown"}


def test_long_failure_texts_keep_their_beginning_and_their_end() -> None:
    _, messages = collect([case("t", "x", outcome="failed", text="a" * 5000 + "z" * 5000)], {"t.py": b""})
    text = messages["t.py::x"]
    assert len(text) == MAX_MESSAGE_CHARS and text.startswith("aaa") and text.endswith("zzz") and "[...]" in text


def test_cases_are_read_with_their_outcomes_and_texts() -> None:
    text = """<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="pytest">
    <testcase classname="t" name="a" file="t.py" time="0.1" />
    <testcase classname="t" name="b[&lt;x&gt;]"><failure message="short">long &amp; full</failure></testcase>
    <testcase classname="t" name="c"><error message="only this"/></testcase>
    <testcase classname="t" name="d"><skipped type="pytest.skip" message="why">place</skipped></testcase>
    <testcase classname="t" name="e"><system-out>noise</system-out></testcase>
    </testsuite></testsuites>"""
    cases, problem = read_cases(text)
    assert problem == ""
    assert cases == [
        Case("t.py", "t", "a", "passed", ""),
        Case("", "t", "b[<x>]", "failed", "long & full"),
        Case("", "t", "c", "error", "only this"),
        Case("", "t", "d", "skipped", "place"),
        Case("", "t", "e", "passed", ""),
    ]


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]><testsuites>&b;</testsuites>'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (BOMB, "the result holds declarations"),
        ("<testsuites>" + "<a>" * 100_000, "the result is no JUnit file: elements are nested too deep"),
        ("<testsuites><testcase", "the result is no JUnit file: unclosed token"),
        ("", "the result is no JUnit file: no element found"),
    ],
    ids=["entities", "a deep file", "a cut file", "an empty file"],
)
def test_a_hostile_result_is_refused_with_its_reason(text: str, problem: str) -> None:
    cases, found = read_cases(text)
    assert cases == [] and found.startswith(problem)


BASE: Tree = {
    "pkg/core.py": b"old",
    "pkg/gone.py": b"gone",
    "pkg/data.bin": b"\xff\x00",
    "tests/test_a.py": b"test",
    "conftest.py": b"conf",
    "setup.cfg": b"cfg",
    "README.md": b"readme",
}


def test_changes_to_source_are_taken_over() -> None:
    final = BASE | {"pkg/core.py": b"new", "pkg/added.py": b"added"}
    del final["pkg/gone.py"]
    wanted = {key: value for key, value in final.items()}
    assert allowed_changes(BASE, final) == wanted


@pytest.mark.parametrize(
    "path",
    [
        "tests/test_a.py",
        "tests/data/new.txt",
        "pkg/test_more.py",
        "conftest.py",
        "pkg/conftest.py",
        "pytest.ini",
        "pytest.toml",
        "tox.ini",
        "setup.cfg",
        "pyproject.toml",
        "evil.pth",
        "sitecustomize.py",
        "sitecustomize/__init__.py",
        "usercustomize.py",
        "evil.egg-info/entry_points.txt",
        "evil-1.dist-info/METADATA",
        ".git/hooks/post-checkout",
        "pkg/__pycache__/core.cpython-311.pyc",
    ],
)
def test_what_steers_the_tests_cannot_be_changed(path: str) -> None:
    assert allowed_changes(BASE, BASE | {path: b"changed"}) == BASE


def test_deleting_tests_or_configuration_has_no_effect() -> None:
    final = {"pkg/core.py": b"old", "pkg/gone.py": b"gone", "pkg/data.bin": b"\xff\x00", "README.md": b"readme"}
    assert allowed_changes(BASE, final) == BASE


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a\0b"], ids=["not UTF-8", "a zero byte"])
def test_binaries_are_not_taken_over(content: bytes) -> None:
    assert allowed_changes(BASE, BASE | {"pkg/core.py": content, "pkg/new.so": content}) == BASE


def test_a_file_cannot_take_the_place_of_a_protected_folder() -> None:
    final = {path: content for path, content in BASE.items() if not path.startswith("tests/")} | {"tests": b"a file"}
    assert allowed_changes(BASE, final) == BASE
    assert allowed_changes(BASE, BASE | {"setup.cfg/x.py": b"1"}) == BASE


def test_a_file_may_become_a_folder() -> None:
    final = {path: content for path, content in BASE.items() if path != "README.md"} | {"README.md/a.py": b"1"}
    assert allowed_changes(BASE, final) == final


def test_a_command_that_names_no_path_gets_one() -> None:
    assert pytest_arguments(["-q"], BASE) == ["-q", "."]
    assert pytest_arguments([], BASE) == ["."]
    for command in (["tests"], ["./tests/"], ["tests/test_a.py::test_x", "-q"], ["."]):
        assert pytest_arguments(command, BASE) == command


@pytest.mark.parametrize("option", ["-k", "-kname", "-m", "-mslow"])
def test_a_command_that_would_leave_canaries_out_is_refused(option: str) -> None:
    with pytest.raises(UserError, match="name paths or use --deselect"):
        pytest_arguments(["tests", option], BASE)


def test_canaries_have_other_names_each_time_and_every_outcome() -> None:
    one, other = make_canaries(), make_canaries()
    assert one.path != other.path and not one.expected.keys() & other.expected.keys()
    assert sorted(one.expected.values()) == ["error", "failed", "failed", "passed"]


def test_the_summary_is_the_error_itself() -> None:
    output = (
        "x\nImportError while loading conftest '/testbed/conftest.py'.\nconftest.py:1: in <module>\nE   NameError: a\n"
    )
    assert summary(output) == "NameError: a"
    assert summary("ERROR: usage: x\n\n") == "ERROR: usage: x"
    assert summary("plain\nlast\n") == "last"
    assert summary("") == "it wrote nothing"
