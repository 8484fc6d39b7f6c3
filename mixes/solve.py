"""Lake and intent -> MixManifest: exclude, plan, choose, repair, pack, lock.

Everything depends on the content of samples and the seed only, so equal inputs give an equal lock id, whatever the
order of rows and the layout of files.
"""

import hashlib
import logging
from dataclasses import asdict, replace
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from filters import FILTERS
from filters.config import FilterConfig
from mixes import pack as packing
from mixes.explain import explain
from mixes.intent import DIMENSIONS, MixIntent, Share, describe, plain
from mixes.manifest import (
    BudgetReached,
    MixManifest,
    Packed,
    Part,
    Reached,
    lock,
    mix_id,
    shards_of,
)
from mixes.pool import Excluded, Pool, eligible, files_with, keys_of, listed, read_pool
from mixes.program import SOLVER, SOLVER_VERSION, Problem, cells_of
from mixes.selection import Constraint, Repair, choose, constraints_of, tokens_of
from pipeline.errors import UserError
from pipeline.store import Lake
from pipeline.types import canonical_json

MARGIN = 1e-9
"""Of the largest budget, left to rounding."""
SHRINK = 0.98
"""Where whole samples cannot meet the shares, the largest budget is given up in steps of this size."""
MAX_TRIES = 30
log = logging.getLogger(__name__)


class Solution(NamedTuple):
    """Which samples a mix takes."""

    pool: Pool
    """The samples it could choose from."""
    counts: np.ndarray
    """How often each is taken."""
    excluded: dict[str, Excluded]
    constraints: list[Reached]
    budget: BudgetReached
    budgets_tried: list[int]
    """Tokens planned for, in order; all but the last could not be met with whole samples."""


def solve_and_lock(lake: Lake, intent: MixIntent, filter_config: FilterConfig | None = None) -> MixManifest:
    """Lake and intent -> manifest of the mix, its lock file written.

    `filter_config` is recorded as what decided which trajectories became samples.
    Raises: UserError when the supply cannot meet the intent.
    """
    everything = read_pool(lake)
    solution = solve(everything, intent)
    manifest = _manifest(lake, everything, solution, intent, filter_config or FilterConfig())
    lock(lake, manifest)
    log.info(
        "mix locked id=%s samples=%d tokens=%d trainable=%d bins=%d waste=%.4f",
        manifest.id[:12],
        manifest.num_samples,
        manifest.num_tokens,
        manifest.num_trainable,
        len(manifest.packing.bins),
        manifest.packing.waste_share,
    )
    return manifest


def solve(everything: Pool, intent: MixIntent) -> Solution:
    """Pool and intent -> the samples whose tokens have the shares asked for.

    Raises: UserError naming the slice, what it needs, what there is, and the largest feasible budget.
    """
    pool, excluded = eligible(everything, intent)
    cells = cells_of(pool, intent)
    problem = Problem(cells, intent)
    largest = problem.largest_budget() if len(pool) else 0.0
    asked = None if intent.budget.value == "largest" else float(intent.budget.value)
    if largest < 1 or (asked is not None and asked > largest * (1 + MARGIN)):
        raise UserError(explain(problem, asked, largest))
    keys = keys_of(pool.columns["id"].tolist(), intent.seed)
    constraints = constraints_of(pool, intent, asked)
    closest, close = (Repair(constraints, intent.repeat_cap, is_strict=strict) for strict in (True, False))
    budget = min(asked or largest, largest * (1 - MARGIN))
    tried: list[int] = []
    nearest, least = np.zeros(len(pool), np.int64), np.inf
    for _ in range(MAX_TRIES if asked is None else 1):
        tried.append(int(budget))
        counts = choose(pool, cells, problem.spread(budget), problem.group_of, keys)
        counts, missed = close.run(closest.run(counts)[0])
        if missed < least and counts.any():
            nearest, least = counts, missed
        if missed == 0 and counts.any():
            break
        budget *= SHRINK
    reached = [_reached(pool, nearest, *pair) for pair in zip(intent.shares, constraints, strict=False)]
    budget_reached = BudgetReached(
        unit=intent.budget.unit,
        asked=str(intent.budget.value),
        largest=int(largest),
        reached=int(nearest @ tokens_of(pool, intent.budget.unit)),
    )
    if least > 0:
        raise UserError(_too_coarse(intent, reached, budget_reached))
    surplus = listed(pool, nearest == 0, with_ids=False)
    if surplus.num_samples:
        excluded["surplus"] = surplus
    return Solution(pool, nearest, excluded, reached, budget_reached, tried)


def _reached(pool: Pool, counts: np.ndarray, share: Share, constraint: Constraint) -> Reached:
    inside, base = pool.matches(share.slice), pool.matches(share.base)
    trainable, total = counts * pool.num_trainable, counts * pool.num_tokens
    shares = {
        "trainable": float(trainable[inside].sum() / max(1, trainable[base].sum())),
        "total": float(total[inside].sum() / max(1, total[base].sum())),
    }
    error = shares[share.unit] - share.share
    asked_base = {"trainable": trainable, "total": total}[share.unit][base].sum()
    return Reached(
        name=share.name,
        slice=describe(share.slice),
        base=describe(share.base),
        op=share.op,
        share=share.share,
        unit=share.unit,
        tolerance=max(share.tolerance, float(constraint.granule / max(1, asked_base))),
        error=error if share.op == "=" else max(0.0, error if share.op == "<=" else -error),
        trainable_share=shares["trainable"],
        total_share=shares["total"],
        num_samples=int(counts[inside].sum()),
        num_tokens=int(total[inside].sum()),
        num_trainable=int(trainable[inside].sum()),
        supply_samples=int(inside.sum()),
        supply_trainable=int(pool.num_trainable[inside].sum()),
    )


def _too_coarse(intent: MixIntent, reached: list[Reached], budget: BudgetReached) -> str:
    """What the nearest choice of whole samples misses by most."""
    worst = max(reached, key=lambda one: abs(one.error) - one.tolerance, default=None)
    if worst is None or abs(worst.error) <= worst.tolerance:
        return (
            f"mix {intent.stage} reaches {budget.reached:,} of {budget.asked} {budget.unit} tokens with whole samples: "
            'set budget.value to "largest" or add samples'
        )
    got = worst.trainable_share if worst.unit == "trainable" else worst.total_share
    return (
        f"mix {intent.stage}: slice {worst.name} reaches {got:.2%} of {worst.unit} tokens where {worst.op} "
        f"{worst.share:.2%} is asked (tolerance {worst.tolerance:.2%}), because its samples are too few and too large: "
        "add samples or raise the tolerance of that share"
    )


def _manifest(
    lake: Lake, everything: Pool, solution: Solution, intent: MixIntent, filter_config: FilterConfig
) -> MixManifest:
    pool, counts = solution.pool, solution.counts
    order = _order(pool, counts, intent.seed)
    sample_ids = pool.columns["id"][order].tolist()
    packed = packing.pack(pool.num_tokens[order], intent.context_tokens, intent.seed)
    wanted = plain(intent)
    manifest = MixManifest(
        name=intent.name,
        stage=intent.stage,
        context_tokens=intent.context_tokens,
        seed=intent.seed,
        intent=wanted,
        intent_sha256=hashlib.sha256(canonical_json(wanted)).hexdigest(),
        solver={
            "name": SOLVER,
            "version": SOLVER_VERSION,
            "scipy": version("scipy"),
            "budgets_tried": solution.budgets_tried,
        },
        budget=solution.budget,
        constraints=solution.constraints,
        tokenizer_id=everything.tokenizer_id,
        mask_policy=_mask_policy(lake, filter_config),
        pool={
            "num_samples": len(everything),
            "ids_sha256": hashlib.sha256("\n".join(everything.columns["id"].tolist()).encode()).hexdigest(),
        },
        excluded=solution.excluded,
        sample_ids=sample_ids,
        num_samples=len(sample_ids),
        num_tokens=int(pool.num_tokens @ counts),
        num_trainable=int(pool.num_trainable @ counts),
        packing=Packed(
            algorithm=packing.ALGORITHM,
            version=packing.VERSION,
            context_tokens=intent.context_tokens,
            bins=packed.bins,
            waste_share=packed.waste_share,
        ),
        composition=_composition(pool, counts),
        code={"treadle": version("treadle")},
        shards=shards_of(lake, files_with(lake, set(sample_ids))),
    )
    return replace(manifest, id=mix_id(asdict(manifest)))


def _order(pool: Pool, counts: np.ndarray, seed: int) -> np.ndarray:
    """Counts -> index of every use of a sample, by the key of id and pass."""
    uses = np.repeat(np.arange(len(pool)), counts)
    passes = np.arange(len(uses)) - np.searchsorted(uses, uses)
    names = [f"{pool.columns['id'][use]}:{number}" for use, number in zip(uses.tolist(), passes.tolist(), strict=True)]
    return uses[np.argsort(keys_of(names, seed), kind="stable")]


def _composition(pool: Pool, counts: np.ndarray) -> list[Part]:
    """Counts -> what each value of each dimension contributes."""
    trainable, total = counts * pool.num_trainable, counts * pool.num_tokens
    parts = []
    for dimension in (*DIMENSIONS, "licence"):
        values, inverse = np.unique(pool.columns[dimension], return_inverse=True)
        samples, tokens, labels = (
            np.bincount(inverse, column, len(values)).astype(np.int64) for column in (counts, total, trainable)
        )
        parts += [
            Part(
                dimension=dimension,
                value=str(value),
                num_samples=int(samples[place]),
                num_tokens=int(tokens[place]),
                num_trainable=int(labels[place]),
                trainable_share=float(labels[place] / trainable.sum()),
                total_share=float(tokens[place] / total.sum()),
            )
            for place, value in enumerate(values)
            if samples[place]
        ]
    return parts


def _mask_policy(lake: Lake, config: FilterConfig) -> dict[str, Any]:
    """Settings of the filters and what the lake's verdicts say they found."""
    findings: dict[str, int] = {}
    for path in lake.files("verdicts"):
        table = pq.read_table(path, columns=["filter", "filter_version", "action", "reason"])
        names = pc.binary_join_element_wise(
            table["filter"], pc.cast(table["filter_version"], "string"), table["action"], table["reason"], "/"
        )
        for entry in pc.value_counts(names).to_pylist():
            findings[entry["values"]] = findings.get(entry["values"], 0) + entry["counts"]
    return {
        "filters": {name: entry.version for name, entry in FILTERS.items()},
        "settings": asdict(config),
        "findings": findings,
    }
