"""Trajectory -> Verdicts about calls that no tool can carry out."""

from filters.config import FilterConfig
from filters.tool_calls import invalid_calls
from filters.verdict import verdict
from pipeline.types import Trajectory, Verdict

NAME = "invalid_tool_call"
VERSION = 1


def check(trajectory: Trajectory, config: FilterConfig) -> list[Verdict]:
    """Reasons: no_tool_call, invalid_json, unknown_tool, schema_violation."""
    return [
        verdict(
            trajectory,
            NAME,
            VERSION,
            config.invalid_tool_call,
            call.reason,
            message=call.message,
            evidence=call.evidence,
        )
        for call in invalid_calls(trajectory)
    ]
