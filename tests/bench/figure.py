"""What was measured -> one row of a bench: a value beside the peer's, and how many times better ours is."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One row. Names are part of the interface."""

    name: str
    value: float | None
    unit: str
    peer: str
    """Who the peer is; empty if there is none."""
    peer_value: float | None
    ratio: float | None
    """Above 1 is better than the peer, whatever the unit."""
    reason: str = ""
    """Why a number is missing."""


def compare(
    name: str, unit: str, value: float, peer: str, peer_value: float | None, *, more_is_better: bool, reason: str = ""
) -> Figure:
    """Two measurements -> figure; without the peer's value, `reason` says why."""
    better, worse = (value, peer_value) if more_is_better else (peer_value, value)
    ratio = better / worse if better is not None and worse else None
    return Figure(name=name, value=value, unit=unit, peer=peer, peer_value=peer_value, ratio=ratio, reason=reason)


def timed(work: Callable[[], T], *, repeats: int = 1) -> tuple[float, T]:
    """Work -> best wall seconds of its repeats, and its last result."""
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - started)
    return best, result
