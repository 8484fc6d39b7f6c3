"""Mix lock and its samples -> every share beside what was asked of it, recounted from the samples."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from flows.report.charts import Tick, nice_ticks
from flows.report.evidence import Evidence
from mixes.manifest import BudgetReached, Packed, Reached

DIMENSIONS = ("domain", "harness", "repo", "teacher")
LEFT, RIGHT, ROW_HEIGHT, TOP = 190.0, 700.0, 52.0, 8.0
"""Pixels of the drawing: where bars begin and end, height of one share, room above."""


class Bars(NamedTuple):
    """One share of the drawing, in pixels."""

    y: float
    trainable: float
    """Width."""
    total: float
    """Width."""
    target: float
    """Place on the horizontal axis."""
    target_top: float
    """The target stands across the bar of the unit it was asked in."""
    reached: Reached


class Part(NamedTuple):
    """What one value of one dimension contributes, repeats counted."""

    value: str
    num_samples: int
    num_tokens: int
    num_trainable: int
    trainable_share: float
    total_share: float


class Left(NamedTuple):
    """Samples that are not in the mix, for one reason."""

    reason: str
    num_samples: int
    num_tokens: int
    num_trainable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """The mix against its intent."""

    name: str
    stage: str
    budget: BudgetReached
    packing: Packed
    bars: list[Bars]
    ticks: list[Tick]
    height: float
    parts: dict[str, list[Part]]
    """Dimension -> its values, most trainable tokens first."""
    left: list[Left]
    num_samples: int
    num_different: int
    """Samples, repeats not counted."""
    num_tokens: int
    num_trainable: int
    is_recounted: bool
    """Whether the samples add up to what the lock says."""


def composition(evidence: Evidence) -> Composition:
    """Lock for what was asked, samples for what is there."""
    mix = evidence.mix
    parts = {name: _parts(evidence, name) for name in DIMENSIONS}
    recounted = {(name, part.value): (part.num_tokens, part.num_trainable) for name in parts for part in parts[name]}
    locked = {
        (part.dimension, part.value): (part.num_tokens, part.num_trainable)
        for part in mix.composition
        if part.dimension in DIMENSIONS
    }
    bars, ticks = _drawing(mix.constraints)
    return Composition(
        name=mix.name,
        stage=mix.stage,
        budget=mix.budget,
        packing=mix.packing,
        bars=bars,
        ticks=ticks,
        height=TOP + ROW_HEIGHT * len(bars) + 26,
        parts=parts,
        left=[
            Left(reason, one.num_samples, one.num_tokens, one.num_trainable)
            for reason, one in sorted(mix.excluded.items())
        ],
        num_samples=mix.num_samples,
        num_different=len(set(mix.sample_ids)),
        num_tokens=mix.num_tokens,
        num_trainable=mix.num_trainable,
        is_recounted=recounted == locked,
    )


def _parts(evidence: Evidence, dimension: str) -> list[Part]:
    rows = evidence.rows(
        f"SELECT {dimension} AS value, count(*) AS num_samples, sum(num_tokens)::BIGINT AS num_tokens, "
        "sum(num_trainable)::BIGINT AS num_trainable FROM mix GROUP BY value ORDER BY num_trainable DESC, value"
    )
    total, trainable = sum(row["num_tokens"] for row in rows), sum(row["num_trainable"] for row in rows)
    return [
        Part(**row, trainable_share=row["num_trainable"] / trainable, total_share=row["num_tokens"] / total)
        for row in rows
    ]


def _drawing(constraints: list[Reached]) -> tuple[list[Bars], list[Tick]]:
    """Shares -> bars on one axis that ends at the next tenth above the largest."""
    largest = max((max(one.share, one.trainable_share, one.total_share) for one in constraints), default=1.0)
    high = max(0.1, math.ceil(largest * 10 - 1e-9) / 10)
    scale = (RIGHT - LEFT) / high
    bars = []
    for place, one in enumerate(constraints):
        y = TOP + place * ROW_HEIGHT
        bars.append(
            Bars(
                y=y,
                trainable=one.trainable_share * scale,
                total=one.total_share * scale,
                target=LEFT + one.share * scale,
                target_top=y + 2 if one.unit == "trainable" else y + 22,
                reached=one,
            )
        )
    return bars, [Tick(LEFT + value * scale, f"{value * 100:g} %") for value in nice_ticks(0.0, high, 5)]
