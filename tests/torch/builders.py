"""Small real inputs for the trainer: trajectories -> tokenizer, samples and a lock in a lake."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mixes.manifest import BudgetReached, MixManifest, Packed, lock, mix_id, shards_of
from pipeline.render import render, texts_of
from pipeline.store import Item, Lake, Outcome, run_stage
from pipeline.tokenizer import TokenizerConfig, load_tokenizer, train_tokenizer
from pipeline.types import Message, Sample, ToolCall, Trajectory
from tests.unit import builders
from trainer.model import ModelConfig

TINY = ModelConfig(hidden_size=64, num_layers=5, num_experts=4, expert_width=32, dense_width=64, sliding_window=16)
"""All kinds of layers: dense and sparse, sliding and global."""

BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


def trajectory(name: str, *, num_turns: int = 2, output: str = "ok\n") -> Trajectory:
    """An agent that shows files named after `name`, then answers."""
    messages = [Message(role="system", content="You fix bugs."), Message(role="user", content=f"Look at {name}.")]
    for turn in range(num_turns):
        command = json.dumps({"command": f"cat src/{name}_{turn}.py"})
        call = ToolCall(id=f"call-{turn}", name="bash", arguments=command)
        messages.append(Message(role="assistant", content="", reasoning=f"I read {name}.", tool_calls=[call]))
        messages.append(Message(role="tool", content=output * (turn + 1), tool_call_id=call.id))
    messages.append(Message(role="assistant", content=f"{name} is fine.", reasoning="Nothing to do."))
    return builders.trajectory(messages=messages, tools=[BASH])


def filled_lake(
    root: Path, trajectories: Sequence[Trajectory], *, bins: list[list[int]] | None = None, vocab_size: int = 400
) -> tuple[Lake, str, Path]:
    """Trajectories -> lake with their samples, id of a lock over them in that order, tokenizer folder.

    Without `bins` every two samples share one.
    """
    lake, task = Lake(root), builders.task()
    folder = root / "tokenizer"
    texts = [text for one in trajectories for text in texts_of(one)]
    train_tokenizer(texts, folder, TokenizerConfig(vocab_size=vocab_size))
    tokenizer = load_tokenizer(folder)
    samples = [render(one, task, tokenizer) for one in trajectories]
    items = [Item(sample.id, "", sample) for sample in samples]
    run_stage(lake, "render", items, lambda sample: Outcome("ok", records=(sample,)))
    return lake, lock_samples(lake, samples, bins), folder


def lock_samples(lake: Lake, samples: Sequence[Sample], bins: list[list[int]] | None = None) -> str:
    """Samples of a lake -> id of a lock that takes each once, in the order given."""
    bins = bins or [list(range(start, min(start + 2, len(samples)))) for start in range(0, len(samples), 2)]
    lengths = [sum(samples[place].num_tokens for place in members) for members in bins]
    fields: dict[str, Any] = {
        "name": "test",
        "stage": "stage1",
        "context_tokens": max(lengths),
        "seed": 0,
        "intent": {},
        "intent_sha256": "",
        "solver": {},
        "budget": BudgetReached(unit="trainable", asked="largest", largest=0, reached=0),
        "constraints": [],
        "tokenizer_id": samples[0].tokenizer_id,
        "mask_policy": {},
        "pool": {},
        "excluded": {},
        "sample_ids": [sample.id for sample in samples],
        "num_samples": len(samples),
        "num_tokens": sum(lengths),
        "num_trainable": sum(sample.num_trainable for sample in samples),
        "packing": Packed(algorithm="given", version=1, context_tokens=max(lengths), bins=bins, waste_share=0.0),
        "composition": [],
        "code": {},
        "shards": shards_of(lake, lake.files("samples")),
    }
    identity = mix_id(asdict(MixManifest(**fields)))
    return lock(lake, MixManifest(**(fields | {"id": identity})))
