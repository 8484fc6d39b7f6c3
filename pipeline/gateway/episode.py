"""Call log -> EpisodeRecord: the messages, tools and calls of one rollout, derived from the log alone."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Literal

from pipeline.codec import record_from_plain
from pipeline.gateway.wire import Body, LoggedCall, has_reply, message_of, model_call
from pipeline.types import Json, Message, ModelCall

Limit = Literal["", "calls", "tokens", "context"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one episode may use."""

    max_calls: int
    max_tokens: int
    """Sampled tokens over all calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One rollout's private door to its teacher."""

    url: str
    """Base URL for the harness; whoever knows it can call."""
    id: str
    """Name of its log; opens nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """What the gateway saw of one episode."""

    tools: list[Json]
    messages: list[Message]
    calls: list[ModelCall]
    limit: Limit
    """The budget that ended it; empty if none did."""
    fault: str
    """Why it failed through no fault of the model; empty if it did not."""
    fault_status: int
    """The teacher's HTTP status in that case; 0 where it sent none."""


def episode_record(log: list[LoggedCall], limit: Limit = "") -> EpisodeRecord:
    """Calls in order, and the budget that ended them -> record."""
    failed = next((call for call in log if call.fault), None)
    return EpisodeRecord(
        tools=next((call.request["tools"] for call in log if call.request.get("tools")), []),
        messages=transcript(log),
        calls=[model_call(call) for call in log if not call.fault],
        limit=limit,
        fault=failed.fault if failed else "",
        fault_status=failed.http_status if failed else 0,
    )


def transcript(log: list[LoggedCall]) -> list[Message]:
    """Calls in order -> every message once, in the order it came to be.

    A reply stands as the teacher wrote it, also where the harness left it out of later requests; what the harness
    sent back in its place is not repeated. Of a rewritten history only the messages after the common start are added.
    """
    messages: list[Message] = []
    previous: list[Body] = []
    for place, call in enumerate(log):
        given = call.request["messages"]
        num_shared = next((i for i, (a, b) in enumerate(zip(previous, given, strict=False)) if a != b), None)
        if num_shared is None:
            num_shared = min(len(previous), len(given))
        added = given[num_shared:]
        if place and has_reply(log[place - 1]) and added and added[0]["role"] == "assistant":
            added = added[1:]
        messages += [message_of(wire) for wire in added]
        if has_reply(call):
            messages.append(message_of(call.response["choices"][0]["message"]))
        previous = given
    return messages


def read_log(path: Path) -> list[LoggedCall]:
    """File -> its complete lines; a line cut by a kill is left out."""
    *lines, _ = path.read_text(encoding="utf-8").split("\n")
    return [record_from_plain(LoggedCall, json.loads(line)) for line in lines]


@dataclass(slots=True)
class CallLog:
    """Append-only file of one episode's calls, flushed line by line, free of secrets."""

    file: IO[str]
    secrets: list[str]
    calls: list[LoggedCall] = field(default_factory=list)

    def append(self, call: LoggedCall) -> LoggedCall:
        """Call -> the same as written: on disk before the harness sees the reply."""
        line = json.dumps(asdict(call), ensure_ascii=False)
        for secret in self.secrets:
            line = line.replace(json.dumps(secret, ensure_ascii=False)[1:-1], "[secret]")
        line = line.encode(errors="replace").decode()
        self.file.write(line + "\n")
        self.file.flush()
        written = record_from_plain(LoggedCall, json.loads(line))
        self.calls.append(written)
        return written

    def num_tokens(self) -> int:
        """Sampled tokens of all calls, as the teacher counted them."""
        usages = [call.response.get("usage") or {} for call in self.calls]
        return sum(usage.get("completion_tokens") or 0 for usage in usages)
