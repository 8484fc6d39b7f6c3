"""MixManifest -> rows that people read: every share beside what was asked of it."""

from typing import NamedTuple

from mixes.manifest import MixManifest


class Row(NamedTuple):
    """One slice of the mix."""

    slice: str
    asked: str
    """Operator, share, unit and base."""
    trainable_share: float
    total_share: float
    error: float
    tolerance: float
    num_samples: int
    num_tokens: int
    num_trainable: int
    is_met: bool


def composition(manifest: MixManifest) -> list[Row]:
    """Manifest -> one row per share asked for, and the whole as the last row."""
    rows = [
        Row(
            one.name,
            f"{one.op} {one.share:.1%} of {one.base} ({one.unit} tokens)",
            one.trainable_share,
            one.total_share,
            one.error,
            one.tolerance,
            one.num_samples,
            one.num_tokens,
            one.num_trainable,
            abs(one.error) <= one.tolerance,
        )
        for one in manifest.constraints
    ]
    budget = manifest.budget
    whole = Row(
        "the whole",
        f"{budget.asked} {budget.unit} tokens",
        1.0,
        1.0,
        0.0,
        0.0,
        manifest.num_samples,
        manifest.num_tokens,
        manifest.num_trainable,
        True,
    )
    return [*rows, whole]
