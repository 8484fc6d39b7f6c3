"""Samples -> a lake that holds them, in any layout."""

from collections.abc import Sequence
from typing import Any

from mixes.intent import Budget, MixIntent, Share, Slice
from pipeline.store import Item, Lake, Outcome, run_stage
from pipeline.types import Sample
from tests.unit.builders import sample


def add_records(lake: Lake, stage: str, records: Sequence[Any], *, shard_size: int = 200) -> None:
    """Records -> one finished stage of shards with so many records each."""
    parts = [tuple(records[start : start + shard_size]) for start in range(0, len(records), shard_size)]
    items = [Item(part[0].id, part[0].id, part) for part in parts]
    run_stage(lake, stage, items, lambda part: Outcome("ok", "", part), shard_size=1)


def numbered(count: int, *, num_tokens: int = 100, num_trainable: int = 50, **overrides: Any) -> list[Sample]:
    """Different samples of equal size."""
    return [
        sample(
            trajectory_id=f"{overrides.get('domain', 'agentic_code')}-{number}",
            task_id=f"{overrides.get('domain', 'agentic_code')}-{number}",
            num_tokens=num_tokens,
            num_trainable=num_trainable,
            **overrides,
        )
        for number in range(count)
    ]


def intent(**overrides: Any) -> MixIntent:
    """Half agentic code, half reasoning, as much as there is."""
    fields: dict[str, Any] = {
        "name": "test",
        "stage": "stage1",
        "context_tokens": 1000,
        "seed": 7,
        "budget": Budget(),
        "shares": (
            Share(name="agentic", slice=Slice(domain=("agentic_code",)), share=0.5),
            Share(name="reasoning", slice=Slice(domain=("reasoning",)), share=0.5),
        ),
    }
    return MixIntent(**(fields | overrides))
