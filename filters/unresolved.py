"""Trajectory -> Verdict if its tests did not pass: selection for SFT, not a pathology."""

from filters.config import FilterConfig
from filters.verdict import verdict
from pipeline.types import Trajectory, Verdict

NAME = "unresolved"
VERSION = 1


def check(trajectory: Trajectory, config: FilterConfig) -> list[Verdict]:
    """Reasons: forged (the result was tampered with), unresolved."""
    result = trajectory.result
    if not result.is_forged and result.reward > 0:
        return []
    reason = "forged" if result.is_forged else "unresolved"
    return [verdict(trajectory, NAME, VERSION, config.unresolved, reason, evidence=result.reason)]
