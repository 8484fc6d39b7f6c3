"""Harness -> `/s/{token}/v1/chat/completions` -> teacher; each call is logged before its reply goes on.

The teacher is always asked without streaming; a harness that streams gets an equal stream made from the whole reply.
"""

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipeline.gateway.episode import Budget, CallLog, Episode, EpisodeRecord, Limit, episode_record
from pipeline.gateway.serving import serving
from pipeline.gateway.wire import (
    Body,
    LoggedCall,
    Sampling,
    Upstream,
    event_stream,
    harness_reply,
    is_context_error,
    limit_error,
    upstream_request,
    wrong_reply,
)

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 4
PAUSE_SEC = 0.5
"""Before the first repetition; doubles each time."""


class Answer(NamedTuple):
    """Outcome of one exchange with the teacher."""

    status: int
    body: Body
    fault: str


@dataclass(slots=True)
class _Open:
    """An episode under way; only the server's event loop touches it."""

    episode: Episode
    upstream: Upstream
    sampling: Sampling
    budget: Budget
    log: CallLog
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    tasks: set["asyncio.Task[Response]"] = field(default_factory=set)
    limit: Limit = ""
    fault: str = ""


class Gateway:
    """A recording proxy in a background thread; one for all episodes of a process, which may run at the same time."""

    def __init__(self, log_folder: Path, *, pause_sec: float = PAUSE_SEC) -> None:
        self.log_folder = log_folder
        self._pause_sec = pause_sec
        self._episodes: dict[str, _Open] = {}
        self._tokens: dict[str, str] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.log_folder.mkdir(parents=True, exist_ok=True)
        routes = [
            Route("/s/{token}/v1/models", self._models),
            Route("/s/{token}/v1/chat/completions", self._chat, methods=["POST"]),
        ]
        self._url = self._stack.enter_context(serving(Starlette(routes=routes, lifespan=self._lifespan)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        # A proxy of the environment is for remote teachers, never for a server on this machine.
        direct = {"all://127.0.0.1": None, "all://localhost": None}
        async with httpx.AsyncClient(mounts=direct) as self._client:
            yield

    def open_episode(self, upstream: Upstream, sampling: Sampling, budget: Budget) -> Episode:
        """Teacher, sampling rules and budget -> a private door to that teacher."""
        token = secrets.token_urlsafe(24)
        episode = Episode(url=f"{self._url}/s/{token}/v1", id=secrets.token_hex(8))
        hidden = [secret for secret in (token, upstream.api_key) if secret]
        path = self.log_folder / f"{episode.id}.jsonl"
        call_log = CallLog(file=path.open("x", encoding="utf-8"), secrets=hidden)
        self._tokens[episode.id] = token
        self._episodes[token] = _Open(
            episode=episode, upstream=upstream, sampling=sampling, budget=budget, log=call_log
        )
        return episode

    def close_episode(self, episode: Episode) -> EpisodeRecord:
        """Episode -> all that happened in it; its door is shut and a call still under way is abandoned."""
        return asyncio.run_coroutine_threadsafe(self._close(episode), self._loop).result()

    async def _close(self, episode: Episode) -> EpisodeRecord:
        state = self._episodes.pop(self._tokens.pop(episode.id))
        for task in state.tasks:
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        state.log.file.close()
        return episode_record(state.log.calls, state.limit)

    async def _models(self, request: Request) -> Response:
        state = self._episodes.get(request.path_params["token"])
        if state is None:
            return _error(404, "there is no such episode")
        return JSONResponse({"object": "list", "data": [{"id": state.upstream.model, "object": "model"}]})

    async def _chat(self, request: Request) -> Response:
        state = self._episodes.get(request.path_params["token"])
        if state is None:
            return _error(404, "there is no such episode")
        try:
            body = await request.json()
        except ValueError:
            return _error(400, "the request is not JSON")
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            return _error(400, "the request has no messages")
        task = asyncio.create_task(self._complete(state, body))
        state.tasks.add(task)
        task.add_done_callback(state.tasks.discard)
        try:
            return await task
        except asyncio.CancelledError:
            return _error(503, "the episode is closed")

    async def _complete(self, state: _Open, body: Body) -> Response:
        async with state.lock:
            if state.fault:
                return _error(503, state.fault)
            remaining = state.budget.max_tokens - state.log.num_tokens()
            if len(state.log.calls) >= state.budget.max_calls:
                state.limit = "calls"
                return JSONResponse(limit_error(f"all {state.budget.max_calls} calls are spent"), 400)
            if remaining <= 0:
                state.limit = "tokens"
                return JSONResponse(limit_error(f"all {state.budget.max_tokens} tokens are spent"), 400)
            call = await self._call(state, body, remaining)
        if call.fault:
            state.fault = call.fault
            log.warning("episode failed episode=%s fault=%s", state.episode.id, call.fault)
            return _error(503, call.fault)
        if call.http_status != 200:
            state.limit = "context"
            return JSONResponse(call.response, call.http_status)
        return _reply(body, call.response)

    async def _call(self, state: _Open, body: Body, remaining_tokens: int) -> LoggedCall:
        started, clock = time.time(), time.monotonic()
        request = upstream_request(body, state.upstream, state.sampling, remaining_tokens)
        answer = await self._ask(state.upstream, request)
        call = LoggedCall(
            seq=len(state.log.calls),
            started=started,
            seconds=time.monotonic() - clock,
            request=body,
            response=answer.body,
            http_status=answer.status,
            policy_version=state.upstream.policy_version,
            fault=answer.fault,
        )
        state.log.append(call)
        return call

    async def _ask(self, upstream: Upstream, request: Body) -> Answer:
        """Request -> the teacher's answer, asked again after faults of the connection or the server."""
        answer = Answer(0, {}, "never asked")
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                await asyncio.sleep(self._pause_sec * 2 ** (attempt - 1))
            answer = await self._exchange(upstream, request)
            if answer.status != 0 and answer.status != 429 and answer.status < 500:
                return answer
            log.warning("teacher fault attempt=%d fault=%s", attempt + 1, answer.fault)
        return answer

    async def _exchange(self, upstream: Upstream, request: Body) -> Answer:
        headers = {"authorization": f"Bearer {upstream.api_key}"} if upstream.api_key else {}
        url = f"{upstream.url}/chat/completions"
        try:
            response = await self._client.post(url, json=request, headers=headers, timeout=upstream.timeout_sec)
        except httpx.HTTPError as error:
            return Answer(0, {}, f"the teacher at {upstream.url} did not answer: {type(error).__name__} {error}")
        try:
            body = response.json()
        except ValueError:
            body = None
        if response.status_code == 200:
            return Answer(200, body or {}, wrong_reply(body, wants_tokens=upstream.returns_tokens))
        if isinstance(body, dict) and is_context_error(response.status_code, response.text):
            return Answer(response.status_code, body, "")
        return Answer(response.status_code, {}, f"the teacher answered {response.status_code}: {response.text[:500]}")


def _reply(body: Body, reply: Body) -> Response:
    shown = harness_reply(body, reply)
    if not body.get("stream"):
        # Lone surrogates can stand in a model's text; escaped they survive the way to the harness.
        return Response(json.dumps(shown), media_type="application/json")
    with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    return Response(event_stream(shown, with_usage=with_usage), media_type="text/event-stream")


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": "gateway_error", "code": status}}, status)
