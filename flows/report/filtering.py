"""Verdicts -> how many trajectories each filter touched, by reason and teacher, with an example."""

from dataclasses import dataclass

from flows.report.evidence import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One reason of one filter."""

    filter: str
    version: int
    action: str
    reason: str
    counts: list[int]
    """Trajectories, one count per teacher."""
    total: int
    evidence: str
    trajectory: str
    """Where the evidence is from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtering:
    """Counts of trajectories by finding and teacher."""

    teachers: list[str]
    lines: list[Line]
    seen: list[int]
    """Trajectories with any verdict, one count per teacher."""
    dropped: list[int]
    """Trajectories with at least one drop, one count per teacher."""

    @property
    def num_seen(self) -> int:
        """Trajectories that the filters looked at."""
        return sum(self.seen)

    @property
    def num_dropped(self) -> int:
        """Trajectories that at least one filter dropped."""
        return sum(self.dropped)


def filtering(evidence: Evidence) -> Filtering:
    """Verdicts joined to their trajectories -> table of counts; "keep" rows count as seen only."""
    per_teacher = {row["teacher"]: row for row in evidence.rows(PER_TEACHER)}
    teachers = sorted(per_teacher)
    lines: dict[tuple[str, int, str, str], dict[str, int]] = {}
    examples: dict[tuple[str, int, str, str], tuple[str, str]] = {}
    for row in evidence.rows(FINDINGS):
        key = (row["filter"], row["filter_version"], row["action"], row["reason"])
        lines.setdefault(key, {})[row["teacher"]] = row["num_trajectories"]
        examples.setdefault(key, (row["example"], row["example_from"]))
    return Filtering(
        teachers=teachers,
        lines=[
            Line(
                filter=key[0],
                version=key[1],
                action=key[2],
                reason=key[3],
                counts=[by_teacher.get(teacher, 0) for teacher in teachers],
                total=sum(by_teacher.values()),
                evidence=examples[key][0],
                trajectory=examples[key][1],
            )
            for key, by_teacher in lines.items()
        ],
        seen=[per_teacher[teacher]["seen"] for teacher in teachers],
        dropped=[per_teacher[teacher]["dropped"] for teacher in teachers],
    )


FINDINGS = """
    SELECT v.filter, v.filter_version, v.action, v.reason, (t.teacher->>'name') AS teacher,
           count(DISTINCT t.id) AS num_trajectories,
           arg_min(v.evidence, v.id) AS example, arg_min(t.id, v.id) AS example_from
    FROM verdicts v JOIN trajectories t ON t.id = v.trajectory_id
    WHERE v.action <> 'keep'
    GROUP BY ALL ORDER BY v.filter, v.action, v.reason, teacher
"""
PER_TEACHER = """
    SELECT (t.teacher->>'name') AS teacher, count(DISTINCT t.id) AS seen,
           count(DISTINCT t.id) FILTER (v.action = 'drop') AS dropped
    FROM verdicts v JOIN trajectories t ON t.id = v.trajectory_id
    GROUP BY teacher
"""
