"""A trained checkpoint in a real vLLM: same log-probs, same prompts, tool calls parsed."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import torch

from pipeline.render import GENERATION_PROMPT, render
from pipeline.store import Lake
from pipeline.teachers.vllm_server import Server, ServerConfig, serve
from pipeline.tokenizer import load_tokenizer
from pipeline.types import Checkpoint, Message, Trajectory
from tests.torch.builders import BASH, TINY, filled_lake, trajectory
from tests.unit import builders
from trainer.parity import (
    TOLERANCE,
    check_parity,
    checkpoint_arguments,
    learner_logprobs,
    probe_ids,
    served_logprobs,
)
from trainer.sft import SftConfig, train

pytestmark = pytest.mark.vllm

STUDENT = replace(TINY, sliding_window=64)
SERVER = ServerConfig(max_model_len=1024, max_num_seqs=4, kv_cache_gb=1)
PROBE = "The agent reads src/parse.py, finds that limit(1) is 0, and mends it: def limit(n): return n - 1. " * 8


class Student(NamedTuple):
    lake: Lake
    checkpoint: Checkpoint
    run: Trajectory
    """What it was trained on until it knows it by heart."""

    @property
    def folder(self) -> Path:
        return self.lake.root / self.checkpoint.path


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Student:
    run = trajectory("parse")
    lake, lock_id, folder = filled_lake(tmp_path_factory.mktemp("lake"), [run], bins=[[0]])
    config = SftConfig(num_steps=120, bins_per_step=1, learning_rate=5e-3, save_every_steps=1000)
    return Student(lake, train(lake, lock_id, config, STUDENT, folder), run)


@pytest.fixture(scope="module")
def server(student: Student, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log_path = tmp_path_factory.mktemp("log") / "server.log"
    with serve(SERVER, student.folder, "student", log_path, arguments=checkpoint_arguments(student.folder)) as running:
        yield running


def chat(server: Server, messages: list[dict[str, Any]], **options: Any) -> Any:
    body = {"model": server.name, "messages": messages, "temperature": 0, "max_tokens": 160} | options
    response = httpx.post(f"{server.url}/chat/completions", json=body, timeout=300, trust_env=False)
    assert response.status_code == 200, response.text
    return response.json()


def wire_of(message: Message) -> dict[str, Any]:
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "assistant":
        wire["reasoning"] = message.reasoning
        wire["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.role == "tool":
        wire["tool_call_id"] = message.tool_call_id
    return wire


def test_served_logprobs_are_those_of_the_learner(student: Student, server: Server) -> None:
    ids = probe_ids(student.folder, PROBE)
    assert len(ids) >= 200
    difference = (served_logprobs(server, ids) - learner_logprobs(student.folder, ids)).abs()
    assert difference.max().item() <= TOLERANCE


def test_equal_window_settings_on_both_sides_give_other_logprobs(
    student: Student, server: Server, tmp_path: Path
) -> None:
    """For the same number vLLM sees one token more, which shows only once the window is full."""
    folder = tmp_path / "misaligned"
    shutil.copytree(student.folder, folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"sliding_window": settings["sliding_window"] - 1}))
    ids = probe_ids(student.folder, PROBE)
    difference = (served_logprobs(server, ids) - learner_logprobs(folder, ids)).abs()
    assert difference.max().item() > 1e-3
    assert difference[: settings["sliding_window"] - 2].max().item() <= TOLERANCE


@pytest.mark.parametrize("num_messages", [2, 4, 6])
def test_server_builds_the_prompts_that_the_student_was_trained_on(
    student: Student, server: Server, num_messages: int
) -> None:
    messages = student.run.messages[:num_messages]
    answer = chat(
        server,
        [wire_of(one) for one in messages],
        tools=[BASH],
        tool_choice="none",
        max_tokens=1,
        return_token_ids=True,
    )
    tokenizer = load_tokenizer(student.folder)
    rendered = render(builders.trajectory(messages=messages, tools=[BASH]), builders.task(), tokenizer).token_ids
    assert answer["prompt_token_ids"] == rendered + [tokenizer.special_ids[token] for token in GENERATION_PROMPT]


@pytest.mark.parametrize("num_messages", [2, 4])
def test_learned_tool_call_comes_back_parsed(student: Student, server: Server, num_messages: int) -> None:
    answer = chat(server, [wire_of(one) for one in student.run.messages[:num_messages]], tools=[BASH])
    reply, learned = answer["choices"][0]["message"], student.run.messages[num_messages]
    assert reply["reasoning"] == learned.reasoning
    assert not reply["content"]
    functions = [call["function"] for call in reply["tool_calls"]]
    assert [function["name"] for function in functions] == ["bash"]
    assert json.loads(functions[0]["arguments"]) == json.loads(learned.tool_calls[0].arguments)
    assert answer["choices"][0]["finish_reason"] == "tool_calls"


def test_learned_answer_comes_back_as_content_without_markers(student: Student, server: Server) -> None:
    reply = chat(server, [wire_of(one) for one in student.run.messages[:6]], tools=[BASH])["choices"][0]
    assert reply["message"]["content"] == student.run.messages[6].content
    assert reply["message"]["reasoning"] == student.run.messages[6].reasoning
    assert reply["finish_reason"] == "stop"


def test_parity_check_starts_its_own_server_and_records_the_proof(student: Student) -> None:
    parity = check_parity(student.lake, student.checkpoint, replace(SERVER, dtype="bfloat16"), [PROBE, PROBE[40:]])
    assert parity.is_equal
    assert parity.max_difference <= TOLERANCE == parity.tolerance
    assert parity.num_tokens == sum(len(probe_ids(student.folder, text)) - 1 for text in (PROBE, PROBE[40:]))
    assert parity.checkpoint_id == student.checkpoint.id
    assert parity.completion
    assert torch.isfinite(torch.tensor(parity.mean_difference))
