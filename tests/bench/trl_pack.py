"""Run with TRL on the path: lengths file, context -> seconds, bins and tokens of `trl.pack_dataset`, as JSON.

TRL packs token lists and copies them; each token is one byte here, which spares it most of the copying.
"""

import json
import sys
import time
from importlib.metadata import version

import datasets
import numpy as np
import pyarrow as pa
from trl import pack_dataset

ROWS_PER_CHUNK = 10_000
REPEATS = 3
"""The best counts, as for ours."""


def main() -> None:
    """Lengths -> a data set in memory -> the best time of packing it, map's own work included."""
    lengths, context = np.load(sys.argv[1]), int(sys.argv[2])
    datasets.disable_progress_bars()
    chunks = []
    for start in range(0, len(lengths), ROWS_PER_CHUNK):
        part = lengths[start : start + ROWS_PER_CHUNK]
        offsets = np.concatenate([[0], np.cumsum(part)]).astype(np.int32)
        chunks.append(pa.ListArray.from_arrays(offsets, pa.array(np.ones(offsets[-1], np.uint8))))
    table = pa.table({"input_ids": pa.chunked_array(chunks)})
    data = datasets.Dataset(datasets.table.InMemoryTable(table))
    seconds = float("inf")
    for _ in range(REPEATS):
        started = time.perf_counter()
        packed = pack_dataset(data, seq_length=context, strategy="bfd", map_kwargs={"keep_in_memory": True})
        seconds = min(seconds, time.perf_counter() - started)
    tokens = int(sum(map(sum, packed["seq_lengths"])))
    print(json.dumps({"seconds": seconds, "bins": len(packed), "tokens": tokens, "version": version("trl")}))


main()
