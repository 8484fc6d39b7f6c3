"""The gateway against a scripted upstream, an ASGI app that stands in for a remote model server."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipeline.gateway.episode import Budget, Episode, episode_record, read_log
from pipeline.gateway.server import MAX_ATTEMPTS, Gateway
from pipeline.gateway.serving import serving
from pipeline.gateway.wire import Sampling, Upstream

BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
SAMPLING = Sampling(temperature=0.7, top_p=0.9, max_tokens=100, seed=5)
ROOMY = Budget(max_calls=50, max_tokens=10_000)
USER = {"role": "user", "content": "mend it"}
SECRET = "sk-quite-secret-1234567890"


class ScriptedUpstream:
    """Answers with the given replies in turn and keeps what it was asked."""

    def __init__(self) -> None:
        self.replies: list[Response] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    def app(self) -> Starlette:
        async def chat(request: Request) -> Response:
            self.requests.append(await request.json())
            self.headers.append(dict(request.headers))
            return self.replies.pop(0)

        return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])


def reply(content: str | None = "hello", *, tokens: list[tuple[int, str]] | None = None, **message: Any) -> Response:
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": content, **message},
        "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
    }
    body: dict[str, Any] = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    body["usage"] = {"prompt_tokens": 3, "completion_tokens": len(tokens) if tokens else 7, "total_tokens": 10}
    if tokens:
        choice["token_ids"] = [token for token, _ in tokens]
        choice["logprobs"] = {
            "content": [
                {"token": text, "logprob": -0.25 * place, "bytes": list(text.encode()), "top_logprobs": []}
                for place, (_, text) in enumerate(tokens)
            ]
        }
        body["prompt_token_ids"] = [1, 2, 3]
    return JSONResponse(body)


def bash_call(arguments: str, call_id: str = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "bash", "arguments": arguments}}


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[ScriptedUpstream, str]]:
    upstream = ScriptedUpstream()
    with serving(upstream.app()) as url:
        yield upstream, f"{url}/v1"


@pytest.fixture
def scripted(served: tuple[ScriptedUpstream, str]) -> tuple[ScriptedUpstream, str]:
    upstream, _ = served
    upstream.replies, upstream.requests, upstream.headers = [], [], []
    return served


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("calls"), pause_sec=0) as running:
        yield running


Ask = Callable[..., httpx.Response]


@pytest.fixture
def ask() -> Iterator[Ask]:
    with httpx.Client(trust_env=False) as client:

        def send(episode: Episode, messages: list[dict[str, Any]] | None = None, **body: Any) -> httpx.Response:
            given = {"model": "any", "messages": messages or [USER]} | body
            return client.post(f"{episode.url}/chat/completions", json=given)

        yield send


def test_request_is_sampled_by_the_gateways_rules_and_never_streamed(scripted, gateway, ask) -> None:
    upstream, url = scripted
    upstream.replies = [reply(tokens=[(9, "hello")])]
    episode = gateway.open_episode(
        Upstream(url=url, model="real", api_key=SECRET, returns_tokens=True), SAMPLING, ROOMY
    )
    ask(episode, temperature=0.0, max_tokens=5000, stream=True, n=4, stop=["X"])
    sent = upstream.requests[0]
    assert (sent["model"], sent["temperature"], sent["top_p"]) == ("real", 0.7, 0.9)
    assert "seed" not in sent, "a seed can end a vLLM server on a CPU"
    assert sent["max_tokens"] == 100
    assert sent["logprobs"] is True and sent["return_token_ids"] is True
    assert sent["stop"] == ["X"]
    assert "stream" not in sent and "n" not in sent
    assert upstream.headers[0]["authorization"] == f"Bearer {SECRET}"


def test_token_ids_and_logprobs_are_recorded_and_kept_from_a_harness_that_did_not_ask(scripted, gateway, ask) -> None:
    upstream, url = scripted
    upstream.replies = [reply("hi", tokens=[(9, "hi"), (2, "<|im_end|>")])] * 2
    episode = gateway.open_episode(
        Upstream(url=url, model="m", returns_tokens=True, policy_version="w7"), SAMPLING, ROOMY
    )
    shown = ask(episode).json()
    asked = ask(episode, logprobs=True, return_token_ids=True).json()
    assert shown["choices"][0].keys() == {"index", "message", "finish_reason"}
    assert "prompt_token_ids" not in shown and shown["usage"]["total_tokens"] == 10
    assert asked["choices"][0]["token_ids"] == [9, 2] and asked["prompt_token_ids"] == [1, 2, 3]
    call = gateway.close_episode(episode).calls[0]
    assert (call.prompt_token_ids, call.sampled_token_ids, call.logprobs) == ([1, 2, 3], [9, 2], [0.0, -0.25])
    assert call.text == "hi<|im_end|>"
    assert call.policy_version == "w7"


def test_streaming_harness_gets_the_whole_reply_as_events(scripted, gateway, ask) -> None:
    upstream, url = scripted
    upstream.replies = [reply(None, tool_calls=[bash_call('{"command": "ls"}')])]
    episode = gateway.open_episode(Upstream(url=url, model="m"), SAMPLING, ROOMY)
    response = ask(episode, stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    first, second, last = map(json.loads, lines[:-1])
    assert first["choices"][0]["delta"]["tool_calls"] == [{"index": 0, **bash_call('{"command": "ls"}')}]
    assert second["choices"][0]["finish_reason"] == "tool_calls"
    assert last["usage"]["total_tokens"] == 10 and last["choices"] == []


def test_call_budget_ends_the_episode_with_the_error_harnesses_know(scripted, gateway, ask) -> None:
    upstream, url = scripted
    upstream.replies = [reply(), reply()]
    episode = gateway.open_episode(Upstream(url=url, model="m"), SAMPLING, Budget(max_calls=2, max_tokens=1000))
    assert [ask(episode).status_code for _ in range(3)] == [200, 200, 400]
    refused = ask(episode).json()["error"]
    assert refused["code"] == "context_length_exceeded" and "all 2 calls are spent" in refused["message"]
    record = gateway.close_episode(episode)
    assert record.limit == "calls" and len(record.calls) == 2 and not record.fault


def test_token_budget_first_clamps_and_then_ends(scripted, gateway, ask) -> None:
    upstream, url = scripted
    upstream.replies = [reply(), reply()]
    episode = gateway.open_episode(Upstream(url=url, model="m"), SAMPLING, Budget(max_calls=9, max_tokens=12))
    assert [ask(episode, max_tokens=50).status_code for _ in range(3)] == [200, 200, 400]
    assert [sent["max_tokens"] for sent in upstream.requests] == [12, 5]
    assert gateway.close_episode(episode).limit == "tokens"


def test_a_full_context_is_the_rollouts_own_end_and_passes_to_the_harness(scripted, gateway, ask) -> None:
    upstream, url = scripted
    error = {"error": {"message": "Input length (9000) exceeds model's maximum context length (8192)."}}
    upstream.replies = [JSONResponse(error, 400)]
    episode = gateway.open_episode(Upstream(url=url, model="m"), SAMPLING, ROOMY)
    response = ask(episode)
    assert response.status_code == 400 and response.json() == error
    record = gateway.close_episode(episode)
    assert record.limit == "context" and not record.fault
    assert record.calls[0].http_status == 400 and record.calls[0].finish_reason == "error"
    assert [message.role for message in record.messages] == ["user"]


def test_server_fault_is_repeated_and_goes_unnoticed_when_it_passes(scripted, gateway, ask) -> None:
    upstream, url = scripted
    upstream.replies = [JSONResponse({"error": "busy"}, 503), JSONResponse({"error": "slow down"}, 429), reply()]
    episode = gateway.open_episode(Upstream(url=url, model="m"), SAMPLING, ROOMY)
    assert ask(episode).status_code == 200
    record = gateway.close_episode(episode)
    assert not record.fault and len(record.calls) == 1


@pytest.mark.parametrize(
    ("replies", "expected", "num_asked"),
    [
        ([JSONResponse({"error": "dead"}, 500)] * MAX_ATTEMPTS, "answered 500", MAX_ATTEMPTS),
        ([JSONResponse({"error": "wrong key"}, 401)], "answered 401", 1),
        ([JSONResponse({"error": "no tools here"}, 400)], "answered 400", 1),
        ([JSONResponse({"choices": []})], "no choice", 1),
        ([Response("<html>")], "no choice", 1),
        ([reply()], "0 token ids", 1),
    ],
    ids=["server error", "wrong key", "refusal", "no choice", "not json", "no tokens"],
)
def test_a_teachers_fault_fails_the_episode_and_not_the_model(
    scripted, gateway, ask, replies: list[Response], expected: str, num_asked: int
) -> None:
    upstream, url = scripted
    upstream.replies = list(replies)
    episode = gateway.open_episode(Upstream(url=url, model="m", returns_tokens=True), SAMPLING, ROOMY)
    assert ask(episode).status_code == 503
    assert ask(episode).status_code == 503
    assert len(upstream.requests) == num_asked
    record = gateway.close_episode(episode)
    assert expected in record.fault
    assert record.calls == []


def test_unreachable_teacher_fails_the_episode(gateway, ask) -> None:
    episode = gateway.open_episode(Upstream(url="http://127.0.0.1:9/v1", model="m"), SAMPLING, ROOMY)
    assert ask(episode).status_code == 503
    assert "did not answer: ConnectError" in gateway.close_episode(episode).fault


def test_only_the_secret_address_opens_an_episode_and_only_while_it_lasts(scripted, gateway, ask) -> None:
    upstream, url = scripted
    upstream.replies = [reply()]
    episode = gateway.open_episode(Upstream(url=url, model="m"), SAMPLING, ROOMY)
    other = gateway.open_episode(Upstream(url=url, model="m"), SAMPLING, ROOMY)
    token = episode.url.split("/")[-2]
    assert len(token) >= 32 and token != other.url.split("/")[-2]
    by_id = Episode(url=episode.url.replace(token, episode.id), id=episode.id)
    assert ask(by_id).status_code == 404
    assert httpx.get(f"{episode.url}/models", trust_env=False).json()["data"][0]["id"] == "m"
    assert ask(episode).status_code == 200
    gateway.close_episode(episode)
    assert ask(episode).status_code == 404
    assert len(gateway.close_episode(other).calls) == 0


def test_log_on_disk_gives_the_same_record_and_holds_no_secret(scripted, gateway, ask) -> None:
    upstream, url = scripted
    upstream.replies = [reply(f"key {SECRET} \u2028 line"), reply("second")]
    episode = gateway.open_episode(Upstream(url=url, model="m", api_key=SECRET), SAMPLING, ROOMY)
    token = episode.url.split("/")[-2]
    assert SECRET in ask(episode, [{"role": "user", "content": f"{SECRET} and {token}"}]).text
    path = gateway.log_folder / f"{episode.id}.jsonl"
    assert len(read_log(path)) == 1, "flushed before the harness had its reply"
    ask(episode)
    record = gateway.close_episode(episode)
    with path.open("a") as file:
        file.write('{"seq": 2, "cut by a ki')
    assert SECRET not in path.read_text() and token not in path.read_text()
    assert episode_record(read_log(path)) == record
    assert record.messages[0].content == "[secret] and [secret]"
    assert record.messages[1].content == "key [secret] \u2028 line"


def test_transcript_keeps_a_failing_turn_that_the_harness_dropped(scripted, gateway, ask) -> None:
    upstream, url = scripted
    broken, good = bash_call('{"command": ls}', "c1"), bash_call('{"command":  "ls"}', "c2")
    upstream.replies = [reply("first", tool_calls=[broken]), reply("again", tool_calls=[good]), reply("done")]
    episode = gateway.open_episode(Upstream(url=url, model="m"), SAMPLING, ROOMY)
    start = [{"role": "system", "content": "be brief"}, USER]
    complaint = {"role": "user", "content": [{"type": "text", "text": "not "}, {"type": "text", "text": "JSON"}]}
    echo = {"role": "assistant", "content": "again", "tool_calls": [bash_call('{"command": "ls"}', "c2")]}
    result = {"role": "tool", "tool_call_id": "c2", "content": "a.py"}
    ask(episode, start, tools=[BASH])
    ask(episode, [*start, complaint], tools=[BASH])
    ask(episode, [*start, complaint, echo, result], tools=[BASH])
    record = gateway.close_episode(episode)
    assert [(message.role, message.content) for message in record.messages] == [
        ("system", "be brief"),
        ("user", "mend it"),
        ("assistant", "first"),
        ("user", "not JSON"),
        ("assistant", "again"),
        ("tool", "a.py"),
        ("assistant", "done"),
    ]
    assert record.messages[2].tool_calls[0].arguments == '{"command": ls}'
    assert record.messages[4].tool_calls[0].arguments == '{"command":  "ls"}', "as the teacher wrote it"
    assert record.messages[5].tool_call_id == "c2"
    assert [call.parse_status for call in record.calls] == ["invalid_json", "ok", "no_tool_call"]
    assert [call.num_messages for call in record.calls] == [2, 3, 5]
    assert record.tools == [BASH]


def test_closing_abandons_a_call_under_way(gateway) -> None:
    reached, release = threading.Event(), threading.Event()

    async def slow(request: Request) -> Response:
        reached.set()
        while not release.is_set():
            await asyncio.sleep(0.01)
        return reply()

    with serving(Starlette(routes=[Route("/v1/chat/completions", slow, methods=["POST"])])) as url:
        episode = gateway.open_episode(Upstream(url=f"{url}/v1", model="m"), SAMPLING, ROOMY)
        statuses: list[int] = []

        def send() -> None:
            body = {"messages": [USER]}
            statuses.append(httpx.post(f"{episode.url}/chat/completions", json=body, trust_env=False).status_code)

        caller = threading.Thread(target=send)
        caller.start()
        assert reached.wait(5)
        assert gateway.close_episode(episode).calls == []
        caller.join(5)
        release.set()
    assert statuses == [503]
