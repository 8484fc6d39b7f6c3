"""Trajectory -> Verdict if the agent did not end the run itself: such a run teaches no ending."""

from filters.config import FilterConfig
from filters.verdict import verdict
from pipeline.types import Trajectory, Verdict

NAME = "unfinished"
VERSION = 1


def check(trajectory: Trajectory, config: FilterConfig) -> list[Verdict]:
    """Reasons: step_limit, wall_limit, format_error, context_limit, error."""
    if trajectory.exit_status == "submitted":
        return []
    evidence = f"ended by {trajectory.native_exit} after {trajectory.num_steps} steps"
    return [verdict(trajectory, NAME, VERSION, config.unfinished, trajectory.exit_status, evidence=evidence)]
