"""Lock id -> Checkpoint: supervised training whose loss is the mean over a step's trainable tokens.

    lake/checkpoints/<key>/            model, tokenizer and checkpoint.json, whole or not at all
    lake/checkpoints/<key>.resume.pt   state after the newest saved step, until the folder is there

The key is a hash of everything the result depends on, so the same command finds its own state: after `kill -9` it goes
on at the saved step and repeats the losses it would have had.
"""

import io
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as config_class
from transformers import Cohere2MoeForCausalLM

from pipeline.codec import record_from_plain
from pipeline.config import STRICT
from pipeline.errors import UserError
from pipeline.store import Lake, write_atomic
from pipeline.tokenizer import ChatTokenizer, load_tokenizer
from pipeline.types import Checkpoint, content_id, with_id
from trainer.data import Batch, PackedMix, open_mix
from trainer.losses import cross_entropy_sum
from trainer.model import ModelConfig, build_model, hash_weights, hidden_states, save_model

log = logging.getLogger(__name__)
VERSION = 1
"""Raised when the same inputs would train to other weights."""

MARKER = "checkpoint.json"

OnStep = Callable[[int, int, float, float], None]
"""(steps done, steps in total, loss in nats per trainable token, tokens per second)."""


@config_class(frozen=True, kw_only=True, config=STRICT)
class SftConfig:
    """How the student is trained."""

    num_epochs: int = Field(default=2, ge=1)
    """Passes over the bins of the mix; `num_steps` wins where it is set."""
    num_steps: int = Field(default=0, ge=0)
    """Optimizer steps; 0 leaves it to `num_epochs`."""
    bins_per_step: int = Field(default=2, ge=1)
    learning_rate: float = Field(default=2e-3, gt=0)
    """Peak, after the warm-up and before the cosine."""
    warmup_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the steps over which the rate rises."""
    final_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the peak that the cosine ends at."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Of matrices; norms have none."""
    clip_norm: float = Field(default=1.0, gt=0)
    """Largest norm of a step's gradient."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the forward and backward pass; the optimizer always works in float32. On a CPU without bfloat16
    instructions float32 is several times faster."""
    save_every_steps: int = Field(default=10, ge=1)
    """Steps between two saved states."""


class Learner:
    """Model, float32 master weights and optimizer."""

    def __init__(self, model: Cohere2MoeForCausalLM, config: SftConfig, num_steps: int) -> None:
        self.config, self.num_steps = config, num_steps
        self.masters = [parameter.detach().clone() for parameter in model.parameters()]
        self.model = model.to(getattr(torch, config.precision)).train()
        matrices = [master for master in self.masters if master.dim() > 1]
        vectors = [master for master in self.masters if master.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95))
        self.step = 0
        self.losses: list[float] = []
        self.num_trainable = 0
        self.seconds = 0.0

    def train_step(self, batches: list[Batch]) -> float:
        """Bins of one step -> mean loss per trainable token, after the weights have moved."""
        loss, num_trainable = accumulate_gradients(self.model, batches)
        for master, parameter in zip(self.masters, self.model.parameters(), strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
            parameter.grad = None
        torch.nn.utils.clip_grad_norm_(self.masters, self.config.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * rate_share(self.step, self.num_steps, self.config)
        self.optimizer.step()
        self._publish()
        self.step += 1
        self.losses.append(loss)
        self.num_trainable += num_trainable
        return loss

    def _publish(self) -> None:
        """Master weights -> the model that computes."""
        with torch.no_grad():
            for master, parameter in zip(self.masters, self.model.parameters(), strict=True):
                parameter.copy_(master)

    def float_model(self) -> Cohere2MoeForCausalLM:
        """-> the model with the master weights themselves, for saving."""
        self.model.to(torch.float32)
        self._publish()
        return self.model

    def state(self) -> dict[str, Any]:
        """Everything needed to go on as if nothing had happened."""
        return {
            "masters": self.masters,
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "losses": self.losses,
            "num_trainable": self.num_trainable,
            "seconds": self.seconds,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """The reverse of `state`."""
        with torch.no_grad():
            for master, saved in zip(self.masters, state["masters"], strict=True):
                master.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.losses = state["step"], state["losses"]
        self.num_trainable, self.seconds = state["num_trainable"], state["seconds"]
        self._publish()


def accumulate_gradients(model: Cohere2MoeForCausalLM, batches: list[Batch]) -> tuple[float, int]:
    """Bins of one step -> mean loss per trainable token and their count; the gradient is added to the parameters.

    The count is taken over all bins before the first backward pass, so neither their number nor the packing matters.
    """
    num_trainable = sum(len(batch.labels_N) for batch in batches)
    assert num_trainable > 0, "a lock holds no sample without trainable tokens"
    total = 0.0
    for batch in batches:
        hidden_TD = hidden_states(model, batch.token_ids_BT, batch.position_ids_BT)[0]
        loss = cross_entropy_sum(
            hidden_TD[batch.places_N], model.lm_head.weight, batch.labels_N, logit_scale=model.config.logit_scale
        )
        (loss / num_trainable).backward()
        total += loss.item()
    return total / num_trainable, num_trainable


def rate_share(step: int, num_steps: int, config: SftConfig) -> float:
    """Step from 0 -> share of the peak learning rate: linear warm-up, then a cosine."""
    num_warmup = max(1, round(config.warmup_share * num_steps))
    if step < num_warmup:
        return (step + 1) / num_warmup
    progress = (step - num_warmup) / max(1, num_steps - num_warmup)
    return config.final_share + (1 - config.final_share) * (1 + math.cos(math.pi * progress)) / 2


def train(
    lake: Lake,
    lock_id: str,
    config: SftConfig,
    model_config: ModelConfig,
    tokenizer_folder: Path,
    on_step: OnStep | None = None,
) -> Checkpoint:
    """Lock id -> checkpoint of a model trained from random weights; finished work is returned, unfinished continued.

    Raises: UserError when lock, tokenizer and model do not fit together.
    """
    tokenizer = load_tokenizer(tokenizer_folder)
    mix = open_mix(lake, lock_id)
    _check_fit(mix, tokenizer, model_config)
    folder = lake.root / "checkpoints" / _key(mix, tokenizer, config, model_config)
    if (folder / MARKER).exists():
        return _finished(folder)
    resume = folder.with_name(f"{folder.name}.resume.pt")
    steps = plan_steps(len(mix), config)
    learner = Learner(build_model(model_config, tokenizer), config, len(steps))
    if resume.exists():
        learner.restore(torch.load(resume, weights_only=True))
        log.info("training continues step=%d of=%d", learner.step, len(steps))
    _run(learner, mix, steps, resume, on_step)
    checkpoint = _finish(learner, mix, tokenizer, folder, lake)
    resume.unlink(missing_ok=True)
    return checkpoint


def _key(mix: PackedMix, tokenizer: ChatTokenizer, config: SftConfig, model_config: ModelConfig) -> str:
    settings = {name: value for name, value in asdict(config).items() if name != "save_every_steps"}
    return content_id([VERSION, mix.lock_id, tokenizer.id, settings, asdict(model_config)])[:16]


def _check_fit(mix: PackedMix, tokenizer: ChatTokenizer, model_config: ModelConfig) -> None:
    if mix.tokenizer_id != tokenizer.id:
        raise UserError(
            f"mix {mix.lock_id[:12]} was rendered with tokenizer {mix.tokenizer_id[:12]}, "
            f"{tokenizer.folder} holds {tokenizer.id[:12]}: name the folder of the former, or render and solve again"
        )
    if mix.context_tokens > model_config.max_positions:
        raise UserError(
            f"model.max_positions = {model_config.max_positions} is below the mix's context of "
            f"{mix.context_tokens} tokens: raise it"
        )


def plan_steps(num_bins: int, config: SftConfig) -> list[list[int]]:
    """Number of bins -> the bins of each step, in the lock's order, epoch after epoch."""
    size = config.bins_per_step
    epoch = [list(range(first, min(first + size, num_bins))) for first in range(0, num_bins, size)]
    return [epoch[step % len(epoch)] for step in range(config.num_steps or config.num_epochs * len(epoch))]


def _run(learner: Learner, mix: PackedMix, steps: list[list[int]], resume: Path, on_step: OnStep | None) -> None:
    """Remaining steps, the state saved after every few of them."""
    for bins in steps[learner.step :]:
        started = time.monotonic()
        batches = [mix.batch(index) for index in bins]
        loss = learner.train_step(batches)
        if not math.isfinite(loss):
            raise UserError(f"the loss is {loss} at step {learner.step}: lower sft.learning_rate")
        seconds = time.monotonic() - started
        learner.seconds += seconds
        if learner.step % learner.config.save_every_steps == 0 and learner.step < len(steps):
            buffer = io.BytesIO()
            torch.save(learner.state(), buffer)
            write_atomic(resume, buffer.getvalue())
        if on_step:
            num_tokens = sum(batch.token_ids_BT.numel() for batch in batches)
            on_step(learner.step, len(steps), loss, num_tokens / seconds)


def _finish(learner: Learner, mix: PackedMix, tokenizer: ChatTokenizer, folder: Path, lake: Lake) -> Checkpoint:
    """Trained learner -> checkpoint folder that appears whole, its record written last."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_model(learner.float_model(), tokenizer, partial)
    checkpoint = with_id(
        Checkpoint(
            mix_id=mix.lock_id,
            tokenizer_id=tokenizer.id,
            parent="",
            path=folder.relative_to(lake.root).as_posix(),
            weights_hash=hash_weights(partial),
            num_parameters=sum(master.numel() for master in learner.masters),
            num_steps=learner.step,
            num_trainable_tokens=learner.num_trainable,
            losses=learner.losses,
            seconds=round(learner.seconds, 3),
        )
    )
    write_atomic(partial / MARKER, json.dumps(asdict(checkpoint)).encode())
    for path in partial.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    partial.rename(folder)
    return checkpoint


def _finished(folder: Path) -> Checkpoint:
    checkpoint = record_from_plain(Checkpoint, json.loads((folder / MARKER).read_bytes()))
    if hash_weights(folder) != checkpoint.weights_hash:
        raise UserError(f"the weights in {folder} were altered: remove that folder and train again")
    log.info("training was finished before checkpoint=%s", checkpoint.id[:12])
    return checkpoint
