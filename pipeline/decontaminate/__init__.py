"""Repo and its files -> Contamination: by name first, then by content against hashes of benchmark repositories.

names.py      benchmark_repos.toml -> which benchmark repository a name or page stands for
tokens.py     Python source -> shingle hashes, as written and with its identifiers normalised
minhash.py    shingle hashes -> MinHash and LSH: which reference files are worth an exact comparison
reference.py  benchmark sources -> hash index in the lake; hashes only, no code
verdict.py    repository against names and index -> Contamination with its evidence
"""

from pipeline.decontaminate.names import BenchmarkNames, load_names
from pipeline.decontaminate.reference import Reference, build_reference, load_reference
from pipeline.decontaminate.verdict import DecontaminationConfig, check_repo, matched_paths

__all__ = [
    "BenchmarkNames",
    "DecontaminationConfig",
    "Reference",
    "build_reference",
    "check_repo",
    "load_names",
    "load_reference",
    "matched_paths",
]
