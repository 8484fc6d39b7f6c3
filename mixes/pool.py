"""Lake -> the samples a mix may choose from, as columns in order of sample id: file layout leaves no trace."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mixes.intent import DIMENSIONS, MixIntent, Slice
from pipeline.errors import UserError
from pipeline.store import Lake

TEXT_COLUMNS = ("id", "task_id", *DIMENSIONS)
NUMBER_COLUMNS = ("num_tokens", "num_trainable")
KEY_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Samples as columns of equal length, ordered by id."""

    columns: dict[str, np.ndarray]
    """id, task_id, licence and the dimensions of a slice -> text."""
    num_tokens: np.ndarray
    num_trainable: np.ndarray
    is_resolved: np.ndarray
    tokenizer_id: str
    """Hash of the one tokenizer that rendered all of them; empty for an empty pool."""

    def __len__(self) -> int:
        return len(self.num_tokens)

    def matches(self, chosen: Slice) -> np.ndarray:
        """Slice -> which samples belong to it."""
        belongs = np.ones(len(self), bool)
        for name in DIMENSIONS:
            values = getattr(chosen, name)
            if values:
                belongs &= np.isin(self.columns[name], values)
        return belongs

    def take(self, chosen: np.ndarray) -> "Pool":
        """Mask or ascending indices -> the pool of those samples."""
        return Pool(
            columns={name: column[chosen] for name, column in self.columns.items()},
            num_tokens=self.num_tokens[chosen],
            num_trainable=self.num_trainable[chosen],
            is_resolved=self.is_resolved[chosen],
            tokenizer_id=self.tokenizer_id,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """Samples that the mix may not use, for one reason."""

    num_samples: int
    num_tokens: int
    num_trainable: int
    sample_ids: list[str]
    """In order of id; empty for samples that are merely surplus."""


def read_pool(lake: Lake) -> Pool:
    """Lake -> all its samples, each id once.

    Raises: UserError when more than one tokenizer rendered them.
    """
    names = [*TEXT_COLUMNS, *NUMBER_COLUMNS, "is_resolved", "tokenizer_id"]
    parts = [pq.read_table(path, columns=names) for path in lake.files("samples")]
    table = pa.concat_tables(parts) if parts else pa.table({name: pa.array([], pa.string()) for name in names})
    ids = _text(table["id"])
    _, order = np.unique(ids, return_index=True)
    tokenizers = pc.unique(table["tokenizer_id"]).to_pylist()
    if len(tokenizers) > 1:
        shown = ", ".join(sorted(name[:12] for name in tokenizers))
        raise UserError(
            f"samples of {lake.root} were rendered with {len(tokenizers)} tokenizers ({shown}): render again"
        )
    columns = {name: _text(table[name])[order] for name in TEXT_COLUMNS}
    return Pool(
        columns=columns | {"licence": _licences(lake, columns["task_id"])},
        num_tokens=table["num_tokens"].to_numpy().astype(np.int64)[order],
        num_trainable=table["num_trainable"].to_numpy().astype(np.int64)[order],
        is_resolved=table["is_resolved"].to_numpy().astype(bool)[order],
        tokenizer_id=tokenizers[0] if tokenizers else "",
    )


def _text(column: pa.ChunkedArray) -> np.ndarray:
    return np.asarray(column.to_pylist(), dtype=np.str_)


def _licences(lake: Lake, task_ids: np.ndarray) -> np.ndarray:
    """Task id of each sample -> SPDX expression of the task's source, "unknown" where the task is not in the lake."""
    found: dict[str, str] = {}
    for path in lake.files("tasks"):
        table = pq.read_table(path, columns=["id", "source"])
        for task_id, source in zip(table["id"].to_pylist(), table["source"].to_pylist(), strict=True):
            found[task_id] = json.loads(source)["licence"]
    return np.asarray([found.get(task_id, "unknown") for task_id in task_ids.tolist()], dtype=np.str_)


def keys_of(names: list[str], seed: int) -> np.ndarray:
    """Texts -> uint64 keys that order them: blake2b keyed with the seed, fixed by this line for all machines."""
    key = seed.to_bytes(8, "big")
    data = b"".join(hashlib.blake2b(name.encode(), key=key, digest_size=KEY_BYTES).digest() for name in names)
    return np.frombuffer(data, dtype=">u8").astype(np.uint64)


def eligible(pool: Pool, intent: MixIntent) -> tuple[Pool, dict[str, Excluded]]:
    """Pool -> samples that the intent may use, and reason -> those that it may not."""
    left = np.ones(len(pool), bool)
    excluded: dict[str, Excluded] = {}
    rules = {
        "unresolved": ~pool.is_resolved if intent.requirements.is_resolved else np.zeros(len(pool), bool),
        "zero_trainable": pool.num_trainable == 0,
        "over_context": pool.num_tokens > intent.context_tokens,
    }
    for reason, is_hit in rules.items():
        excluded[reason] = listed(pool, left & is_hit)
        left &= ~is_hit
    over_cap = _over_task_cap(pool, left, intent)
    excluded["task_cap"] = listed(pool, over_cap)
    return pool.take(left & ~over_cap), {reason: entry for reason, entry in excluded.items() if entry.num_samples}


def listed(pool: Pool, chosen: np.ndarray, *, with_ids: bool = True) -> Excluded:
    """Mask -> counts, tokens and ids of those samples."""
    return Excluded(
        num_samples=int(chosen.sum()),
        num_tokens=int(pool.num_tokens[chosen].sum()),
        num_trainable=int(pool.num_trainable[chosen].sum()),
        sample_ids=pool.columns["id"][chosen].tolist() if with_ids else [],
    )


def _over_task_cap(pool: Pool, left: np.ndarray, intent: MixIntent) -> np.ndarray:
    """Samples beyond the cap of their task, counted in key order."""
    over = np.zeros(len(pool), bool)
    if not intent.task_cap:
        return over
    places = np.flatnonzero(left)
    keys = keys_of(pool.columns["id"][places].tolist(), intent.seed)
    tasks = np.unique(pool.columns["task_id"][places], return_inverse=True)[1]
    order = np.lexsort((keys, tasks))
    starts = np.searchsorted(tasks[order], tasks[order])
    over[places[order[np.arange(len(order)) - starts >= intent.task_cap]]] = True
    return over


def files_with(lake: Lake, sample_ids: set[str]) -> list[Path]:
    """Sample ids -> the parquet files that hold at least one of them."""
    wanted = pa.array(sorted(sample_ids), pa.string())
    found = []
    for path in lake.files("samples"):
        column = pq.read_table(path, columns=["id"])["id"]
        if pc.any(pc.is_in(column, value_set=wanted)).as_py():
            found.append(path)
    return found
