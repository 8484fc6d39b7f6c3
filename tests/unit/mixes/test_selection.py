"""Choosing within cells loses nothing from cell to cell, and repairing never empties a mix."""

import numpy as np
import pytest

from mixes.intent import Share, Slice
from mixes.pool import keys_of
from mixes.program import cells_of
from mixes.selection import Repair, choose, constraints_of, fill
from tests.unit.mixes.lakes import intent
from tests.unit.mixes.test_solve import AGENTIC, REASONING, pool


def test_what_one_cell_misses_the_next_cell_of_its_group_makes_up() -> None:
    samples = pool({AGENTIC: [(200, 100)] * 100})
    samples.columns["harness"] = np.array([f"h{number % 10}" for number in range(100)])
    cells = cells_of(samples, intent())
    group_of = np.zeros(10, int)
    counts = choose(samples, cells, np.full(10, 49.0), group_of, keys_of(samples.columns["id"].tolist(), 1))
    assert len(cells.keys) == 10
    assert counts.sum() == 5


@pytest.mark.parametrize(("wanted", "taken"), [(0, 0), (2, 0), (10, 10), (93, 93), (160, 160), (161, 161)], ids=str)
def test_a_cell_is_filled_to_the_token_where_an_exchange_allows_it(wanted: int, taken: int) -> None:
    sizes = np.array([60, 10, 33, 27, 30])
    counts = fill(sizes, wanted, limit=1000)
    assert abs(counts @ sizes - taken) <= 1
    assert set(np.unique(counts)) <= ({0, 1} if wanted <= 160 else {1, 2})


def test_a_cell_gives_no_more_than_its_limit() -> None:
    assert fill(np.array([10, 20]), 1000, limit=30).tolist() == [1, 1]


def test_a_repair_does_not_end_in_an_empty_mix() -> None:
    samples = pool({AGENTIC: [(10, 10)], REASONING: [(500, 400)]})
    share = Share(name="agentic", slice=Slice(domain=(AGENTIC,)), share=0.1)
    constraints = constraints_of(samples, intent(shares=(share,)), None)
    counts, missed = Repair(constraints, 1, is_strict=True).run(np.array([1, 0]))
    assert counts.any()
    assert missed > 0


def test_no_sample_is_taken_more_often_than_the_cap() -> None:
    samples = pool({AGENTIC: [(10, 10)], REASONING: [(30, 30)]})
    constraints = constraints_of(samples, intent(), None)
    assert Repair(constraints, 2, is_strict=True).run(np.array([1, 1]))[0].max() <= 2
    assert Repair(constraints, 3, is_strict=True).run(np.array([1, 1]))[0].tolist() == [3, 1]
