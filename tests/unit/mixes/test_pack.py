"""Packing keeps every sample whole and leaves as little room as best-fit decreasing leaves."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixes.pack import pack

CONTEXT = 100
LENGTHS = st.lists(st.integers(1, CONTEXT), min_size=1, max_size=120)
SHORT = st.lists(st.integers(1, 12), min_size=1, max_size=120)


def best_fit_decreasing(lengths: list[int], context: int) -> list[int]:
    """Reference, one sample at a time -> loads of the bins, sorted."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [place for place, room in enumerate(rooms) if room >= length]
        if fitting:
            rooms[min(fitting, key=lambda place: rooms[place])] -= length
        else:
            rooms.append(context - length)
    return sorted(context - room for room in rooms)


def next_fit(lengths: list[int], context: int) -> int:
    """Lengths in the order given -> number of bins when only the last bin stays open."""
    bins, room = 0, 0
    for length in lengths:
        if length > room:
            bins, room = bins + 1, context
        room -= length
    return bins


@given(lengths=LENGTHS | SHORT, seed=st.integers(0, 3))
def test_every_sample_is_in_one_bin_once_and_no_bin_is_over_the_context(lengths: list[int], seed: int) -> None:
    packing = pack(np.array(lengths), CONTEXT, seed)
    placed = [sample for members in packing.bins for sample in members]
    assert sorted(placed) == list(range(len(lengths)))
    loads = [sum(lengths[sample] for sample in members) for members in packing.bins]
    assert max(loads) <= CONTEXT
    assert min(map(len, packing.bins)) >= 1
    assert packing.num_tokens == sum(lengths)
    assert math.isclose(packing.waste_share, 1 - sum(lengths) / (len(loads) * CONTEXT), abs_tol=1e-12)


@settings(max_examples=150)
@given(lengths=LENGTHS | SHORT)
def test_bins_are_those_of_best_fit_decreasing_done_one_sample_at_a_time(lengths: list[int]) -> None:
    packing = pack(np.array(lengths), CONTEXT, 0)
    loads = sorted(sum(lengths[sample] for sample in members) for members in packing.bins)
    assert loads == best_fit_decreasing(lengths, CONTEXT)


@settings(max_examples=150)
@given(lengths=LENGTHS | SHORT)
def test_waste_is_at_most_that_of_next_fit_over_the_same_order(lengths: list[int]) -> None:
    assert len(pack(np.array(lengths), CONTEXT, 0).bins) <= next_fit(sorted(lengths, reverse=True), CONTEXT)


def test_equal_input_gives_equal_bins_and_the_seed_changes_their_order_only() -> None:
    lengths = np.random.default_rng(0).integers(1, 3000, 2000)
    first, again, other = (pack(lengths, 4096, seed) for seed in (1, 1, 2))
    assert first == again
    assert first.bins != other.bins
    assert sorted(first.bins) == sorted(other.bins)


def test_bins_do_not_come_longest_sample_first() -> None:
    lengths = np.random.default_rng(0).integers(1, 4096, 2000)
    longest = [max(lengths[sample] for sample in members) for members in pack(lengths, 4096, 1).bins]
    half = len(longest) // 2
    assert abs(np.mean(longest[:half]) - np.mean(longest[half:])) < 100


def test_lengths_beyond_16_bits_are_sorted_right() -> None:
    lengths = np.array([70_000, 61_072, 131_072, 1, 65_536, 65_535])
    bins = sorted(sorted(members) for members in pack(lengths, 131_072, 0).bins)
    assert bins == [[0, 1], [2], [3, 4, 5]]


def test_a_lognormal_set_wastes_within_a_hundredth_of_a_percent_of_the_bound() -> None:
    lengths = np.exp(np.random.default_rng(0).normal(np.log(12_000), 1, 100_000)).astype(int) + 16
    lengths = lengths[lengths <= 65_536]
    packing = pack(lengths, 65_536, 1)
    bound = math.ceil(lengths.sum() / 65_536)
    assert packing.waste_share <= 1 - lengths.sum() / (bound * 65_536) + 0.001


def test_nothing_packs_into_nothing() -> None:
    assert pack(np.array([], int), 8, 0) == ([], 0, 0.0)


@pytest.mark.parametrize("lengths", [[9], [0]], ids=["over-context", "empty-sample"])
def test_a_length_that_cannot_be_packed_is_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match=r"exclude what is not in 1\.\.8"):
        pack(np.array(lengths), 8, 0)
