"""Shingle hashes -> MinHash signature -> LSH index: candidates only, every one is then compared exactly."""

import numpy as np
from datasketch import MinHash, MinHashLSH

from pipeline.decontaminate.tokens import Hashes

NUM_PERM = 128
SEED = 1
SCHEME = "affine32"
BANDS, ROWS = 64, 2
"""Chance to become a candidate is 1 - (1 - J^2)^64: 0.93 at J = 0.2, over 0.9999 at J = 0.4.

A reference file inside one more than five times its size has J below 0.2 and can be missed.
"""


def sign(hashes: Hashes) -> MinHash:
    """Shingle hashes -> signature; 64-bit hashes are folded to the 32 bits that the scheme takes."""
    signature = MinHash(num_perm=NUM_PERM, seed=SEED, scheme=SCHEME, hashfunc=int)
    folded = (hashes ^ (hashes >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    signature.update_batch(folded.tolist())
    return signature


class CandidateIndex:
    """Numbered shingle sets -> those that may resemble a given one."""

    def __init__(self, sets: list[Hashes]) -> None:
        self.lsh = MinHashLSH(num_perm=NUM_PERM, params=(BANDS, ROWS))
        for number, hashes in enumerate(sets):
            if len(hashes):
                self.lsh.insert(number, sign(hashes))

    def query(self, hashes: Hashes) -> list[int]:
        """Shingle set -> numbers of possible matches, in order."""
        return sorted(self.lsh.query(sign(hashes))) if len(hashes) else []
