"""Reply of a model and the tools it was offered -> is every tool call well formed, and if not, what is wrong."""

import json
from typing import Literal, NamedTuple

import jsonschema
from referencing import Registry
from referencing.exceptions import Unresolvable

from pipeline.errors import UserError
from pipeline.types import Json, ToolCall

ParseStatus = Literal["ok", "no_tool_call", "invalid_json", "unknown_tool", "schema_violation"]

OFFLINE: Registry = Registry()
"""Resolves `$ref` inside a schema only: a schema must never make this process fetch a URL."""


CALL_MARKS = ("<tool_call>", "<|START_ACTION|>")
"""How a call begins in the text of models that have one; servers remove it from every call they can read."""


class CallCheck(NamedTuple):
    """What is wrong with one tool call, if anything."""

    status: ParseStatus
    reason: str
    """One sentence; empty when ok."""


def parse_status(reply: dict[str, Json], tools: list[Json]) -> ParseStatus:
    """Assistant message of the wire and tool schemas -> status of its first malformed call, or ok.

    Without tools plain text is what was asked for: ok. A call that the server could not read stays in the text.
    """
    calls = calls_of(reply)
    if not calls and tools:
        return "invalid_json" if any(mark in str(reply.get("content")) for mark in CALL_MARKS) else "no_tool_call"
    return next((check.status for check in check_calls(calls, tools) if check.status != "ok"), "ok")


def calls_of(reply: dict[str, Json]) -> list[ToolCall]:
    """Assistant message of the wire -> its tool calls, arguments as raw text."""
    return [
        ToolCall(
            id=_text(call.get("id")),
            name=_text(call.get("function", {}).get("name")),
            arguments=_text(call.get("function", {}).get("arguments")),
        )
        for call in reply.get("tool_calls") or []
    ]


def _text(value: Json) -> str:
    """Some servers send arguments as an object; its JSON text is what they meant."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def check_calls(calls: list[ToolCall], tools: list[Json]) -> list[CallCheck]:
    """Tool calls and tool schemas in OpenAI's form -> one check a call, in order.

    Raises: UserError when a schema itself is invalid.
    """
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    return [_check(call, schemas) for call in calls]


def _check(call: ToolCall, schemas: dict[str, Json]) -> CallCheck:
    if call.name not in schemas:
        return CallCheck("unknown_tool", f"there is no tool {call.name!r}: {', '.join(sorted(schemas)) or 'none'}")
    try:
        arguments = strict_json(call.arguments)
    except ValueError as error:
        return CallCheck("invalid_json", f"arguments of {call.name!r} are not JSON: {error}")
    if not isinstance(arguments, dict):
        return CallCheck("schema_violation", f"arguments of {call.name!r} are not an object")
    try:
        validator = jsonschema.Draft202012Validator(schemas[call.name], registry=OFFLINE)
        validator.check_schema(schemas[call.name])
        errors = sorted(validator.iter_errors(arguments), key=lambda error: list(map(str, error.path)))
    except (jsonschema.SchemaError, Unresolvable) as error:
        raise UserError(f"the schema of tool {call.name!r} is invalid ({error}): mend the harness's tools") from None
    if errors:
        return CallCheck("schema_violation", f"arguments of {call.name!r}: {errors[0].message}")
    return CallCheck("ok", "")


def strict_json(text: str) -> Json:
    """Text -> value, by the letter of RFC 8259: no NaN, no double keys, nothing that UTF-8 cannot carry.

    Raises: ValueError, also for input that is too deep or has numbers too long to read.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")


def _unique_keys(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        raise ValueError("an object has a key twice")
    return dict(pairs)
