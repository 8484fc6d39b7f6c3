"""Syntax-tree bugs: each kind does what its name says, one place only, the same for the same seed."""

import difflib

import libcst as cst
import pytest

from pipeline.tasks.mutations import KINDS, apply_site, find_sites, make_bugs

SOURCE = '''"""Module."""
LIMIT = 5


def clamp(value, low, high):  # keep   spacing
    """Value -> value in range 3."""
    if value < low:
        return   low
    if value > high and high != 7:
        log(value, high)
        value = value + 1
    return min(value, high)


class Box:
    def size(self, n: Literal[9]) -> int:
        total = 0
        for item in range(n):
            total += item
        return total
'''


def mutants(source: str, kind: str) -> set[str]:
    """Changed lines of every bug of one kind, as written after the change."""
    module = cst.parse_module(source)
    found = set()
    for site in find_sites(module):
        if site.kind == kind:
            lines = difflib.ndiff(source.splitlines(), apply_site(module, site).splitlines())
            found.add(" | ".join(line[2:].strip() for line in lines if line[:2] in ("+ ", "- ")))
    return found


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("flip_comparison", "if value < low: | if value <= low:"),
        (
            "swap_boolean_operator",
            "if value > high and high != 7: | if value > high or high != 7:",
        ),
        ("negate_condition", "if value < low: | if not value < low:"),
        ("shift_constant", "value = value + 1 | value = value + 2"),
        ("swap_arithmetic_operator", "value = value + 1 | value = value - 1"),
        ("swap_arithmetic_operator", "total += item | total -= item"),
        ("drop_statement", "log(value, high)"),
        ("swap_arguments", "return min(value, high) | return min(high, value)"),
    ],
)
def test_each_kind_makes_its_change(kind: str, expected: str) -> None:
    assert expected in mutants(SOURCE, kind)


def test_text_outside_functions_docstrings_and_annotations_stay() -> None:
    changed = set().union(*(mutants(SOURCE, kind) for kind in KINDS))
    assert "total = 0 | total = 1" in changed
    assert not any("LIMIT" in line or "range 3" in line or "Literal" in line for line in changed)


def test_a_condition_with_not_loses_it_and_a_loose_one_gets_brackets() -> None:
    assert mutants("def f(a, b):\n    if not a:\n        return b\n", "negate_condition") == {"if not a: | if a:"}
    assert "if a or b: | if not (a or b):" in mutants(
        "def f(a, b):\n    if a or b:\n        return b\n", "negate_condition"
    )


def test_the_only_statement_of_a_branch_is_replaced_by_pass() -> None:
    source = "def f(a):\n    if a:\n        print(a)\n    else:\n        a += 1\n    return a\n"
    assert "print(a) | pass" in mutants(source, "drop_statement")


def test_same_seed_same_bugs_and_each_changes_one_file_only() -> None:
    tree = {"pkg/a.py": SOURCE.encode(), "tests/test_a.py": SOURCE.encode(), "setup.py": SOURCE.encode()}
    first, second = make_bugs(tree, 6, 3), make_bugs(tree, 6, 3)
    assert first == second
    assert [bug.path for bug in first] == ["pkg/a.py"] * 6
    assert make_bugs(tree, 6, 4) != first


def test_bugs_are_spread_over_functions_and_kinds() -> None:
    bugs = make_bugs({"pkg/a.py": SOURCE.encode()}, 4, 0)
    assert [bug.function for bug in bugs].count("Box.size") == 2
    assert len({bug.kind for bug in bugs}) == 4


def test_broken_source_gives_no_bugs() -> None:
    assert make_bugs({"pkg/a.py": b"def f(:\n"}, 4, 0) == []
