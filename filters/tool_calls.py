"""Trajectory -> its invalid tool calls: the one predicate, for the filter of SFT and for RL's zero reward.

Stricter than the parsers of model servers: the raw arguments must be JSON as they stand, the tool must be offered,
and the arguments must fit its schema.
"""

from typing import NamedTuple

from filters.verdict import replies
from pipeline.gateway.tool_calls import check_calls
from pipeline.types import Json, Message, Trajectory


class InvalidCall(NamedTuple):
    """One call, or one turn that lacks a call, that no tool can carry out."""

    reason: str
    """no_tool_call | invalid_json | unknown_tool | schema_violation."""
    message: int
    """Index of the message; -1 for a reply that the harness left out of its history."""
    evidence: str


def invalid_calls(trajectory: Trajectory) -> list[InvalidCall]:
    """Trajectory -> every invalid call, in order; empty for a clean one.

    Source: North Mini Code: reward 0 for an invalid tool call or unparseable output.
    """
    found: dict[tuple[int, str], InvalidCall] = {}
    turns = replies(trajectory)
    for index, message in turns:
        for status, evidence in _statuses(message, trajectory.tools):
            found.setdefault((index, status), InvalidCall(status, index, evidence))
    places = {index for index, _ in turns}
    for call in trajectory.calls:
        if call.parse_status != "ok" and call.http_status == 200:
            index = call.num_messages if call.num_messages in places else -1
            found.setdefault((index, call.parse_status), InvalidCall(call.parse_status, index, call.text))
    if turns and trajectory.exit_status == "submitted":
        # A harness that accepted the last turn as the end of the run required no call there.
        found.pop((turns[-1][0], "no_tool_call"), None)
    return sorted(found.values(), key=lambda call: (call.message, call.reason))


def has_invalid_call(trajectory: Trajectory) -> bool:
    """Trajectory -> whether RL must give it no reward."""
    return bool(invalid_calls(trajectory))


def _statuses(message: Message, tools: list[Json]) -> list[tuple[str, str]]:
    """Reply -> (status, evidence) of each of its calls that is not ok, and of a missing one."""
    if not message.tool_calls:
        return [("no_tool_call", message.content)] if tools else []
    checks = check_calls(message.tool_calls, tools)
    return [(check.status, check.reason) for check in checks if check.status != "ok"]
