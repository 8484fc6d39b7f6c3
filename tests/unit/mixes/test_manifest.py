"""A lock is what its id says, or it is refused."""

import json
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mixes.manifest import MixManifest, load, lock, mix_id, read_samples, resolve, shards_of
from mixes.solve import solve_and_lock
from pipeline.errors import UserError
from pipeline.store import Lake
from tests.unit.mixes.lakes import add_records, intent, numbered


@pytest.fixture
def manifest(lake: Lake) -> MixManifest:
    """A locked mix of 20 samples in two shards."""
    add_records(lake, "render", [*numbered(10), *numbered(10, domain="reasoning")], shard_size=10)
    return solve_and_lock(lake, intent())


def lock_file(lake: Lake, manifest: MixManifest) -> Path:
    return lake.root / "locks" / f"{manifest.id}.json"


def test_a_lock_survives_the_file_unchanged_and_its_name_is_its_hash(lake: Lake, manifest: MixManifest) -> None:
    assert load(lake, manifest.id) == manifest
    assert load(lake, manifest.id[:6], level="samples") == manifest
    assert mix_id(json.loads(lock_file(lake, manifest).read_bytes())) == manifest.id
    assert len(manifest.shards) == 2


@pytest.mark.parametrize("field", ["num_trainable", "sample_ids", "tokenizer_id", "loss_normalisation", "excluded"])
def test_a_tampered_lock_is_refused(lake: Lake, manifest: MixManifest, field: str) -> None:
    path = lock_file(lake, manifest)
    plain = json.loads(path.read_bytes())
    changed = {"num_trainable": 1, "sample_ids": plain["sample_ids"][::-1], "excluded": {"x": {}}}
    path.write_text(json.dumps(plain | {field: changed.get(field, "other")}))
    with pytest.raises(UserError, match=f"lock {manifest.id[:12]} was altered"):
        load(lake, manifest.id)


def test_a_lock_that_is_not_json_is_refused(lake: Lake, manifest: MixManifest) -> None:
    lock_file(lake, manifest).write_bytes(b"[1]\n{")
    with pytest.raises(UserError, match="was altered"):
        load(lake, manifest.id)


def test_a_tampered_shard_is_refused(lake: Lake, manifest: MixManifest) -> None:
    path = lake.root / manifest.shards[0].path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=f"shard {manifest.shards[0].path} of lock .* was altered"):
        load(lake, manifest.id)


def test_a_missing_shard_is_refused(lake: Lake, manifest: MixManifest) -> None:
    (lake.root / manifest.shards[1].path).unlink()
    with pytest.raises(UserError, match=f"shard {manifest.shards[1].path} of lock .* is missing"):
        load(lake, manifest.id)


def test_a_shard_forged_together_with_its_hash_is_found_by_its_samples(lake: Lake, manifest: MixManifest) -> None:
    path = lake.root / manifest.shards[0].path
    table = pq.read_table(path)
    forged = pa.array([[9, 9, 9, 9]] * len(table), table["token_ids"].type)
    pq.write_table(table.set_column(table.column_names.index("token_ids"), "token_ids", forged), path)
    plain = asdict(manifest)
    plain["shards"] = [asdict(shard) for shard in shards_of(lake, [lake.root / one.path for one in manifest.shards])]
    lock_file(lake, manifest).write_text(json.dumps(plain))
    assert load(lake, manifest.id).id == manifest.id
    with pytest.raises(UserError, match=r"sample .* was altered"):
        load(lake, manifest.id, level="samples")


def test_selected_samples_are_read_from_the_locks_own_shards(lake: Lake, manifest: MixManifest) -> None:
    add_records(lake, "later", numbered(1, teacher="later"))
    samples = read_samples(lake, manifest)
    assert samples.keys() == set(manifest.sample_ids)
    assert sum(samples[name].num_trainable for name in manifest.sample_ids) == manifest.num_trainable


def test_a_prefix_must_be_long_enough_known_and_unambiguous(lake: Lake, manifest: MixManifest) -> None:
    assert resolve(lake, manifest.id[:6]) == manifest.id
    for prefix in ("", manifest.id[:5], "f" * 64):
        with pytest.raises(UserError, match=f"give at least 6 digits of one of {manifest.id[:12]}"):
            resolve(lake, prefix)
    lock_file(lake, manifest).with_stem(manifest.id[:-1] + "g").write_text("{}")
    with pytest.raises(UserError, match="stands for 2 locks: give more digits"):
        resolve(lake, manifest.id[:6])


def test_without_any_lock_the_remedy_is_to_solve_one(lake: Lake) -> None:
    with pytest.raises(UserError, match="none: solve a mix first"):
        load(lake, "abcdef")


def test_a_lock_cannot_be_written_under_a_wrong_id(lake: Lake, manifest: MixManifest) -> None:
    with pytest.raises(AssertionError):
        lock(lake, MixManifest(**{**{n: getattr(manifest, n) for n in asdict(manifest)}, "num_samples": 1}))
