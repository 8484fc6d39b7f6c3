"""Checkpoint -> Parity: the served model's log-probs beside the learner's, token by token.

transformers' sliding layers see W tokens, the token itself included; vLLM's see W + 1. A server that is to answer with
the learner's weights and the learner's function is therefore started with a window of W - 1.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import torch

from pipeline.errors import InfrastructureError, UserError
from pipeline.store import Lake
from pipeline.teachers.vllm_server import Server, ServerConfig, serve
from pipeline.tokenizer import BOS, load_tokenizer
from pipeline.types import Checkpoint, Parity, with_id
from trainer.losses import token_logprobs
from trainer.model import hidden_states, load_model

log = logging.getLogger(__name__)

TOLERANCE = 1e-4
"""Largest accepted difference of a log-prob in float32, in nats."""
NAME = "student"
MAX_PROBE_TOKENS = 512
MAX_REPLY_TOKENS = 48
TIMEOUT_SEC = 300.0


def checkpoint_arguments(folder: Path) -> list[str]:
    """Checkpoint folder -> arguments with which vLLM serves it as the learner computes it, tool calls parsed."""
    window = json.loads((folder / "config.json").read_bytes())["sliding_window"]
    return [
        *["--hf-overrides", json.dumps({"sliding_window": window - 1})],
        *["--reasoning-parser", "cohere_command4"],
        *["--enable-auto-tool-choice", "--tool-call-parser", "cohere_command4"],
    ]


def check_parity(lake: Lake, checkpoint: Checkpoint, server_config: ServerConfig, prompts: Sequence[str]) -> Parity:
    """Checkpoint and prompts -> largest difference of the server's log-probs from the learner's, and one chat reply.

    The first prompt is also what the chat asks. Each must be at least two sliding windows long: shorter ones cannot
    show a wrong window.
    Raises: UserError when a prompt is too short, InfrastructureError when the server fails.
    """
    folder = lake.root / checkpoint.path
    probes = [probe_ids(folder, prompt) for prompt in prompts]
    learner = torch.cat([learner_logprobs(folder, probe) for probe in probes])
    config = replace(server_config, dtype="float32")
    log_path = lake.root / "logs" / f"{NAME}-{checkpoint.id[:12]}.log"
    with serve(config, folder, NAME, log_path, arguments=checkpoint_arguments(folder)) as server:
        served = torch.cat([served_logprobs(server, probe) for probe in probes])
        completion = _reply(server, prompts[0])
    difference = (served - learner).abs()
    return with_id(
        Parity(
            checkpoint_id=checkpoint.id,
            num_tokens=len(difference),
            max_difference=difference.max().item(),
            mean_difference=difference.mean().item(),
            tolerance=TOLERANCE,
            is_equal=difference.max().item() <= TOLERANCE,
            completion=completion,
        )
    )


def probe_ids(folder: Path, prompt: str) -> list[int]:
    """Prompt -> its token ids, at most `MAX_PROBE_TOKENS`.

    Raises: UserError when it is shorter than two sliding windows.
    """
    tokenizer = load_tokenizer(folder)
    ids = [tokenizer.special_ids[BOS], *tokenizer.encode(prompt)][:MAX_PROBE_TOKENS]
    window = json.loads((folder / "config.json").read_bytes())["sliding_window"]
    if len(ids) < 2 * window:
        raise UserError(f"parity prompt {prompt[:30]!r} has {len(ids)} tokens: give one of at least {2 * window}")
    return ids


def learner_logprobs(folder: Path, ids: list[int]) -> torch.Tensor:
    """Token ids -> the learner's log-prob of each but the first, in nats."""
    model = load_model(folder).eval()
    ids_BT = torch.tensor([ids])
    with torch.no_grad():
        hidden_BTD = hidden_states(model, ids_BT, torch.arange(len(ids))[None])
        return token_logprobs(
            hidden_BTD[0, :-1], model.lm_head.weight, ids_BT[0, 1:], logit_scale=model.config.logit_scale
        )


def served_logprobs(server: Server, ids: list[int]) -> torch.Tensor:
    """Token ids -> the server's log-prob of each but the first, in nats."""
    body = {"model": server.name, "prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
    places = _post(server, "completions", body)["choices"][0]["prompt_logprobs"]
    # The first token has no log-prob: nothing predicts it.
    return torch.tensor([place[str(token)]["logprob"] for token, place in zip(ids[1:], places[1:], strict=True)])


def _reply(server: Server, prompt: str) -> str:
    """Prompt -> what the model says through the chat template; a young model often only thinks."""
    body = {
        "model": server.name,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": MAX_REPLY_TOKENS,
        "temperature": 0,
    }
    message = _post(server, "chat/completions", body)["choices"][0]["message"]
    return str(message["content"] or message["reasoning"] or "")


def _post(server: Server, path: str, body: dict[str, Any]) -> Any:
    try:
        response = httpx.post(f"{server.url}/{path}", json=body, timeout=TIMEOUT_SEC, trust_env=False)
    except httpx.TransportError as error:
        raise InfrastructureError(f"the server of {server.name} did not answer /{path}: {error}") from None
    if response.status_code != 200:
        raise InfrastructureError(f"the server of {server.name} refused /{path}: {response.text[:300]}")
    return response.json()
