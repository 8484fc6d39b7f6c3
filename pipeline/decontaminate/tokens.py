"""Python source -> sorted 64-bit shingle hashes: runs of 7 tokens as written, of 15 with identifiers normalised.

Tokens are the leaves of the syntax tree, comments left out. Normalised shingles survive renaming: every identifier,
number and string counts as its kind only.
"""

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tree_sitter
import tree_sitter_python
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
"""Sorted and unique."""

RAW_RUN = 7
NORMAL_RUN = 15
KINDS = {"identifier": b"\x00i", "integer": b"\x00n", "float": b"\x00n", "string_content": b"\x00s"}
"""Leaf kind -> what stands for it among normalised tokens."""
MULTIPLIER = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


class Shingles(NamedTuple):
    """The two shingle sets of one file."""

    raw: Hashes
    normal: Hashes


def shingle(source: bytes) -> Shingles:
    """Source -> its shingle sets; broken syntax still yields the leaves that were understood."""
    raw, normal = [], []
    for kind, text in _leaves(source):
        raw.append(text)
        normal.append(KINDS.get(kind, text))
    return Shingles(_hash_runs(raw, RAW_RUN), _hash_runs(normal, NORMAL_RUN))


def _leaves(source: bytes) -> Iterator[tuple[str, bytes]]:
    """Depth first over the syntax tree, without recursion: foreign code may nest deeply."""
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_python.language()))
    cursor = parser.parse(source).walk()
    is_done = False
    while not is_done:
        if cursor.goto_first_child():
            continue
        node = cursor.node
        assert node is not None, "a cursor stands on a node"
        if node.type != "comment" and node.end_byte > node.start_byte:
            yield node.type, source[node.start_byte : node.end_byte]
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                is_done = True
                break


def _hash_runs(tokens: list[bytes], length: int) -> Hashes:
    """Tokens -> one hash per run of `length` tokens: a polynomial over token hashes, then mixed."""
    if len(tokens) < length:
        return np.zeros(0, np.uint64)
    known: dict[bytes, int] = {token: _hash_token(token) for token in set(tokens)}
    hashes = np.fromiter((known[token] for token in tokens), np.uint64, len(tokens))
    count = len(tokens) - length + 1
    runs = np.zeros(count, np.uint64)
    for place in range(length):
        runs += hashes[place : place + count] * np.uint64(pow(MULTIPLIER, place + 1, 1 << 64))
    return np.unique(_mix(runs))


def _hash_token(token: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(token, digest_size=8).digest(), "little")


def _mix(values: Hashes) -> Hashes:
    """Finaliser of MurmurHash3: spreads every input bit over the 64 output bits."""
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))


class Similarity(NamedTuple):
    """Exact comparison of two shingle sets."""

    jaccard: float
    containment: float
    """Share of the second set that is in the first."""


def compare(ours: Hashes, reference: Hashes) -> Similarity:
    """Two shingle sets -> Jaccard similarity, and containment of the reference in ours; 0 where either is empty."""
    if not len(ours) or not len(reference):
        return Similarity(0.0, 0.0)
    shared = len(np.intersect1d(ours, reference, assume_unique=True))
    return Similarity(shared / (len(ours) + len(reference) - shared), shared / len(reference))
