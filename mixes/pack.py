"""Lengths of samples -> bins of at most `context` tokens: global best-fit decreasing over an index; nothing is split.

The longest samples are placed first, each into the bin with the least room that is still enough. Samples of equal
length and bins with equal room are handled as one, which changes nothing about the result and makes it fast.
"""

from itertools import chain
from typing import NamedTuple

import numpy as np

ALGORITHM = "best_fit_decreasing"
VERSION = 1
WORD_BITS = 256
"""Bits per word of the set of rooms: two levels of words cover 65,536 tokens."""
MASK_64 = 0xFFFF_FFFF_FFFF_FFFF


class Packing(NamedTuple):
    """Which samples share a bin."""

    bins: list[list[int]]
    """Indices of samples, in the order in which the bins are to be seen."""
    num_tokens: int
    waste_share: float
    """Share of all bins' room that holds no token."""


class _Rooms:
    """Room in tokens -> bins with exactly that room; finds the least room that is enough."""

    def __init__(self, context: int) -> None:
        self.bins: dict[int, list[int]] = {}
        self.words = [0] * (context // WORD_BITS + 1)
        self.summary = 0
        """Bit per word that is not empty."""

    def least(self, length: int) -> int:
        """Length -> least room of a bin that can take it, or -1."""
        word, bit = divmod(length, WORD_BITS)
        high = self.words[word] >> bit
        if high:
            return length + (high & -high).bit_length() - 1
        above = self.summary >> (word + 1)
        if not above:
            return -1
        word += (above & -above).bit_length()
        low = self.words[word]
        return word * WORD_BITS + (low & -low).bit_length() - 1

    def add(self, room: int, bins: list[int]) -> None:
        """Bins get a room."""
        known = self.bins.get(room)
        if known:
            known.extend(bins)
            return
        self.bins[room] = bins
        word, bit = divmod(room, WORD_BITS)
        self.words[word] |= 1 << bit
        self.summary |= 1 << word

    def take(self, room: int, most: int) -> list[int]:
        """Room -> up to `most` of its bins, removed, oldest first."""
        bins = self.bins[room]
        if len(bins) > most:
            self.bins[room] = bins[most:]
            return bins[:most]
        del self.bins[room]
        word, bit = divmod(room, WORD_BITS)
        self.words[word] &= ~(1 << bit)
        if not self.words[word]:
            self.summary &= ~(1 << word)
        return bins


def pack(lengths: np.ndarray, context: int, seed: int) -> Packing:
    """Tokens of each sample -> bins. Every sample is in exactly one bin; order within and among bins follows `seed`.

    Raises: ValueError when a sample is empty or longer than the context.
    """
    lengths = np.asarray(lengths, np.int64)
    if not len(lengths):
        return Packing([], 0, 0.0)
    if lengths.min() < 1 or lengths.max() > context:
        raise ValueError(
            f"lengths lie between {lengths.min()} and {lengths.max()}: exclude what is not in 1..{context}"
        )
    order = _longest_first(lengths, context)
    bin_of, num_bins = _place(lengths[order], context)
    # Bins come out longest sample first, which would make training steps uneven: shuffle them by key.
    rank = np.argsort(np.argsort(_keys(num_bins, seed), kind="stable"), kind="stable")
    placed = np.empty(len(lengths), np.int64)
    placed[order] = rank[bin_of]
    members = np.argsort(placed, kind="stable").tolist()
    ends = np.cumsum(np.bincount(placed, minlength=num_bins)).tolist()
    bins = [members[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    num_tokens = int(lengths.sum())
    return Packing(bins, num_tokens, 1 - num_tokens / (num_bins * context))


def _longest_first(lengths: np.ndarray, context: int) -> np.ndarray:
    """Lengths -> their indices, longest first, equal ones in order; sorting by 16 bits is what numpy does fast."""
    room = context - lengths
    order = np.argsort((room & 0xFFFF).astype(np.uint16), kind="stable")
    high = (room >> 16).astype(np.uint16)
    return order[np.argsort(high[order], kind="stable")] if high.any() else order


def _place(descending: np.ndarray, context: int) -> tuple[np.ndarray, int]:
    """Lengths, longest first -> bin of each, and how many bins there are."""
    distinct, counts = np.unique(-descending, return_counts=True)
    rooms = _Rooms(context)
    used: list[list[int]] = []
    """Bins that take the next samples, each `fills` samples."""
    fills: list[int] = []
    num_bins = 0
    for length, left in zip((-distinct).tolist(), counts.tolist(), strict=True):
        while left:
            room = rooms.least(length)
            if room < 0:
                room = context
                fresh = max(1, left // (context // length))
                taken = list(range(num_bins, num_bins + fresh))
                num_bins += fresh
            else:
                taken = rooms.take(room, max(1, left // (room // length)))
            # A bin that takes one sample has less room than before and still the least, so it takes all it can.
            each = min(room // length, left)
            used.append(taken)
            fills.append(each)
            left -= each * len(taken)
            if room > each * length:
                rooms.add(room - each * length, list(taken))
    bins = np.fromiter(chain.from_iterable(used), np.int64)
    return np.repeat(bins, np.repeat(fills, [len(taken) for taken in used])), num_bins


def _keys(count: int, seed: int) -> np.ndarray:
    """Numbers 0..count-1 -> uint64 keys: splitmix64, whose arithmetic is fixed for all machines."""
    state = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)
    state += np.uint64((seed * 0xD1B5_4A32_D192_ED03) & MASK_64)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return np.asarray(state ^ (state >> np.uint64(31)))
