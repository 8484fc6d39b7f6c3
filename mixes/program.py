"""Cells and intent -> how many trainable tokens to take of each cell: a linear program, solved with HiGHS.

The unknowns x are the trainable tokens taken of each cell, divided by all trainable tokens there are; the total tokens
that come with them follow from the cell's own ratio. Cells that no share tells apart form a group.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sparse
from scipy.optimize import OptimizeResult, linprog

from mixes.intent import DIMENSIONS, MixIntent, Share, Slice, Unit
from mixes.pool import Pool

SOLVER = "scipy-highs"
SOLVER_VERSION = 1
REPEAT_COST, UNEVEN_COST, GROUP_COST = 1000.0, 1.0, 0.01
"""Repeats are worse than an uneven choice within a group, which is worse than one between groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """The pool, grouped by every dimension that counts."""

    dimensions: tuple[str, ...]
    keys: list[tuple[str, ...]]
    """Value per dimension; sorted."""
    cell_of: np.ndarray
    """Index of its cell for each sample."""
    trainable: np.ndarray
    """Tokens."""
    total: np.ndarray
    """Tokens."""

    def matches(self, chosen: Slice) -> np.ndarray:
        """Slice -> which cells belong to it."""
        belongs = np.ones(len(self.keys), bool)
        for place, name in enumerate(self.dimensions):
            values = getattr(chosen, name)
            if values:
                belongs &= np.array([key[place] in values for key in self.keys], bool)
        return belongs

    def tokens(self, unit: Unit) -> np.ndarray:
        """Tokens of each cell in a unit."""
        return self.trainable if unit == "trainable" else self.total


def cells_of(pool: Pool, intent: MixIntent) -> Cells:
    """Pool -> its cells over domain, harness, modality and whatever else a share asks about."""
    asked = [part for share in intent.shares for part in (share.slice, share.base)]
    dimensions = tuple(name for name in DIMENSIONS if name not in ("teacher", "repo") or _is_asked(asked, name))
    codes = np.zeros(len(pool), np.int64)
    for name in dimensions:
        values, inverse = np.unique(pool.columns[name], return_inverse=True)
        codes = codes * max(1, len(values)) + inverse
    found, first, cell_of = np.unique(codes, return_index=True, return_inverse=True)
    keys = [tuple(str(pool.columns[name][place]) for name in dimensions) for place in first]
    return Cells(
        dimensions=dimensions,
        keys=keys,
        cell_of=cell_of,
        trainable=np.bincount(cell_of, pool.num_trainable, len(found)),
        total=np.bincount(cell_of, pool.num_tokens, len(found)),
    )


def _is_asked(slices: list[Slice], dimension: str) -> bool:
    return any(getattr(chosen, dimension) for chosen in slices)


class Problem:
    """The constraints of one intent over one set of cells."""

    def __init__(self, cells: Cells, intent: MixIntent) -> None:
        self.cells, self.intent = cells, intent
        self.scale = max(1.0, cells.trainable.sum())
        self.supply = cells.trainable / self.scale
        self.weight = self.per_trainable(intent.budget.unit)
        self.shares = list(intent.shares)
        memberships = [cells.matches(part) for share in self.shares for part in (share.slice, share.base)]
        signature = np.array(memberships, dtype=np.int8).reshape(len(memberships), len(cells.keys))
        self.group_of = np.unique(signature.T, axis=0, return_inverse=True)[1].reshape(-1)

    def per_trainable(self, unit: Unit) -> np.ndarray:
        """Tokens of a unit that come with one trainable token of each cell."""
        return self.cells.tokens(unit) / np.maximum(self.cells.trainable, 1)

    def row(self, share: Share) -> np.ndarray:
        """Share -> coefficients whose sum over x is 0 when the share is met exactly."""
        inside = self.cells.matches(share.slice).astype(float) - share.share * self.cells.matches(share.base)
        return inside * self.per_trainable(share.unit)

    def rows(self, shares: list[Share] | None = None) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Shares (all unless given) -> rows that must be 0, and rows that must be at most 0."""
        chosen = self.shares if shares is None else shares
        equal = [self.row(share) for share in chosen if share.op == "="]
        below = [self.row(share) * (1 if share.op == "<=" else -1) for share in chosen if share.op != "="]
        return equal, below

    def solve(
        self, cost: np.ndarray, shares: list[Share], *, budget: float | None = None, is_bounded: bool = True
    ) -> OptimizeResult:
        """Minimise a cost over x, under shares, with or without a fixed budget (tokens) and limits of supply."""
        equal, below = self.rows(shares)
        targets = [0.0] * len(equal)
        if budget is not None:
            equal, targets = [*equal, self.weight], [*targets, budget / self.scale]
        upper = self.supply * self.intent.repeat_cap if is_bounded else np.full(len(cost), np.inf)
        return linprog(
            cost,
            A_eq=np.array(equal) if equal else None,
            b_eq=targets if equal else None,
            A_ub=np.array(below) if below else None,
            b_ub=np.zeros(len(below)) if below else None,
            bounds=np.column_stack([np.zeros(len(cost)), upper]),
            method="highs",
        )

    def largest_budget(self) -> float:
        """Tokens in the budget's unit; 0 if no mix at all has these shares."""
        result = self.solve(-self.weight, self.shares)
        return float(-result.fun * self.scale) if result.success else 0.0

    def spread(self, budget: float) -> np.ndarray:
        """Budget -> trainable tokens per cell: few repeats, and cells of a group used at one rate.

        Variables: of each cell x, its repeats and its difference from the group's rate; of each group its rate; the
        rate of all; of each group its difference from that.
        """
        num_cells, num_groups = len(self.supply), int(self.group_of.max()) + 1
        places = (np.arange(num_cells), self.group_of)
        to_group = sparse.csr_array((self.supply, places), (num_cells, num_groups))
        group_supply = np.bincount(self.group_of, self.supply, num_groups)
        group_rate, rate = sparse.diags_array(group_supply), sparse.csr_array(group_supply[:, None])
        cell, group = sparse.eye_array(num_cells), sparse.eye_array(num_groups)
        rows = [
            [cell, -cell, None, None, None, None],
            [cell, None, -cell, -to_group, None, None],
            [-cell, None, -cell, to_group, None, None],
            [None, None, None, group_rate, -rate, -group],
            [None, None, None, -group_rate, rate, -group],
        ]
        limits = [self.supply, np.zeros(2 * num_cells + 2 * num_groups)]
        costs = [0.0, REPEAT_COST, UNEVEN_COST, 0.0, 0.0, GROUP_COST]
        sizes = [num_cells, num_cells, num_cells, num_groups, 1, num_groups]
        cap = float(self.intent.repeat_cap)
        upper = [cap * self.supply, np.full(2 * num_cells, np.inf), [cap] * (num_groups + 1), [np.inf] * num_groups]
        equal, below = self.rows()
        equal.append(self.weight)
        result = linprog(
            np.repeat(costs, sizes),
            A_ub=sparse.vstack([sparse.block_array(rows), _widen(below, sum(sizes))]).tocsr(),
            b_ub=np.concatenate([*limits, np.zeros(len(below))]),
            A_eq=_widen(equal, sum(sizes)),
            b_eq=[*[0.0] * (len(equal) - 1), budget / self.scale],
            bounds=np.column_stack([np.zeros(sum(sizes)), np.concatenate(upper)]),
            method="highs",
        )
        assert result.success, f"a feasible program was not solved: {result.message}"
        return np.asarray(result.x[:num_cells]) * self.scale


def _widen(rows: list[np.ndarray], width: int) -> sparse.csr_array:
    """Rows over x -> rows over all variables."""
    narrow = sparse.csr_array(np.array(rows).reshape(len(rows), -1)) if rows else sparse.csr_array((0, width))
    return sparse.csr_array((narrow.data, narrow.indices, narrow.indptr), (len(rows), width))
