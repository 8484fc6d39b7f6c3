"""Program without a solution -> one sentence: which slice needs what, what there is, and what would be possible."""

from typing import NamedTuple

import numpy as np

from mixes.intent import Share, Unit, describe
from mixes.program import Problem


class Need(NamedTuple):
    """A set of cells that some constraint cannot do without."""

    name: str
    unit: Unit
    need: float
    """Tokens."""
    have: float
    """Tokens, each sample once."""


def explain(problem: Problem, asked: float | None, largest: float) -> str:
    """Problem, asked and largest feasible budget (tokens, intent's unit) -> the sentence."""
    intent = problem.intent
    if not problem.cells.keys:
        return f"mix {intent.stage} has no sample to choose from: render samples first, or relax [requirements]"
    unit = intent.budget.unit
    possible = f"the largest feasible budget is {int(largest):,} {unit} tokens"
    dry = _empty_slice(problem)
    if dry:
        amount = f"{dry.share:.1%} of {describe(dry.base)}"
        if asked is not None and describe(dry.base) == "the whole":
            amount = f"{int(dry.share * asked):,} {dry.unit} tokens ({amount})"
        return (
            f"mix {intent.stage}: slice {dry.name} ({describe(dry.slice)}) needs {amount} and has 0: {possible}; "
            "add such samples or change the share"
        )
    if largest < 1:
        names = ", ".join(share.name for share in conflict(problem))
        return f"mix {intent.stage}: shares {names} contradict each other: {possible}; change one of them"
    assert asked is not None, "a positive largest budget is feasible"
    worst = _worst_need(problem, asked)
    cap = intent.repeat_cap
    return (
        f"mix {intent.stage} cannot have {int(asked):,} {unit} tokens: slice {worst.name} needs {int(worst.need):,} "
        f"{worst.unit} tokens and has {int(worst.have):,} (each sample at most {cap} times): {possible}; "
        "lower budget.value, raise repeat_cap or add samples"
    )


def _empty_slice(problem: Problem) -> Share | None:
    """The first share that wants something of a slice without tokens."""
    for share in problem.shares:
        wants = share.share > 0 and share.op in ("=", ">=")
        if wants and not problem.cells.matches(share.slice).any():
            return share
    return None


def conflict(problem: Problem) -> list[Share]:
    """Shares that no mix of the cells can have together, though it can once any one of them is left out."""
    left = list(problem.shares)
    for share in problem.shares:
        rest = [other for other in left if other is not share]
        if not _is_possible(problem, rest):
            left = rest
    return left


def _is_possible(problem: Problem, shares: list[Share]) -> bool:
    """Whether unlimited supply of the cells allows some mix with these shares."""
    return bool(problem.solve(0 * problem.weight, shares, budget=problem.scale, is_bounded=False).success)


def _worst_need(problem: Problem, asked: float) -> Need:
    """The slice that falls shortest of what the budget needs."""
    wanted, refused = [], []
    for share in problem.shares:
        inside, base = problem.cells.matches(share.slice), problem.cells.matches(share.base)
        if share.op != "<=":
            wanted.append((share.name, share.unit, inside))
        if share.op != ">=":
            refused.append((f"all but {share.name}", share.unit, base & ~inside))
    whole = ("the whole", problem.intent.budget.unit, np.ones(len(problem.supply), bool))
    needs = []
    for name, unit, chosen in [*wanted, whole, *refused]:
        tokens = problem.per_trainable(unit) * chosen
        result = problem.solve(tokens, problem.shares, budget=asked, is_bounded=False)
        have = float(problem.cells.tokens(unit)[chosen].sum())
        needs.append(Need(name, unit, float(result.fun) * problem.scale, have))
    return max(needs, key=lambda one: round(one.need / max(one.have, 1.0), 6))
