"""The one judgement of a tool call: every status, its near miss, and hostile input."""

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipeline.errors import UserError
from pipeline.gateway.serving import serving
from pipeline.gateway.tool_calls import check_calls, parse_status
from pipeline.types import ToolCall

BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}, "timeout": {"type": "integer"}},
            "required": ["command"],
        },
    },
}
SUBMIT = {"type": "function", "function": {"name": "submit", "parameters": {"type": "object"}}}
BARE = {"type": "function", "function": {"name": "bare"}}


def reply(*calls: tuple[str, object]) -> dict:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": f"c{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for place, (name, arguments) in enumerate(calls)
        ],
    }


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("bash", '{"command": "ls"}', "ok"),
        ("bash", '{"command": "ls", "unknown": 1}', "ok"),
        ("submit", "{}", "ok"),
        ("bare", "{}", "ok"),
        ("bash", '{"command": "ls"', "invalid_json"),
        ("bash", "{'command': 'ls'}", "invalid_json"),
        ("bash", "", "invalid_json"),
        ("bash", None, "invalid_json"),
        ("bash", '{"command": NaN}', "invalid_json"),
        ("bash", '{"command": "a", "command": "b"}', "invalid_json"),
        ("bash", '{"command": "\\ud800"}', "invalid_json"),
        ("bash", '{"command": "ls"} trailing', "invalid_json"),
        ("bash", "[" * 100_000, "invalid_json"),
        ("bash", '{"command": "a", "timeout": ' + "9" * 5000 + "}", "invalid_json"),
        ("Bash", '{"command": "ls"}', "unknown_tool"),
        ("", "{}", "unknown_tool"),
        ("bash", "{}", "schema_violation"),
        ("bash", '{"command": 1}', "schema_violation"),
        ("bash", '{"command": "ls", "timeout": "5"}', "schema_violation"),
        ("bash", '"ls"', "schema_violation"),
        ("bare", "[]", "schema_violation"),
    ],
)
def test_each_malformed_call_has_its_own_status(name: str, arguments: object, expected: str) -> None:
    assert parse_status(reply((name, arguments)), [BASH, SUBMIT, BARE]) == expected


def test_arguments_sent_as_an_object_are_judged_by_their_content() -> None:
    assert parse_status(reply(("bash", {"command": "ls"})), [BASH]) == "ok"
    assert parse_status(reply(("bash", {"command": 1})), [BASH]) == "schema_violation"


def test_one_bad_call_among_good_ones_decides() -> None:
    good = ("bash", '{"command": "ls"}')
    assert parse_status(reply(good, good), [BASH]) == "ok"
    assert parse_status(reply(good, ("grep", "{}"), ("bash", "{")), [BASH]) == "unknown_tool"


def test_text_without_a_call_is_ok_only_where_no_tools_were_offered() -> None:
    text = {"role": "assistant", "content": "done", "tool_calls": None}
    assert parse_status(text, []) == "ok"
    assert parse_status(text, [BASH]) == "no_tool_call"


def test_call_that_the_server_could_not_read_is_a_broken_one_and_not_a_missing_one() -> None:
    text = {"role": "assistant", "content": 'so:\n<tool_call>\n{"name": "bash", "arguments": {\n</tool_call>'}
    assert parse_status(text, [BASH]) == "invalid_json"
    assert parse_status(text, []) == "ok"


def test_a_call_where_no_tools_were_offered_is_unknown() -> None:
    assert parse_status(reply(("bash", '{"command": "ls"}')), []) == "unknown_tool"


def test_the_reason_names_the_tool_and_the_fault() -> None:
    check = check_calls([ToolCall(id="1", name="bash", arguments="{}")], [BASH])[0]
    assert check.status == "schema_violation"
    assert "'bash'" in check.reason and "'command' is a required property" in check.reason


def test_an_invalid_schema_is_the_users_fault() -> None:
    tool = {"type": "function", "function": {"name": "x", "parameters": {"type": "objekt"}}}
    with pytest.raises(UserError, match="schema of tool 'x'"):
        parse_status(reply(("x", "{}")), [tool])


def test_a_schema_elsewhere_is_never_fetched() -> None:
    fetched = []

    async def schema(request: Request) -> Response:
        fetched.append(request.url.path)
        return JSONResponse({"type": "object"})

    with serving(Starlette(routes=[Route("/schema.json", schema)])) as url:
        tool = {"type": "function", "function": {"name": "x", "parameters": {"$ref": f"{url}/schema.json"}}}
        with pytest.raises(UserError, match="schema of tool 'x'"):
            parse_status(reply(("x", "{}")), [tool])
    assert fetched == []
