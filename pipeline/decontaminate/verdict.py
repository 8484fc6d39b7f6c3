"""Repo, its tree, the reference index and the benchmark names -> Contamination, with the evidence for a person.

File rule: J >= 0.4 or C >= 0.5 on runs of 7 tokens as written, or C >= 0.7 on runs of 15 normalised tokens, where
C is the share of the reference file found in ours. Repository rule: a fifth of the comparable files, or 30 of them,
match one benchmark repository. Fewer matches are vendored code: listed, and tasks that touch those files are dropped.
"""

from pathlib import PurePosixPath
from typing import NamedTuple

from pydantic.dataclasses import dataclass as config_class

from pipeline.config import STRICT
from pipeline.decontaminate.names import BenchmarkNames
from pipeline.decontaminate.reference import FileSketch, Reference, sketch_files
from pipeline.decontaminate.tokens import compare
from pipeline.trees import Tree
from pipeline.types import Contamination, Repo, with_id

BOILERPLATE = {"setup.py", "conf.py", "_version.py", "versioneer.py"}
"""Copied between unrelated projects."""
SEPARATOR = " ~ "


@config_class(frozen=True, kw_only=True, config=STRICT)
class DecontaminationConfig:
    """Thresholds of the file rule and of the repository rule."""

    raw_jaccard: float = 0.4
    raw_containment: float = 0.5
    normal_containment: float = 0.7
    min_shingles: int = 30
    """Files with fewer runs of tokens are not comparable."""
    repo_share: float = 0.2
    """Share of comparable files matching one benchmark repository that makes a repository contaminated."""
    repo_files: int = 30
    """Number of such files that does."""


DEFAULTS = DecontaminationConfig()


class FileMatch(NamedTuple):
    """The closest reference file of one file."""

    path: str
    reference: FileSketch
    score: float
    measure: str
    is_match: bool

    def describe(self) -> str:
        """As stored in Contamination.matched_files."""
        place = f"{self.reference.benchmark_repo} {self.reference.path}"
        return f"{self.path}{SEPARATOR}{place}: {self.score:.2f} {self.measure}"


def check_repo(
    repo: Repo, tree: Tree, reference: Reference, names: BenchmarkNames, config: DecontaminationConfig = DEFAULTS
) -> Contamination:
    """Repository -> whether it is a benchmark repository by name, or by the content of its Python files."""
    known, why = names.match(repo.source.name, repo.source.url)
    files = [file for file in sketch_files(tree) if _is_comparable(file, config)]
    nearest = [found for file in files if (found := find_nearest(file, reference, config))]
    matches = [found for found in nearest if found.is_match]
    owner = known or _most_matched(matches) or _most_matched(nearest)
    mine = [found for found in matches if found.reference.benchmark_repo == owner]
    share = len(mine) / len(files) if files else 0.0
    is_copy = bool(mine) and (share >= config.repo_share or len(mine) >= config.repo_files)
    counts = f"{len(mine)} of {len(files)} comparable files match"
    example = max(mine, key=lambda found: found.score).describe() if mine else ""
    if known:
        rule, reason = "name", f"{repo.name} is {known} by name: {why}; {counts} the reference"
    elif is_copy:
        rule, reason = "content", f"{repo.name} is {owner} under another name: {counts}, e.g. {example}"
    elif mine:
        rule, reason = "none", f"{repo.name} is clean but carries files of {owner}: {counts}, e.g. {example}"
    else:
        rule, reason = "none", f"{repo.name} is clean: no name of a benchmark, {counts} a reference file"
        if nearest:
            reason += f"; nearest is {max(nearest, key=lambda found: found.score).describe()}"
    return with_id(
        Contamination(
            repo_id=repo.id,
            is_contaminated=rule != "none",
            rule=rule,
            benchmark=names.benchmark_of.get(owner, ""),
            benchmark_repo=owner,
            matched_files=[found.describe() for found in matches],
            matched_share=round(share, 4),
            reason=reason,
            reference_id=reference.id,
        )
    )


def matched_paths(contamination: Contamination) -> set[str]:
    """Evidence -> paths of the repository's own files that match a benchmark file."""
    return {text.split(SEPARATOR, 1)[0] for text in contamination.matched_files}


def find_nearest(file: FileSketch, reference: Reference, config: DecontaminationConfig) -> FileMatch | None:
    """File -> the reference file closest to the rule's thresholds, or None if nothing comes near."""
    for known in reference.files:
        if known.blob_sha == file.blob_sha:
            return FileMatch(file.path, known, 1.0, "same file", True)
    numbers = {*reference.raw_index.query(file.shingles.raw), *reference.normal_index.query(file.shingles.normal)}
    best: tuple[float, FileMatch] | None = None
    for number in sorted(numbers):
        known = reference.files[number]
        if not _is_comparable(known, config):
            continue
        for score, threshold, measure in _scores(file, known, config):
            ratio = score / threshold
            if best is None or ratio > best[0]:
                best = ratio, FileMatch(file.path, known, score, measure, ratio >= 1)
    return best[1] if best else None


def _scores(file: FileSketch, known: FileSketch, config: DecontaminationConfig) -> list[tuple[float, float, str]]:
    raw = compare(file.shingles.raw, known.shingles.raw)
    normal = compare(file.shingles.normal, known.shingles.normal)
    return [
        (raw.jaccard, config.raw_jaccard, "Jaccard as written"),
        (raw.containment, config.raw_containment, "contained as written"),
        (normal.containment, config.normal_containment, "contained with names normalised"),
    ]


def _is_comparable(file: FileSketch, config: DecontaminationConfig) -> bool:
    return len(file.shingles.raw) >= config.min_shingles and PurePosixPath(file.path).name not in BOILERPLATE


def _most_matched(matches: list[FileMatch]) -> str:
    """Matches -> the benchmark repository most of them point at; ties go to the first name."""
    repos = [found.reference.benchmark_repo for found in matches]
    return max(sorted(set(repos)), key=repos.count, default="")
