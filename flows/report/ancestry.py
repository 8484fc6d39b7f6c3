"""Sample -> the chain of records back to the archive its code came from, and on to the checkpoint it trained."""

from dataclasses import dataclass
from typing import NamedTuple

from flows.report.evidence import Evidence
from flows.why import lineage
from pipeline.types import Sample

WORDS = {
    "parity": "Parity",
    "checkpoints": "Checkpoint",
    "mixes": "Mix",
    "samples": "Sample",
    "verdicts": "Verdict",
    "trajectories": "Trajectory",
    "tasks": "Task",
    "images": "Container image",
    "contamination": "Decontamination",
    "benchmarks": "Benchmark index",
    "repos": "Repository",
}
"""Table -> what a reader calls its record."""


class Link(NamedTuple):
    """One record of the chain."""

    word: str
    id: str
    facts: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ancestry:
    """The chain of one sample."""

    links: list[Link]
    """Child first, the repository last."""
    archive_kind: str
    archive: str
    """Name and version of the source."""
    archive_sha256: str
    checkpoint: str
    """Checkpoint trained on the mix; empty before training."""
    is_in_mix: bool


def ancestry(evidence: Evidence, sample: Sample | None) -> Ancestry | None:
    """The example's sample -> its chain; None without a sample."""
    if sample is None:
        return None
    steps = sorted(lineage(evidence.lake, sample.id), key=lambda step: step.table == "repos")
    source = evidence.rows(SOURCE, task=sample.task_id)
    checkpoint = evidence.checkpoint()
    return Ancestry(
        links=[Link(WORDS[step.table], step.id, step.facts) for step in steps],
        archive_kind=source[0]["kind"] if source else "",
        archive=f"{source[0]['name']} {source[0]['version']}" if source else "",
        archive_sha256=source[0]["sha256"] if source else "",
        checkpoint=checkpoint.id if checkpoint else "",
        is_in_mix=sample.id in evidence.mix.sample_ids,
    )


SOURCE = """
    SELECT (source->>'kind') AS kind, (source->>'name') AS name, (source->>'version') AS version,
           (source->>'sha256') AS sha256
    FROM tasks WHERE id = $task LIMIT 1
"""
