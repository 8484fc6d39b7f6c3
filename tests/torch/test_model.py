"""Shape of the student; folder <-> model; the tokenizer as transformers loads it."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from pipeline.render import render, render_text
from pipeline.tokenizer import ChatTokenizer, TokenizerConfig, load_tokenizer, train_tokenizer
from pipeline.types import Message
from tests.torch.builders import BASH, TINY, trajectory
from tests.unit import builders
from trainer.model import ModelConfig, build_model, hash_weights, hidden_states, load_model, save_model

VOCAB_SIZE = 4096


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(["cat src/parse.py 12 ok\n" * 9, "I read the file. " * 9], folder, TokenizerConfig(vocab_size=330))
    return load_tokenizer(folder)


def test_default_student_has_one_to_five_million_parameters_at_the_default_vocabulary(tokenizer: ChatTokenizer) -> None:
    config = ModelConfig()
    model = build_model(config, tokenizer)
    missing = (TokenizerConfig().vocab_size - tokenizer.vocab_size) * config.hidden_size
    assert 1_000_000 <= sum(parameter.numel() for parameter in model.parameters()) + missing <= 5_000_000
    assert model.config.layer_types == [
        "full_attention",
        *(["sliding_attention"] * 3 + ["full_attention"] + ["sliding_attention"] * 3),
    ]
    assert model.config.mlp_layer_types == ["dense", *["sparse"] * 7]
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_equal_seeds_give_equal_weights_and_leave_the_random_state_alone(tokenizer: ChatTokenizer) -> None:
    state = torch.get_rng_state()
    one, same = build_model(TINY, tokenizer), build_model(TINY, tokenizer)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    other = build_model(ModelConfig(seed=1), tokenizer)
    assert not torch.equal(other.lm_head.weight, build_model(ModelConfig(), tokenizer).lm_head.weight)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_saved_model_loads_bit_equal(tokenizer: ChatTokenizer, tmp_path: Path, norm: str) -> None:
    settings = {
        "hidden_size": 64,
        "num_layers": 5,
        "num_experts": 4,
        "expert_width": 32,
        "dense_width": 64,
        "norm": norm,
    }
    model = build_model(ModelConfig(**settings), tokenizer)
    save_model(model, tokenizer, tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.state_dict().items())
    ids_BT, position_ids_BT = torch.arange(40)[None], torch.arange(40)[None]
    assert torch.equal(hidden_states(loaded, ids_BT, position_ids_BT), hidden_states(model, ids_BT, position_ids_BT))


def test_checkpoint_folder_says_where_generation_starts_and_ends(tokenizer: ChatTokenizer, tmp_path: Path) -> None:
    save_model(build_model(TINY, tokenizer), tokenizer, tmp_path)
    settings = json.loads((tmp_path / "generation_config.json").read_text())
    assert settings["eos_token_id"] == tokenizer.special_ids["<|END_OF_TURN_TOKEN|>"]
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["Cohere2MoeForCausalLM"]
    assert load_tokenizer(tmp_path).id == tokenizer.id


def test_hash_of_weights_follows_the_weights_alone(tokenizer: ChatTokenizer, tmp_path: Path) -> None:
    model = build_model(TINY, tokenizer)
    save_model(model, tokenizer, tmp_path)
    before = hash_weights(tmp_path)
    (tmp_path / "note.txt").write_text("x")
    assert hash_weights(tmp_path) == before
    with torch.no_grad():
        model.model.norm.weight += 1
    save_model(model, tokenizer, tmp_path)
    assert hash_weights(tmp_path) != before


def test_transformers_renders_and_encodes_a_trajectory_as_we_do(tokenizer: ChatTokenizer, tmp_path: Path) -> None:
    save_model(build_model(TINY, tokenizer), tokenizer, tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    run = trajectory("parse")
    wire = [wire_of(message) for message in run.messages]
    text = theirs.apply_chat_template(wire, tools=run.tools, tokenize=False)
    assert text == render_text(run.messages, run.tools)
    ids = theirs.apply_chat_template(wire, tools=run.tools, return_dict=True)["input_ids"]
    assert ids == render(run, builders.task(), tokenizer).token_ids
    assert theirs.apply_chat_template(wire[:2], tokenize=False, add_generation_prompt=True).endswith(
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|>"
    )


def wire_of(message: Message) -> dict[str, object]:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": json.loads(call.arguments)}}
        for call in message.tool_calls
    ]
    wire = {"role": message.role, "content": message.content, "reasoning": message.reasoning}
    return wire | ({"tool_calls": calls} if calls else {}) | {"tool_call_id": message.tool_call_id}


def test_the_tool_of_the_builders_reaches_the_prompt() -> None:
    assert BASH["function"]["description"] in render_text([], [BASH])
