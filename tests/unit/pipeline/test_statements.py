"""Statements: what failed in a user's words, from pytest's own texts; nothing of the solution."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.tasks.failures import read_failure
from pipeline.tasks.interfaces import find_interfaces, find_signature
from pipeline.tasks.statements import MAX_WORDS, MIN_WORDS, find_leaks, state_failure
from pipeline.trees import Tree, diff_trees

TEST_FILE = """import pytest
import pkg
from pkg.core import Box, grow


@pytest.mark.parametrize(("word", "plural"), [("ox", "oxen")])
def test_plural_of_odd_words(word, plural):
    assert plural == pkg.pluralize(word)


def test_box_holds_what_was_put():
    box = Box(3)
    result = box.put("a", "b")
    assert result["a"] == "b"


def test_grow():
    with pytest.raises(ValueError):
        grow(-1)


def check(shown, wanted):
    assert grow(shown) == wanted


def test_grow_twice():
    check(2, 4)


def test_ready():
    assert not Box(0).is_ready()
"""
SOLVED = {
    "pkg/__init__.py": b"from pkg.core import Box, grow\n\n\n"
    b"def pluralize(word: str) -> str:\n    return lookup(word)\n",
    "pkg/core.py": b"class Box:\n    def __init__(self, size, *, lid=None):\n        self.size = size\n\n\n"
    b"def grow(amount):\n    if amount < 0:\n        raise ValueError('amount below zero is refused here')\n"
    b"    return amount * 2\n",
    "tests/test_pkg.py": TEST_FILE.encode(),
}
BROKEN = SOLVED | {"pkg/core.py": SOLVED["pkg/core.py"].replace(b"amount < 0", b"amount > 0")}
PLURAL = """word = 'ox', plural = 'oxen'

    @pytest.mark.parametrize(("word", "plural"), [("ox", "oxen")])
    def test_plural_of_odd_words(word, plural):
>       assert plural == pkg.pluralize(word)
E       AssertionError: assert 'oxen' == 'oxs'
E
E         - oxs
E         + oxen

tests/test_pkg.py:8: AssertionError"""
LONG = PLURAL.replace("'oxen' == 'oxs'", "'oxen...' == 'oxs...'")
BOX = """def test_box_holds_what_was_put():
        box = Box(3)
        result = box.put("a", "b")
>       assert result["a"] == "b"
E       KeyError: 'a'

tests/test_pkg.py:14: KeyError"""
NOT_RAISED = """def test_grow():
>       with pytest.raises(ValueError):
E       Failed: DID NOT RAISE <class 'ValueError'>

tests/test_pkg.py:18: Failed"""
DEEP = """def test_grow_twice():
>       check(2, 4)

tests/test_pkg.py:27:
_ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _

shown = 2, wanted = 4

    def check(shown, wanted):
>       assert grow(shown) == wanted
E       assert 3 == 4
E        +  where 3 = grow(2)

tests/test_pkg.py:23: AssertionError"""
READY = """def test_ready():
>       assert not Box(0).is_ready()
E       assert not True
E        +  where True = is_ready()
E        +    where is_ready = <pkg.core.Box object at 0x7f12ab>.is_ready

tests/test_pkg.py:31: AssertionError"""
MESSAGES = {
    "tests/test_pkg.py::test_plural_of_odd_words[ox-oxen]": PLURAL,
    "tests/test_pkg.py::test_box_holds_what_was_put": BOX,
    "tests/test_pkg.py::test_grow": NOT_RAISED,
    "tests/test_pkg.py::test_grow_twice": DEEP,
    "tests/test_pkg.py::test_ready": READY,
}
PATCH = diff_trees({"pkg/core.py": BROKEN["pkg/core.py"]}, {"pkg/core.py": SOLVED["pkg/core.py"]})


def read(test: str, message: str) -> tuple[str, str, str, str]:
    failure = read_failure(f"tests/test_pkg.py::{test}", message, BROKEN)
    return failure.call, failure.observed, failure.expected, failure.error


@pytest.mark.parametrize(
    ("test", "message", "expected"),
    [
        ("test_plural_of_odd_words[ox-oxen]", PLURAL, ("pkg.pluralize('ox')", "'oxs'", "'oxen'", "")),
        ("test_plural_of_odd_words[ox-oxen]", LONG, ("pkg.pluralize('ox')", "'oxs'", "'oxen'", "")),
        ("test_box_holds_what_was_put", BOX, ("result['a']", "", "", "KeyError: 'a'")),
        ("test_grow", NOT_RAISED, ("grow(-1)", "no exception", "the exception `ValueError`", "")),
        ("test_grow_twice", DEEP, ("grow(2)", "3", "4", "")),
        ("test_ready", READY, ("Box(0).is_ready()", "True", "a false value", "")),
        ("test_grow", "", ("", "", "", "")),
        ("test_gone", "E   ImportError: no module", ("", "", "", "ImportError: no module")),
    ],
)
def test_a_failure_text_tells_call_outcome_and_expectation(
    test: str, message: str, expected: tuple[str, str, str, str]
) -> None:
    assert read(test, message) == expected


@given(st.text(max_size=300))
@example("E   assert\n\ntests/test_pkg.py:8: ")
@example("word = (\n\ntests/test_pkg.py:8: AssertionError")
@example("E   assert a == b == c\n\ntests/test_pkg.py:8: AssertionError")
def test_any_failure_text_is_read_without_an_error(message: str) -> None:
    for test in MESSAGES:
        assert read_failure(test, message, BROKEN).test == test


def test_lines_that_the_call_needs_come_along() -> None:
    failure = read_failure("tests/test_pkg.py::test_box_holds_what_was_put", BOX, BROKEN)
    assert failure.setup == "box = Box(3)\nresult = box.put('a', 'b')"
    assert failure.behaviour == "box holds what was put"


def test_interfaces_are_the_package_functions_that_tests_call() -> None:
    found = find_interfaces(SOLVED, "tests/test_pkg.py", ("pytest.raises", "grow", "pkg.pluralize", "len"))
    assert found == [("pkg.core.grow", "def grow(amount)"), ("pkg.pluralize", "def pluralize(word: str) -> str")]
    assert find_signature(SOLVED, "pkg.Box") == "class Box(size, *, lid=None)"


def state(messages: dict[str, str], seed: int, broken: Tree = BROKEN, patch: str = PATCH) -> str:
    report = state_failure(
        package="pkg",
        version="1.0",
        broken=broken,
        solved=SOLVED,
        messages=messages,
        fail_to_pass=sorted(messages),
        patch=patch,
        seed=seed,
    )
    return report.statement.text


def test_a_statement_names_interface_and_example_in_bounds_for_every_seed() -> None:
    for seed in range(30):
        for messages in (MESSAGES, {key: MESSAGES[key] for key in list(MESSAGES)[:1]}, dict.fromkeys(MESSAGES, "")):
            text = state(messages, seed)
            assert MIN_WORDS <= len(text.split()) <= MAX_WORDS
            assert "pkg" in text and find_leaks(text, PATCH) == []
    assert "`grow(2)`" in state(MESSAGES, 0)


def test_phrasing_differs_by_seed_and_repeats_for_the_same() -> None:
    assert len({state(MESSAGES, seed) for seed in range(20)}) > 10
    assert state(MESSAGES, 7) == state(MESSAGES, 7)


def test_an_example_that_gives_an_added_line_away_is_left_out() -> None:
    text = "raise ValueError('amount below zero is refused here')"
    message = f"def test_grow():\n>       grow(-1)\nE       RuntimeError: {text}\n\ntests/test_pkg.py:19: RuntimeError"
    messages = {"tests/test_pkg.py::test_grow": message}
    broken = SOLVED | {"pkg/core.py": b"def grow(amount):\n    return amount * 2\n"}
    patch = diff_trees({"pkg/core.py": broken["pkg/core.py"]}, {"pkg/core.py": SOLVED["pkg/core.py"]})
    assert "refused here" in state(messages, 1, broken, "")
    assert "refused here" not in state(messages, 1, broken, patch)


def test_leaks_are_whole_lines_and_long_parts_but_not_what_the_broken_code_has_too() -> None:
    patch = diff_trees(
        {"a.py": b"def f(x):\n    return combine(x, 'a rather long piece of text', 1)\n"},
        {"a.py": b"def f(x):\n    return combine(x, 'a rather long piece of text', 2)\n    # and a secret hint here\n"},
    )
    assert find_leaks("It should return combine(x, 'a rather long piece of text', 2) now.", patch) != []
    assert find_leaks("I wonder why (x, 'a rather long piece of text', 2 is absent", patch) != []
    assert find_leaks("there is # and a secret\n hint here", patch) == ["# and a secret hint here"]
    assert find_leaks("I see 'a rather long piece of text' in the output", patch) == []
