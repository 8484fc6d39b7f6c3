"""The oracle: an OpenAI-compatible teacher that knows the gold patch and solves tasks through the harness's own tools.

`/t/{task_id}/v1/chat/completions`; without state: the next step follows from the messages of the request.
"""

import functools
import hashlib
import json
import random
from collections.abc import Iterable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipeline.store import Lake
from pipeline.tasks.completions import completion_reply, function_code
from pipeline.tasks.reasoning import explain
from pipeline.teachers.oracle_plan import Turn, make_plan
from pipeline.trees import apply_diff, unpack_tree
from pipeline.types import Task

MODEL = "oracle"
SHELL_TOOL = "bash"
TEXT_MARK = "mswea_bash_command"
"""Prompts that name this fence want commands as text."""

ANSWERS = (
    ("The signature and the docstring settle what is asked for.", "Here is the function, complete with its body:"),
    (
        "I follow the docstring and use what the module already has.",
        "The body follows from the docstring. This is the whole function:",
    ),
    ("What it returns is described; the rest is detail.", "This does what the docstring says."),
)


def oracle_app(lake: Lake, tasks: Iterable[Task]) -> Starlette:
    """Tasks, their trees in the lake -> the app that answers for them."""
    known = {task.id: task for task in tasks}

    @functools.lru_cache(maxsize=256)
    def plan_of(task_id: str, seed: int) -> list[Turn]:
        task = known[task_id]
        return make_plan(task, unpack_tree(lake.get_blob(task.base_tree)), seed)

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def chat(request: Request) -> Response:
        task = known.get(request.path_params["task_id"])
        if task is None:
            return JSONResponse({"error": {"message": "the oracle does not know this task", "code": 404}}, 404)
        body = await request.json()
        seed = body.get("seed") or 0
        if task.kind == "single_turn":
            message = single_turn_message(lake, task, seed)
        else:
            plan = plan_of(task.id, seed)
            num_done = sum(wire["role"] == "assistant" for wire in body["messages"])
            message = turn_message(plan[min(num_done, len(plan) - 1)], body, f"{task.id}/{seed}/{num_done}")
        return JSONResponse(_reply(message))

    return Starlette(
        routes=[
            Route("/t/{task_id}/v1/models", models),
            Route("/t/{task_id}/v1/chat/completions", chat, methods=["POST"]),
        ]
    )


def turn_message(turn: Turn, body: dict[str, Any], place: str) -> dict[str, Any]:
    """Turn and request -> message with native tool calls, or with one fenced command where no tools are offered."""
    message: dict[str, Any] = {"role": "assistant", "reasoning_content": turn.reasoning, "content": turn.thought}
    if any(tool["function"]["name"] == SHELL_TOOL for tool in body.get("tools") or []):
        message["tool_calls"] = [
            _tool_call(command, f"{place}/{number}") for number, command in enumerate(turn.commands)
        ]
    elif any(TEXT_MARK in str(wire.get("content")) for wire in body["messages"]):
        command = " && ".join(turn.commands)
        message["content"] = f"THOUGHT: {turn.thought}\n\n```{TEXT_MARK}\n{command}\n```"
    return message


def _tool_call(command: str, place: str) -> dict[str, Any]:
    call_id = "call_" + hashlib.sha256(place.encode()).hexdigest()[:24]
    arguments = json.dumps({"command": command}, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": SHELL_TOOL, "arguments": arguments}}


def single_turn_message(lake: Lake, task: Task, seed: int) -> dict[str, Any]:
    """Task that is answered in one turn -> message with its worked answer."""
    if task.domain == "reasoning":
        return {"role": "assistant", "content": explain(task)}
    solved = apply_diff(unpack_tree(lake.get_blob(task.base_tree)), task.gold_patch)
    rng = random.Random(hashlib.sha256(f"{task.id}/{seed}".encode()).digest())
    reasoning, opening = rng.choice(ANSWERS)
    content = f"{opening}\n\n{completion_reply(function_code(solved, task.entity))}"
    return {"role": "assistant", "reasoning_content": reasoning, "content": content}


def _reply(message: dict[str, Any]) -> dict[str, Any]:
    finish_reason = "tool_calls" if message.get("tool_calls") else "stop"
    return {
        "id": "chatcmpl-oracle",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }
