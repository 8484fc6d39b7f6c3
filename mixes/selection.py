"""Plan -> which samples, how often: the prefix of each cell in key order, then repairs until every share fits."""

from typing import NamedTuple

import numpy as np

from mixes.intent import MixIntent, Share, Unit
from mixes.pool import Pool
from mixes.program import Cells

MAX_FILLS = 64
"""Largest-fitting samples added to one cell."""
MAX_MOVES = 400
"""Steps of the repair over all cells."""
MAX_PAIRED = 300
"""Pools up to this size are also repaired by two changes at once,"""
MAX_PAIRS = 20
"""so many times."""
BUDGET_TOLERANCE = 0.001
"""Largest accepted difference of a stated budget, as a share of it."""
ROUNDING = 1e-12


class Constraint(NamedTuple):
    """One share over samples: its error is (sum(counts * above) - above_all) / (sum(counts * below) + below_all)."""

    above: np.ndarray
    """Tokens, one per sample."""
    below: np.ndarray
    """Tokens, one per sample."""
    above_all: float
    below_all: float
    op: str
    tolerance: float
    granule: float
    """Tokens of half the slice's smallest sample: no choice of samples can promise less."""


def choose(pool: Pool, cells: Cells, target: np.ndarray, group_of: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Trainable tokens wanted of each cell -> how often each sample is taken.

    What a cell misses is carried over to the next cell of its group, so that errors do not add up.
    """
    counts = np.zeros(len(pool), np.int64)
    order = np.lexsort((keys, cells.cell_of))
    bounds = np.searchsorted(cells.cell_of[order], np.arange(len(cells.keys) + 1))
    carried: dict[int, float] = {}
    for cell, group in enumerate(group_of.tolist()):
        members = order[bounds[cell] : bounds[cell + 1]]
        sizes = pool.num_trainable[members]
        wanted = target[cell] + (carried.get(group, 0.0) if target[cell] > 0 else 0.0)
        taken = fill(sizes, wanted, limit=cells.trainable[cell] * np.ceil(target[cell] / cells.trainable[cell]))
        counts[members] = taken
        carried[group] = carried.get(group, 0.0) + target[cell] - float(taken @ sizes)
    return counts


def fill(sizes: np.ndarray, wanted: float, *, limit: float) -> np.ndarray:
    """Sample sizes in key order and tokens wanted -> how often each is taken, as near as one exchange can bring it."""
    wanted = min(max(wanted, 0.0), limit)
    passes = int(wanted // sizes.sum())
    counts = np.full(len(sizes), passes, np.int64)
    rest = wanted - passes * sizes.sum()
    if rest < sizes.min() / 2:
        return counts
    taken = np.cumsum(sizes) <= rest
    gap = rest - sizes[taken].sum()
    for _ in range(MAX_FILLS):
        fitting = np.where(~taken & (sizes <= gap), sizes, 0)
        best = int(fitting.argmax())
        if not fitting[best]:
            break
        taken[best] = True
        gap -= sizes[best]
    taken = _one_exchange(sizes, taken, gap)
    return counts + taken


def _one_exchange(sizes: np.ndarray, taken: np.ndarray, gap: float) -> np.ndarray:
    """Selection and the tokens it lacks -> selection after the one exchange (or addition) that comes nearest."""
    outside = np.flatnonzero(~taken)
    if not len(outside):
        return taken
    by_size = outside[np.argsort(sizes[outside], kind="stable")]
    # A first choice without a partner stands for adding a sample.
    leaving = np.concatenate([[0], np.flatnonzero(taken)])
    freed = np.where(np.arange(len(leaving)) > 0, sizes[leaving], 0) + gap
    above = np.searchsorted(sizes[by_size], freed)
    best, best_gap = None, abs(gap)
    for shift in (-1, 0):
        place = np.clip(above + shift, 0, len(by_size) - 1)
        missing = np.abs(freed - sizes[by_size[place]])
        nearest = int(missing.argmin())
        if missing[nearest] < best_gap:
            best, best_gap = (nearest, int(by_size[place[nearest]])), float(missing[nearest])
    if best is None:
        return taken
    result = taken.copy()
    result[best[1]] = True
    if best[0] > 0:
        result[leaving[best[0]]] = False
    return result


def constraints_of(pool: Pool, intent: MixIntent, budget: float | None) -> list[Constraint]:
    """Intent and, if it is fixed, its budget in tokens -> constraints over samples."""
    found = [_share_constraint(pool, share) for share in intent.shares]
    if budget is not None:
        sizes = tokens_of(pool, intent.budget.unit).astype(float)
        found.append(
            Constraint(sizes, np.zeros(len(pool)), budget, budget, "=", BUDGET_TOLERANCE, float(sizes.min()) / 2)
        )
    return found


def _share_constraint(pool: Pool, share: Share) -> Constraint:
    sizes = tokens_of(pool, share.unit).astype(float)
    inside, base = pool.matches(share.slice), pool.matches(share.base)
    granule = float(sizes[inside].min()) / 2 if inside.any() else 0.0
    return Constraint(sizes * (inside - share.share * base), sizes * base, 0.0, 0.0, share.op, share.tolerance, granule)


def tokens_of(pool: Pool, unit: Unit) -> np.ndarray:
    """Tokens of each sample in a unit."""
    return pool.num_trainable if unit == "trainable" else pool.num_tokens


class Repair:
    """Search for changes after which every constraint is within its tolerance.

    `is_strict`: half the smallest sample does not excuse what the tolerance does not.
    """

    def __init__(self, constraints: list[Constraint], cap: int, *, is_strict: bool) -> None:
        self.is_strict = is_strict
        self.constraints, self.cap = constraints, cap
        self.above = np.array([one.above for one in constraints])
        self.below = np.array([one.below for one in constraints])

    def run(self, counts: np.ndarray) -> tuple[np.ndarray, float]:
        """Counts -> repaired counts and by how much they still miss; 0 when all constraints hold."""
        counts, pairs = counts.copy(), MAX_PAIRS if len(counts) <= MAX_PAIRED else 0
        missed = self.missed(counts)
        for _ in range(MAX_MOVES):
            if missed <= 0:
                break
            better, missed_after = self._best_single(counts)
            if missed_after >= missed and pairs:
                better, missed_after = self._best_pair(counts)
                pairs -= 1
            if missed_after >= missed:
                break
            for place, change in better:
                counts[place] += change
            missed = missed_after
        return counts, missed

    def missed(self, counts: np.ndarray) -> float:
        """Counts -> sum over constraints of what their error exceeds their tolerance by."""
        return float(self._missed((self.above @ counts)[:, None], (self.below @ counts)[:, None])[0])

    def _missed(self, above: np.ndarray, below: np.ndarray) -> np.ndarray:
        """Sums [constraint, candidate] -> what each candidate misses."""
        total = np.zeros(above.shape[1])
        for place, one in enumerate(self.constraints):
            base = np.maximum(below[place] + one.below_all, 1.0)
            error = (above[place] - one.above_all) / base
            error = np.abs(error) if one.op == "=" else np.maximum(error if one.op == "<=" else -error, 0.0)
            over = error - np.maximum(one.tolerance, 0.0 if self.is_strict else one.granule / base)
            total += np.where(over > ROUNDING, over, 0.0)
        return total

    def _best_single(self, counts: np.ndarray) -> tuple[list[tuple[int, int]], float]:
        """The one sample to add or to remove that leaves least missed."""
        above, below = (self.above @ counts)[:, None], (self.below @ counts)[:, None]
        best: tuple[list[tuple[int, int]], float] = ([], np.inf)
        for change, is_allowed in ((1, counts < self.cap), (-1, counts > 0)):
            missed = self._missed(above + change * self.above, below + change * self.below)
            missed = np.where(is_allowed & (counts.sum() + change > 0), missed, np.inf)
            place = int(missed.argmin())
            if missed[place] < best[1]:
                best = ([(place, change)], float(missed[place]))
        return best

    def _best_pair(self, counts: np.ndarray) -> tuple[list[tuple[int, int]], float]:
        """The two changes that leave least missed together."""
        best: tuple[list[tuple[int, int]], float] = ([], np.inf)
        for place in range(len(counts)):
            for change in (1, -1):
                if not 0 <= counts[place] + change <= self.cap:
                    continue
                changed = counts.copy()
                changed[place] += change
                second, missed = self._best_single(changed)
                if missed < best[1]:
                    best = ([(place, change), *second], missed)
        return best
