"""A real vLLM with SmolLM2 behind the gateway, started where no compiler can be found."""

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import pipeline.teachers
from pipeline.errors import InfrastructureError, UserError
from pipeline.gateway.episode import Budget, EpisodeRecord
from pipeline.gateway.server import Gateway
from pipeline.gateway.wire import Sampling
from pipeline.teachers.registry import TeacherHandle, vllm_teacher
from pipeline.teachers.vllm_server import ServerConfig, serve
from tests.unit import builders
from trainer.gguf import ModelFolder, ensure_smollm2

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

BUILD = Path(__file__).parents[2] / "build" / "test"
TEMPLATE = Path(pipeline.teachers.__file__).with_name("smollm2_tools.jinja")
TOOL_ARGUMENTS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--chat-template", str(TEMPLATE)]
NEEDED_PROGRAMS = ("lscpu", "uname", "sh")
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Execute a bash command",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


@pytest.fixture(scope="module")
def model() -> ModelFolder:
    return ensure_smollm2(BUILD / "smollm2", BUILD / "downloads")


@pytest.fixture(scope="module")
def teacher(model: ModelFolder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeacherHandle]:
    logging.getLogger("pipeline").setLevel(logging.INFO)
    folder = tmp_path_factory.mktemp("server")
    programs = folder / "bin"
    programs.mkdir()
    for name in NEEDED_PROGRAMS:
        (programs / name).symlink_to(shutil.which(name) or "/bin/false")
    config = ServerConfig(max_model_len=2048, kv_cache_gb=1)
    settings = {"PATH": str(programs), "CXX": "no-compiler", "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    with serve(
        config, model.path, "smollm2", folder / "log.txt", arguments=TOOL_ARGUMENTS, environment=settings
    ) as server:
        yield vllm_teacher(server, model.weights_hash)


@pytest.fixture(scope="module")
def tokenizer(model: ModelFolder) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(model.path)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("calls")) as running:
        yield running


def ask(
    gateway: Gateway,
    teacher: TeacherHandle,
    messages: list[dict[str, Any]],
    *,
    seed: int = 1,
    max_tokens: int = 24,
    **body: Any,
) -> tuple[httpx.Response, EpisodeRecord]:
    sampling = Sampling(temperature=1.0, top_p=1.0, max_tokens=max_tokens, seed=seed)
    episode = gateway.open_episode(teacher.upstream(builders.task()), sampling, Budget(max_calls=5, max_tokens=1000))
    request = {"model": "any", "messages": messages} | body
    response = httpx.post(f"{episode.url}/chat/completions", json=request, timeout=300, trust_env=False)
    return response, gateway.close_episode(episode)


def test_call_is_recorded_token_for_token(teacher, gateway, tokenizer) -> None:
    response, record = ask(gateway, teacher, [{"role": "user", "content": "Name three colours."}], tools=[BASH])
    assert response.status_code == 200 and not record.fault
    (call,) = record.calls
    assert len(call.sampled_token_ids) == len(call.logprobs) > 0
    assert all(logprob <= 0 for logprob in call.logprobs) and any(logprob < 0 for logprob in call.logprobs)
    assert tokenizer.decode(call.sampled_token_ids) == call.text
    prompt = tokenizer.decode(call.prompt_token_ids)
    assert prompt.endswith("<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n")
    described = prompt.split("<tools>\n")[1].split("\n</tools>")[0]
    assert json.loads(described) == BASH
    assert call.policy_version == teacher.weights_hash
    assert "token_ids" not in response.text


def test_past_calls_and_their_results_reach_the_model(teacher, gateway, tokenizer) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "List the files."},
        {"role": "assistant", "content": None, "tool_calls": [call, call | {"id": "c2"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "a.py"},
        {"role": "tool", "tool_call_id": "c2", "content": "b.py"},
    ]
    _, record = ask(gateway, teacher, messages, tools=[BASH])
    turns = tokenizer.decode(record.calls[0].prompt_token_ids).split("List the files.<|im_end|>\n")[1]
    one = '\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    assert turns == (
        f"<|im_start|>assistant\n{one}{one}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\na.py\n</tool_response>\n<tool_response>\nb.py\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_forced_call_is_parsed_into_the_tools_own_schema(teacher, gateway) -> None:
    choice = {
        "type": "object",
        "properties": {"command": {"type": "string", "enum": ["ls", "pwd"]}},
        "required": ["command"],
    }
    tool = {"type": "function", "function": BASH["function"] | {"strict": True, "parameters": choice}}
    forced = {"type": "function", "function": {"name": "bash"}}
    question = [{"role": "user", "content": "List the files."}]
    _, record = ask(gateway, teacher, question, tools=[tool], tool_choice=forced, max_tokens=64)
    assert not record.fault
    (call,) = record.messages[-1].tool_calls
    assert call.name == "bash" and json.loads(call.arguments)["command"] in ("ls", "pwd")
    assert record.calls[0].parse_status == "ok"


def test_prompt_beyond_the_context_ends_the_episode_and_blames_nobody(teacher, gateway) -> None:
    response, record = ask(gateway, teacher, [{"role": "user", "content": "word " * 3000}])
    assert response.status_code == 400
    assert record.limit == "context" and not record.fault


def test_server_that_dies_says_why(model: ModelFolder, tmp_path: Path) -> None:
    log_path = tmp_path / "log.txt"
    with (
        pytest.raises(
            InfrastructureError, match=r"(?s)bad died while starting.*unrecognized arguments: --no-such-flag"
        ),
        serve(ServerConfig(), model.path, "bad", log_path, arguments=["--no-such-flag"]),
    ):
        pass


def test_folder_without_a_model_is_a_user_error(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match=r"config\.json is missing"),
        serve(ServerConfig(), tmp_path, "x", tmp_path / "l"),
    ):
        pass
