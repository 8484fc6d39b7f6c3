"""Numbers -> coordinates of the report's drawings; the templates hold the markup."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MAX_POINTS = 600
"""A longer curve is drawn as means of equal windows."""
NICE_STEPS = (1, 2, 2.5, 5, 10)


class Tick(NamedTuple):
    """One mark of an axis."""

    position: float
    """Pixels."""
    label: str


class Point(NamedTuple):
    """One value of a curve, in pixels."""

    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """A curve with axes, in pixels from the top left."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    points: list[Point]
    window: int
    """Values that one point is the mean of."""
    reference: float | None
    """Height of the reference line, None if it lies outside the chart."""

    @property
    def path(self) -> str:
        """The curve as SVG path data."""
        return "M" + " L".join(f"{point.x:.1f},{point.y:.1f}" for point in self.points)


def nice_ticks(low: float, high: float, most: int) -> list[float]:
    """Range -> at most `most` + 1 round values inside it, evenly spaced."""
    if high <= low:
        return [low]
    rough = (high - low) / most
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(nice * magnitude for nice in NICE_STEPS if nice * magnitude >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(place * step, 10) for place in range(first, last + 1)]


def line_chart(values: Sequence[float], *, reference: float | None = None) -> LineChart:
    """Values per step, counted from 1 -> curve; the vertical axis starts at 0 so that its height can be compared.

    `reference` draws a level line; it never stretches the axis beyond a tenth above the values.
    """
    width, height, left, right, top, bottom = 960.0, 330.0, 52.0, 944.0, 16.0, 286.0
    window = math.ceil(len(values) / MAX_POINTS)
    means = [sum(part) / len(part) for part in _windows(values, window)]
    high = max(means) * 1.1
    if reference is not None and reference <= high:
        high = max(high, reference * 1.05)
    last = max(len(values), 2)

    def across(step: float) -> float:
        return left + (step - 1) / (last - 1) * (right - left)

    def down(value: float) -> float:
        return bottom - value / high * (bottom - top)

    middle = (window + 1) / 2
    steps = sorted({1, *(round(step) for step in nice_ticks(1, last, 8) if step >= 1 and step == round(step))})
    if len(steps) > 1 and steps[1] - 1 < (last - 1) / 20:
        steps.pop(1)
    return LineChart(
        width=width,
        height=height,
        left=left,
        right=right,
        top=top,
        bottom=bottom,
        x_ticks=[Tick(across(step), f"{step:,}") for step in steps],
        y_ticks=[Tick(down(value), f"{value:g}") for value in nice_ticks(0, high, 6)],
        points=[Point(across(place * window + middle), down(mean)) for place, mean in enumerate(means)],
        window=window,
        reference=down(reference) if reference is not None and reference <= high else None,
    )


def _windows(values: Sequence[float], size: int) -> list[Sequence[float]]:
    return [values[start : start + size] for start in range(0, len(values), size)]
