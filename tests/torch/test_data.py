"""Lock id -> packed batches: order, positions, labels."""

from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.types import Sample
from tests.torch.builders import filled_lake, trajectory
from trainer.data import Document, open_mix, pack_documents


def test_positions_restart_and_labels_stay_inside_their_document() -> None:
    batch = pack_documents([Document([10, 11, 12, 13], [1, 2, 3, 4]), Document([20, 21, 22], [1, 3])])
    assert batch.token_ids_BT.tolist() == [[10, 11, 12, 13, 20, 21, 22]]
    assert batch.position_ids_BT.tolist() == [[0, 1, 2, 3, 0, 1, 2]]
    assert batch.places_N.tolist() == [0, 2, 4, 5]
    assert batch.labels_N.tolist() == [11, 13, 21, 22]


def test_document_without_trainable_tokens_is_context_only() -> None:
    batch = pack_documents([Document([10, 11], []), Document([20, 21], [1, 2])])
    assert batch.labels_N.tolist() == [21]


def test_first_token_of_a_document_is_refused_as_a_label() -> None:
    with pytest.raises(AssertionError, match="nothing that predicts it"):
        pack_documents([Document([10, 11], [1, 2]), Document([20, 21], [0, 1])])


def test_batches_hold_exactly_the_samples_of_the_lock_in_its_order(tmp_path: Path) -> None:
    runs = [trajectory(name) for name in ("parse", "split", "join", "strip")]
    lake, lock_id, _ = filled_lake(tmp_path, runs, bins=[[2, 0], [3], [1]])
    samples = {sample.trajectory_id: sample for sample in lake.records(Sample)}
    mix = open_mix(lake, lock_id[:8])
    assert (len(mix), mix.lock_id) == (3, lock_id)
    for index, members in enumerate([[2, 0], [3], [1]]):
        expected = [samples[runs[member].id] for member in members]
        batch = mix.batch(index)
        assert batch.token_ids_BT[0].tolist() == [token for sample in expected for token in sample.token_ids]
        assert len(batch.labels_N) == sum(sample.num_trainable for sample in expected)


def test_altered_shard_is_refused(tmp_path: Path) -> None:
    lake, lock_id, _ = filled_lake(tmp_path, [trajectory("parse")])
    shard = lake.files("samples")[0]
    shard.write_bytes(shard.read_bytes() + b"x")
    with pytest.raises(UserError, match="was altered"):
        open_mix(lake, lock_id)


def test_memory_mapping_is_kept_inside_the_lake(tmp_path: Path) -> None:
    lake, lock_id, _ = filled_lake(tmp_path, [trajectory("parse")])
    open_mix(lake, lock_id)
    assert list((lake.root / "cache" / "datasets").rglob("*.arrow"))
