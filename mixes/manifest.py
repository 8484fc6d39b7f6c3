"""MixManifest <-> lake/locks/<id>.json: exactly what a mix is made of, and the proof.

The id is the sha256 of the canonical JSON of everything but the id itself and `shards`: which files hold the samples
is checked on every load, but it is a place, not content, so the same mix from other files has the same id.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mixes.pool import Excluded
from pipeline.codec import record_from_plain, record_from_row
from pipeline.errors import UserError
from pipeline.store import Lake, write_atomic
from pipeline.types import Mix, Sample, canonical_json, content_id

SPEC = "mixlock/1"
GLOBAL_TOKEN_MEAN = "global_token_mean"
"""Loss summed over tokens, divided by the trainable tokens of the global batch: only then are shares of trainable
tokens shares of the gradient."""
MIN_PREFIX = 6
"""Hex digits that an id needs at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """One constraint, asked and reached. Token counts include repeats."""

    name: str
    slice: str
    base: str
    op: str
    share: float
    """Asked."""
    unit: str
    """trainable | total: the unit that was asked for."""
    tolerance: float
    """That the solver held: the larger of what was asked and half the smallest sample, as a share of the base."""
    error: float
    """Reached minus asked, in the unit asked for; by how much a bound is overstepped, for <= and >=."""
    trainable_share: float
    total_share: float
    num_samples: int
    num_tokens: int
    num_trainable: int
    supply_samples: int
    """Samples that could have been chosen, each once."""
    supply_trainable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one value of one dimension contributes. Token counts include repeats."""

    dimension: str
    """domain | harness | modality | teacher | repo | licence."""
    value: str
    num_samples: int
    num_tokens: int
    num_trainable: int
    trainable_share: float
    total_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetReached:
    """Tokens asked for, possible and reached."""

    unit: str
    asked: str
    """A number, or "largest"."""
    largest: int
    """The most that shares and supply allow."""
    reached: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Samples in bins. A bin is one sequence of the trainer."""

    algorithm: str
    version: int
    context_tokens: int
    bins: list[list[int]]
    """Indices into `sample_ids`."""
    waste_share: float
    """Share of the bins' room that holds no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One parquet file that holds selected samples."""

    path: str
    """Relative to the lake."""
    sha256: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MixManifest:
    """A locked mix. A trainer takes its id and nothing else."""

    id: str = ""
    spec: str = SPEC
    name: str
    stage: str
    context_tokens: int
    seed: int
    intent: dict[str, Any]
    """The whole intent as solved, overrides included."""
    intent_sha256: str
    solver: dict[str, Any]
    """Name, versions, budgets tried."""
    budget: BudgetReached
    constraints: list[Reached]
    tokenizer_id: str
    mask_policy: dict[str, Any]
    """Filters whose verdicts decided what is dropped and what is masked: versions, settings, findings by reason."""
    loss_normalisation: str = GLOBAL_TOKEN_MEAN
    """What the trainer must do for the shares to hold."""
    pool: dict[str, Any]
    """Number of samples considered, and the sha256 of their ids in order."""
    excluded: dict[str, Excluded]
    """Reason -> samples that were not considered or, under "surplus", not needed."""
    sample_ids: list[str]
    """In the order of their keys; a sample that is repeated stands here more than once."""
    num_samples: int
    """Repeats counted, as in the next two."""
    num_tokens: int
    num_trainable: int
    packing: Packed
    composition: list[Part]
    code: dict[str, str]
    shards: list[Shard]
    """Where the samples lie; not part of the id."""

    def record(self) -> Mix:
        """Lock -> its row in the lake."""
        return Mix(
            id=self.id,
            name=self.name,
            stage=self.stage,
            context_tokens=self.context_tokens,
            num_samples=self.num_samples,
            num_tokens=self.num_tokens,
            num_trainable=self.num_trainable,
            tokenizer_id=self.tokenizer_id,
        )


def mix_id(plain: dict[str, Any]) -> str:
    """Lock as JSON -> its id."""
    return content_id({name: value for name, value in plain.items() if name not in ("id", "shards")})


def shards_of(lake: Lake, files: list[Path]) -> list[Shard]:
    """Parquet files -> their places and hashes."""
    found = []
    for path in files:
        data = path.read_bytes()
        place = path.relative_to(lake.root).as_posix()
        found.append(Shard(path=place, sha256=hashlib.sha256(data).hexdigest(), num_bytes=len(data)))
    return found


def lock(lake: Lake, manifest: MixManifest) -> str:
    """Manifest -> its id, after the lock file has appeared whole."""
    plain = asdict(manifest)
    assert manifest.id == mix_id(plain), "the id of a lock is the hash of its content"
    write_atomic(_folder(lake) / f"{manifest.id}.json", canonical_json(plain))
    return manifest.id


def resolve(lake: Lake, prefix: str) -> str:
    """Id or its first digits -> the whole id.

    Raises: UserError when no lock, or more than one, has such an id.
    """
    known = sorted(path.stem for path in _folder(lake).glob("*.json"))
    found = [name for name in known if name.startswith(prefix)]
    if len(prefix) < MIN_PREFIX or not found:
        shown = ", ".join(name[:12] for name in known) or "none: solve a mix first"
        raise UserError(f"there is no lock {prefix!r}: give at least {MIN_PREFIX} digits of one of {shown}")
    if len(found) > 1:
        raise UserError(f"lock {prefix!r} stands for {len(found)} locks: give more digits ({', '.join(found)})")
    return found[0]


def load(lake: Lake, prefix: str, *, level: Literal["shards", "samples"] = "shards") -> MixManifest:
    """Id or its first digits -> manifest, its id and every shard's hash verified; at level samples also each sample.

    Raises: UserError when the lock or a shard is missing or altered.
    """
    name = resolve(lake, prefix)
    path = _folder(lake) / f"{name}.json"
    try:
        plain = json.loads(path.read_bytes())
        found = mix_id(plain)
    except (ValueError, AttributeError):
        found = ""
    if found != name:
        raise UserError(f"lock {name[:12]} was altered, its content has another hash: remove {path} and solve again")
    if plain["spec"] != SPEC:
        raise UserError(f"lock {name[:12]} has format {plain['spec']!r} and not {SPEC}: solve the mix again")
    manifest = record_from_plain(MixManifest, plain)
    for shard in manifest.shards:
        _verify_shard(lake, name, shard)
    if level == "samples":
        _verify_samples(name, read_samples(lake, manifest))
    return manifest


def _verify_shard(lake: Lake, name: str, shard: Shard) -> None:
    path = lake.root / shard.path
    if not path.is_file():
        raise UserError(f"shard {shard.path} of lock {name[:12]} is missing: solve the mix again")
    if hashlib.sha256(path.read_bytes()).hexdigest() != shard.sha256:
        raise UserError(f"shard {shard.path} of lock {name[:12]} was altered: restore it, or render and solve again")


def _verify_samples(name: str, samples: dict[str, Sample]) -> None:
    for sample in samples.values():
        plain = asdict(sample)
        if plain.pop("id") != content_id(plain):
            raise UserError(f"sample {sample.id[:12]} of lock {name[:12]} was altered: render and solve again")


def read_samples(lake: Lake, manifest: MixManifest) -> dict[str, Sample]:
    """Manifest -> sample id -> sample, from the lock's own shards.

    Raises: UserError when a selected sample is in none of them.
    """
    wanted = pa.array(sorted(set(manifest.sample_ids)), pa.string())
    found = {}
    for shard in manifest.shards:
        table = pq.read_table(lake.root / shard.path)
        for row in table.filter(pc.is_in(table["id"], value_set=wanted)).to_pylist():
            found[row["id"]] = record_from_row(Sample, row)
    missing = set(manifest.sample_ids) - found.keys()
    if missing:
        first = min(missing)[:12]
        raise UserError(f"lock {manifest.id[:12]} selects sample {first} that no shard holds: solve the mix again")
    return found


def _folder(lake: Lake) -> Path:
    return lake.root / "locks"
