"""ModelConfig -> Cohere2Moe of transformers, set up for packed rows; folder <-> model."""

import hashlib
from pathlib import Path
from typing import Literal

import torch
from pydantic.dataclasses import dataclass as config_class
from transformers import Cohere2MoeConfig, Cohere2MoeForCausalLM, GenerationConfig
from transformers.utils import logging as transformers_logging

from pipeline.config import STRICT
from pipeline.tokenizer import BOS, END_OF_TURN, PAD, ChatTokenizer
from trainer.attention import register_attention


@config_class(frozen=True, kw_only=True, config=STRICT)
class ModelConfig:
    """Shape of the student. Defaults: the released model's proportions at about 4 million parameters.

    One dense layer, then 3 sliding-window layers with RoPE to 1 global layer without.
    Source: Cohere, "Introducing North Mini Code" (June 2026), "Model".
    """

    hidden_size: int = 128
    num_layers: int = 8
    """The first is dense with global attention."""
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    num_experts: int = 8
    num_experts_per_token: int = 2
    expert_width: int = 128
    dense_width: int = 384
    """Width of the first layer's MLP."""
    sliding_window: int = 64
    """Tokens that a sliding layer sees, its own included."""
    sliding_window_pattern: int = 4
    """Every so-manieth sparse layer is global."""
    rope_theta: float = 50_000.0
    max_positions: int = 16_384
    norm: Literal["layer", "rms"] = "layer"
    logit_scale: float = 1.0
    init_std: float = 0.05
    """Wide enough that log-probs of an untrained model differ: at 0.02 parity tests see nothing."""
    seed: int = 0


def build_model(config: ModelConfig, tokenizer: ChatTokenizer) -> Cohere2MoeForCausalLM:
    """Configuration -> model with random weights in float32; equal seeds give equal weights."""
    shape = Cohere2MoeConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.expert_width,
        prefix_dense_intermediate_size=config.dense_width,
        num_hidden_layers=config.num_layers,
        first_k_dense_replace=1,  # type: ignore[call-arg]
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        num_experts=config.num_experts,
        num_experts_per_tok=config.num_experts_per_token,
        expert_selection_fn="sigmoid",
        norm_topk_prob=True,
        sliding_window=config.sliding_window,
        sliding_window_pattern=config.sliding_window_pattern,
        rope_theta=config.rope_theta,
        max_position_embeddings=config.max_positions,
        rms_norm_eps=1e-5 if config.norm == "rms" else None,
        logit_scale=config.logit_scale,
        initializer_range=config.init_std,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.special_ids[PAD],
        bos_token_id=tokenizer.special_ids[BOS],
        eos_token_id=tokenizer.special_ids[END_OF_TURN],
    )
    generator_state = torch.get_rng_state()
    torch.manual_seed(config.seed)
    model = Cohere2MoeForCausalLM._from_config(
        shape, attn_implementation=register_attention(), experts_implementation="grouped_mm", dtype=torch.float32
    )
    torch.set_rng_state(generator_state)
    return model


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> Cohere2MoeForCausalLM:
    """Checkpoint folder -> model as the learner runs it."""
    transformers_logging.disable_progress_bar()
    return Cohere2MoeForCausalLM.from_pretrained(
        folder,
        attn_implementation=register_attention(),
        experts_implementation="grouped_mm",
        dtype=dtype,
        local_files_only=True,
    )


def save_model(model: Cohere2MoeForCausalLM, tokenizer: ChatTokenizer, folder: Path) -> None:
    """Model -> folder that transformers and vLLM load: weights, configurations, tokenizer."""
    transformers_logging.disable_progress_bar()
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.special_ids[BOS],
        eos_token_id=tokenizer.special_ids[END_OF_TURN],
        pad_token_id=tokenizer.special_ids[PAD],
    )
    model.save_pretrained(folder)
    for path in tokenizer.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())


def hidden_states(
    model: Cohere2MoeForCausalLM, token_ids_BT: torch.Tensor, position_ids_BT: torch.Tensor
) -> torch.Tensor:
    """Packed row -> final hidden states [B, T, D]; positions restart at 0 with each document.

    A cache or a mask of ones would let documents see each other, so neither is passed.
    """
    output = model.model(input_ids=token_ids_BT, position_ids=position_ids_BT, use_cache=False, attention_mask=None)
    return output.last_hidden_state


def hash_weights(folder: Path) -> str:
    """Model folder -> sha256 over its safetensors files in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
