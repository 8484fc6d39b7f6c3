"""OpenAI chat wire: what goes to the teacher, what comes back to the harness, what is kept."""

import json
from dataclasses import dataclass
from typing import Any

from pipeline.gateway.tool_calls import calls_of, parse_status
from pipeline.types import Json, Message, ModelCall

Body = dict[str, Any]

REPLY_KEYS = ("id", "object", "created", "model", "usage", "system_fingerprint")
TOKEN_KEYS = ("logprobs", "top_logprobs", "return_token_ids", "include_reasoning")
"""What decides whether tokens come back: the gateway's choice, not the harness's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The teacher as an address."""

    url: str
    """Base URL, up to and with `/v1`."""
    model: str
    """Name the teacher serves the model under."""
    api_key: str = ""
    returns_tokens: bool = False
    """It understands `return_token_ids` and `logprobs` (vLLM)."""
    policy_version: str = ""
    timeout_sec: float = 600.0
    """Longest wait for one reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How replies are drawn; overrides whatever the harness asks for."""

    temperature: float
    top_p: float
    max_tokens: int
    """Most tokens in one reply."""
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCall:
    """One line of the call log: everything else about an episode is derived from these."""

    seq: int
    started: float
    """Seconds since the epoch."""
    seconds: float
    request: Body
    """As the harness sent it."""
    response: Body
    """As the teacher sent it, token ids included; empty when there was none."""
    http_status: int
    """0 when the teacher could not be reached."""
    policy_version: str
    fault: str = ""
    """Why the episode cannot go on through no fault of the model; empty when all is well."""


def upstream_request(body: Body, upstream: Upstream, sampling: Sampling, remaining_tokens: int) -> Body:
    """Request of the harness -> request to the teacher: never streaming, sampled by our rules, with token ids."""
    dropped = {"stream", "stream_options", "max_completion_tokens", "n", *TOKEN_KEYS}
    request = {key: value for key, value in body.items() if key not in dropped}
    asked = body.get("max_completion_tokens") or body.get("max_tokens") or sampling.max_tokens
    request |= {
        "model": upstream.model,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": min(asked, sampling.max_tokens, remaining_tokens),
    }
    if upstream.returns_tokens:
        # No seed for vLLM: on a CPU, a seeded request whose prompt is read in parts ends the whole server (0.32).
        request.pop("seed", None)
        return request | {"logprobs": True, "return_token_ids": True}
    return request | {"seed": sampling.seed}


def harness_reply(body: Body, reply: Body) -> Body:
    """Request of the harness and reply of the teacher -> the reply without what the harness did not ask for."""
    choice = reply["choices"][0]
    kept = {key: choice.get(key) for key in ("index", "message", "finish_reason")}
    result = {key: reply[key] for key in REPLY_KEYS if key in reply}
    if body.get("logprobs"):
        kept["logprobs"] = choice.get("logprobs")
    if body.get("return_token_ids"):
        kept["token_ids"] = choice.get("token_ids")
        result["prompt_token_ids"] = reply.get("prompt_token_ids")
    return result | {"choices": [kept]}


def event_stream(reply: Body, *, with_usage: bool) -> bytes:
    """Complete reply -> the server-sent events of an equal streamed one: all of it, the end, the usage."""
    head = {key: reply[key] for key in ("id", "created", "model") if key in reply} | {"object": "chat.completion.chunk"}
    choice = reply["choices"][0]
    delta = {key: value for key, value in choice["message"].items() if value is not None}
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(delta["tool_calls"])]
    chunks = [
        head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        head | {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]},
    ]
    if with_usage:
        chunks.append(head | {"choices": [], "usage": reply.get("usage")})
    lines = [json.dumps(chunk, ensure_ascii=False) for chunk in chunks] + ["[DONE]"]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def limit_error(reason: str) -> Body:
    """Why an episode is over -> the one error that every harness knows as the end: a full context."""
    message = f"This model's maximum context length is reached: {reason}"
    return {"error": {"message": message, "type": "invalid_request_error", "code": "context_length_exceeded"}}


def is_context_error(status: int, text: str) -> bool:
    """Whether a teacher's refusal says that the prompt is too long, which is the rollout's own doing."""
    return status == 400 and any(mark in text.lower() for mark in ("context length", "context_length_exceeded"))


def wrong_reply(reply: Any, *, wants_tokens: bool) -> str:
    """Reply with status 200 -> what makes it unusable, empty if nothing."""
    if not isinstance(reply, dict) or not reply.get("choices") or "message" not in reply["choices"][0]:
        return "the teacher's reply holds no choice with a message"
    if wants_tokens:
        token_ids, logprobs = _sampled(reply)
        if not token_ids or len(token_ids) != len(logprobs):
            return f"the teacher sent {len(token_ids)} token ids and {len(logprobs)} logprobs: they must pair up"
        if not reply.get("prompt_token_ids"):
            return "the teacher sent no prompt_token_ids"
    return ""


def _sampled(reply: Body) -> tuple[list[int], list[float]]:
    choice = reply["choices"][0]
    content = (choice.get("logprobs") or {}).get("content") or []
    return choice.get("token_ids") or [], [entry["logprob"] for entry in content]


def model_call(call: LoggedCall) -> ModelCall:
    """Line of the log -> its record."""
    tools = call.request.get("tools") or []
    if not has_reply(call):
        reply: Body = {}
        token_ids: list[int] = []
        logprobs: list[float] = []
        text, finish_reason = "", "error"
    else:
        choice = call.response["choices"][0]
        reply, text, finish_reason = choice["message"], raw_text(choice), choice.get("finish_reason") or ""
        token_ids, logprobs = _sampled(call.response)
    return ModelCall(
        seq=call.seq,
        num_messages=len(call.request["messages"]),
        prompt_token_ids=call.response.get("prompt_token_ids") or [] if token_ids else [],
        sampled_token_ids=token_ids,
        logprobs=logprobs if token_ids else [],
        text=text,
        finish_reason=finish_reason,
        parse_status=parse_status(reply, tools),
        policy_version=call.policy_version,
        http_status=call.http_status,
        seconds=call.seconds,
    )


def has_reply(call: LoggedCall) -> bool:
    """Whether the teacher answered with a message."""
    return call.http_status == 200 and not call.fault


def raw_text(choice: Body) -> str:
    """Choice -> what the model wrote before any parser: its tokens where they are known, else the message as sent."""
    tokens = (choice.get("logprobs") or {}).get("content") or []
    if tokens and all(token.get("bytes") is not None for token in tokens):
        return b"".join(bytes(token["bytes"]) for token in tokens).decode(errors="replace")
    message = {key: value for key, value in choice["message"].items() if value}
    if message.keys() <= {"role", "content"}:
        return message.get("content", "")
    return json.dumps(message, ensure_ascii=False)


def message_of(wire: Body) -> Message:
    """Message of the wire -> record; content given in parts is joined."""
    content = wire.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    return Message(
        role=wire["role"],
        content=content,
        reasoning=reasoning_of(wire),
        tool_calls=calls_of(wire),
        tool_call_id=wire.get("tool_call_id") or "",
    )


def reasoning_of(wire: Body) -> str:
    """Message of the wire -> its reasoning; servers name the field in two ways."""
    value: Json = wire.get("reasoning_content") or wire.get("reasoning")
    return value if isinstance(value, str) else ""
