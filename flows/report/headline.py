"""Lake -> the figures of the whole journey, and the journey as a drawing."""

from dataclasses import dataclass
from typing import NamedTuple

from flows.report.evidence import Evidence
from flows.report.figures import count, plural, share
from pipeline.types import Checkpoint, Parity

STATION_WIDTH, STATION_GAP = 112, 24
"""Pixels."""


class Teacher(NamedTuple):
    """What one teacher's rollouts came to."""

    name: str
    model: str
    num_trajectories: int
    num_resolved: int
    mean_reward: float
    mean_steps: float
    num_samples: int


class Kind(NamedTuple):
    """Valid tasks made in one way."""

    strategy: str
    domain: str
    num_tasks: int


class Station(NamedTuple):
    """One record type on the way, in pixels."""

    x: int
    name: str
    number: int
    note: str


class Counts(NamedTuple):
    """Records of the lake, each id once."""

    num_repos: int
    """Names; versions of one repository count once."""
    num_refused: int
    num_tasks: int
    num_valid_tasks: int
    num_trajectories: int
    num_resolved: int
    num_verdicts: int
    num_dropped: int
    """Trajectories."""
    num_samples: int
    num_sample_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """Figures of the whole journey."""

    counts: Counts
    stations: list[Station]
    station_width: int
    station_gap: int
    width: int
    teachers: list[Teacher]
    kinds: list[Kind]
    num_mix_samples: int
    num_mix_trainable: int
    num_mix_tokens: int
    checkpoint: Checkpoint | None
    parity: Parity | None


def headline(evidence: Evidence) -> Headline:
    """Counts of every record type, each asked of the lake."""
    (row,) = evidence.rows(COUNTS)
    counts = Counts(**row)
    checkpoint = evidence.checkpoint()
    parities = evidence.records(
        Parity, "checkpoint_id = $checkpoint ORDER BY id LIMIT 1", checkpoint=checkpoint.id if checkpoint else ""
    )
    stations = _stations(counts, evidence, checkpoint)
    return Headline(
        counts=counts,
        stations=stations,
        station_width=STATION_WIDTH,
        station_gap=STATION_GAP,
        width=stations[-1].x + STATION_WIDTH + 1,
        teachers=[Teacher(**row) for row in evidence.rows(TEACHERS)],
        kinds=[Kind(**row) for row in evidence.rows(KINDS)],
        num_mix_samples=evidence.mix.num_samples,
        num_mix_trainable=evidence.mix.num_trainable,
        num_mix_tokens=evidence.mix.num_tokens,
        checkpoint=checkpoint,
        parity=parities[0] if parities else None,
    )


def _stations(counts: Counts, evidence: Evidence, checkpoint: Checkpoint | None) -> list[Station]:
    packing = evidence.mix.packing
    journey = [
        ("Repository", counts.num_repos, f"{count(counts.num_refused)} refused"),
        ("Task", counts.num_valid_tasks, f"valid, of {count(counts.num_tasks)}"),
        ("Trajectory", counts.num_trajectories, f"{count(counts.num_resolved)} resolved"),
        ("Verdict", counts.num_verdicts, f"{count(counts.num_dropped)} runs dropped"),
        ("Sample", counts.num_samples, plural(counts.num_sample_tokens, "token")),
        ("MixManifest", 1, plural(evidence.mix.num_samples, "sample")),
        ("Batch", len(packing.bins), f"{share(packing.waste_share)} padding"),
        ("Checkpoint", 1 if checkpoint else 0, plural(checkpoint.num_steps, "step") if checkpoint else "not trained"),
    ]
    return [
        Station(1 + place * (STATION_WIDTH + STATION_GAP), name, number, note)
        for place, (name, number, note) in enumerate(journey)
    ]


COUNTS = """
    SELECT (SELECT count(DISTINCT name) FROM repos) AS num_repos,
           (SELECT count(DISTINCT r.name) FROM repos r JOIN contamination c ON c.repo_id = r.id
            WHERE c.is_contaminated) AS num_refused,
           (SELECT count(DISTINCT id) FROM tasks) AS num_tasks,
           (SELECT count(DISTINCT id) FROM tasks WHERE status = 'valid') AS num_valid_tasks,
           (SELECT count(DISTINCT id) FROM trajectories) AS num_trajectories,
           (SELECT count(DISTINCT id) FROM trajectories WHERE CAST((result->>'reward') AS DOUBLE) = 1) AS num_resolved,
           (SELECT count(DISTINCT id) FROM verdicts) AS num_verdicts,
           (SELECT count(DISTINCT trajectory_id) FROM verdicts WHERE action = 'drop') AS num_dropped,
           (SELECT count(DISTINCT id) FROM samples) AS num_samples,
           (SELECT coalesce(sum(num_tokens), 0)::BIGINT FROM samples) AS num_sample_tokens
"""
TEACHERS = """
    SELECT (t.teacher->>'name') AS name, (t.teacher->>'model') AS model, count(*) AS num_trajectories,
           count(*) FILTER (CAST((t.result->>'reward') AS DOUBLE) = 1) AS num_resolved,
           avg(CAST((t.result->>'reward') AS DOUBLE)) AS mean_reward, avg(t.num_steps) AS mean_steps,
           count(*) FILTER (t.id IN (SELECT trajectory_id FROM samples)) AS num_samples
    FROM trajectories t GROUP BY ALL ORDER BY name, model
"""
KINDS = """
    SELECT strategy, domain, count(DISTINCT id) AS num_tasks FROM tasks WHERE status = 'valid'
    GROUP BY ALL ORDER BY num_tasks DESC, strategy, domain
"""
