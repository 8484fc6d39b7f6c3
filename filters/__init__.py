"""Trajectory -> Verdicts: what is wrong with it, where, and what follows from that."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from filters import invalid_tool_call, repetition, special_tokens, unfinished, unresolved
from filters.config import FilterConfig
from filters.verdict import verdict
from pipeline.types import Trajectory, Verdict


class Filter(NamedTuple):
    """One registered filter."""

    version: int
    check: Callable[[Trajectory, FilterConfig], list[Verdict]]


FILTERS: dict[str, Filter] = {
    invalid_tool_call.NAME: Filter(invalid_tool_call.VERSION, invalid_tool_call.check),
    special_tokens.NAME: Filter(special_tokens.VERSION, special_tokens.check),
    repetition.NAME: Filter(repetition.VERSION, repetition.check),
    unresolved.NAME: Filter(unresolved.VERSION, unresolved.check),
    unfinished.NAME: Filter(unfinished.VERSION, unfinished.check),
}
"""Name, which is also its key in FilterConfig -> filter."""
ALL = "all"
"""Stands in the row of a trajectory without findings, in place of a filter's name."""


def apply(trajectory: Trajectory, config: FilterConfig) -> list[Verdict]:
    """Trajectory -> findings of every filter; one row with action "keep" if there are none."""
    found = [row for entry in FILTERS.values() for row in entry.check(trajectory, config)]
    if found:
        return list({row.id: row for row in found}.values())
    passed = " ".join(f"{name}={entry.version}" for name, entry in FILTERS.items())
    return [verdict(trajectory, ALL, 1, "keep", "clean", evidence=passed)]


def is_dropped(verdicts: Iterable[Verdict]) -> bool:
    """Verdicts of one trajectory -> whether it must not become a sample."""
    return any(row.action == "drop" for row in verdicts)
