"""Lock id -> packed batches: exactly the samples, order and bins of the lock, memory-mapped through `datasets`.

Letters: B batch (1), T tokens, N trainable tokens.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import datasets
import torch

from mixes.manifest import MixManifest, load
from pipeline.errors import UserError
from pipeline.store import Lake

LOSS_NORMALISATION = "global_token_mean"
"""What this trainer computes: the loss summed over tokens, divided by the trainable tokens of the step."""


class Document(NamedTuple):
    """What training needs of one sample."""

    token_ids: Sequence[int]
    train_spans: Sequence[int]
    """Start, end pairs of trainable labels."""


class Batch(NamedTuple):
    """One bin: documents one after the other in a single row."""

    token_ids_BT: torch.Tensor
    position_ids_BT: torch.Tensor
    """Restart at 0 with each document."""
    places_N: torch.Tensor
    """Positions in the row whose next token is trainable."""
    labels_N: torch.Tensor
    """Those next tokens."""


class PackedMix:
    """The bins of a locked mix, and what the trainer must agree with."""

    def __init__(self, lock: MixManifest, rows: datasets.Dataset) -> None:
        row_of = {sample_id: row for row, sample_id in enumerate(rows["id"])}
        missing = [sample_id for sample_id in lock.sample_ids if sample_id not in row_of]
        if missing:
            raise UserError(f"lock {lock.id[:12]} selects sample {missing[0][:12]} that no shard holds: solve again")
        self.lock_id, self.tokenizer_id, self.context_tokens = lock.id, lock.tokenizer_id, lock.context_tokens
        self._rows = rows
        self._bins = [[row_of[lock.sample_ids[place]] for place in members] for members in lock.packing.bins]

    def __len__(self) -> int:
        return len(self._bins)

    def batch(self, index: int) -> Batch:
        """Place in the lock's order of bins -> its batch."""
        rows = [self._rows[row] for row in self._bins[index]]
        return pack_documents([Document(row["token_ids"], row["train_spans"]) for row in rows])


def open_mix(lake: Lake, lock_id: str) -> PackedMix:
    """Lock id -> its bins; every shard's hash is verified first.

    Raises: UserError when the lock or a shard is missing or changed, or asks for another loss.
    """
    lock = load(lake, lock_id)
    if lock.loss_normalisation != LOSS_NORMALISATION:
        raise UserError(
            f"lock {lock.id[:12]} asks for loss {lock.loss_normalisation!r}: lock it for {LOSS_NORMALISATION}"
        )
    if not lock.packing.bins:
        raise UserError(f"lock {lock.id[:12]} selects no sample: solve a mix that does")
    return PackedMix(lock, open_shards(lake, [lake.root / shard.path for shard in lock.shards]))


def open_shards(lake: Lake, paths: Sequence[Path]) -> datasets.Dataset:
    """Parquet shards -> memory-mapped rows; the mapping lives in the lake."""
    datasets.disable_progress_bars()
    columns = ["id", "token_ids", "train_spans"]
    cache = lake.root / "cache" / "datasets"
    return datasets.Dataset.from_parquet([str(path) for path in paths], columns=columns, cache_dir=str(cache))


def pack_documents(documents: Sequence[Document]) -> Batch:
    """Documents -> one row; labels never cross from one document to the next."""
    token_ids: list[int] = []
    position_ids: list[int] = []
    targets: list[int] = []
    for document in documents:
        spans = zip(document.train_spans[::2], document.train_spans[1::2], strict=True)
        inside = [place for start, end in spans for place in range(start, end)]
        assert not inside or min(inside) > 0, "the first token of a document has nothing that predicts it"
        targets += [len(token_ids) + place for place in inside]
        token_ids += document.token_ids
        position_ids += range(len(document.token_ids))
    tokens_T, targets_N = torch.tensor(token_ids), torch.tensor(targets, dtype=torch.long)
    return Batch(tokens_T[None], torch.tensor(position_ids)[None], targets_N - 1, tokens_T[targets_N])
