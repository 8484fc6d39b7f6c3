"""Benchmark repositories -> Reference: an index of shingle hashes in the lake, without a line of their code."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pipeline.decontaminate.minhash import CandidateIndex
from pipeline.decontaminate.names import BenchmarkNames
from pipeline.decontaminate.tokens import Shingles, shingle
from pipeline.errors import UserError
from pipeline.store import Lake
from pipeline.trees import Tree, unpack_tree
from pipeline.types import Repo, canonical_json

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSketch:
    """One file as hashes."""

    path: str
    blob_sha: str
    """Git's blob id: equal for equal files."""
    shingles: Shingles
    benchmark_repo: str = ""
    """Repository a reference file belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Everything that repositories are compared with."""

    id: str
    """Blob id of the stored index."""
    files: list[FileSketch]
    raw_index: CandidateIndex
    normal_index: CandidateIndex


def build_reference(lake: Lake, repos: Iterable[Repo], names: BenchmarkNames) -> Reference:
    """Repos of benchmark repositories -> their index, stored in the lake.

    Raises: UserError for a repository that no benchmark lists.
    """
    files: list[FileSketch] = []
    for repo in repos:
        benchmark_repo, _ = names.match(repo.source.name, repo.source.url)
        if not benchmark_repo:
            raise UserError(f"reference {repo.name} is in no benchmark list: name one of benchmark_repos.toml")
        files += sketch_files(unpack_tree(lake.get_blob(repo.tree)), benchmark_repo)
    return load_reference(lake, lake.put_blob(_encode(files)))


def load_reference(lake: Lake, reference_id: str) -> Reference:
    """Blob id -> the index it was stored as, ready for queries."""
    files = _decode(lake.get_blob(reference_id))
    return Reference(
        id=reference_id,
        files=files,
        raw_index=CandidateIndex([file.shingles.raw for file in files]),
        normal_index=CandidateIndex([file.shingles.normal for file in files]),
    )


def sketch_files(tree: Tree, benchmark_repo: str = "") -> list[FileSketch]:
    """Tree -> sketches of its Python files, in path order."""
    return [
        FileSketch(
            path=path,
            blob_sha=hashlib.sha1(b"blob %d\x00" % len(content) + content, usedforsecurity=False).hexdigest(),
            shingles=shingle(content),
            benchmark_repo=benchmark_repo,
        )
        for path, content in sorted(tree.items())
        if path.endswith(".py")
    ]


def _encode(files: list[FileSketch]) -> bytes:
    """Sketches -> one line of JSON (paths and counts), then all hashes, little-endian, in that order."""
    entries = [
        [file.benchmark_repo, file.path, file.blob_sha, len(file.shingles.raw), len(file.shingles.normal)]
        for file in files
    ]
    arrays = [part.astype("<u8").tobytes() for file in files for part in file.shingles]
    return canonical_json({"format": FORMAT, "files": entries}) + b"\n" + b"".join(arrays)


def _decode(data: bytes) -> list[FileSketch]:
    header, _, body = data.partition(b"\n")
    hashes = np.frombuffer(body, "<u8").astype(np.uint64)
    files = []
    start = 0
    for benchmark_repo, path, blob_sha, num_raw, num_normal in json.loads(header)["files"]:
        middle, end = start + num_raw, start + num_raw + num_normal
        shingles = Shingles(hashes[start:middle], hashes[middle:end])
        files.append(FileSketch(path=path, blob_sha=blob_sha, shingles=shingles, benchmark_repo=benchmark_repo))
        start = end
    return files
