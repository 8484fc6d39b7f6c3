"""Contamination records -> which repositories were refused, by which rule, on what evidence."""

from dataclasses import dataclass
from typing import NamedTuple

from flows.report.evidence import Evidence


class Finding(NamedTuple):
    """What was found for one version of one repository."""

    repo: str
    version: str
    is_contaminated: bool
    rule: str
    benchmark: str
    benchmark_repo: str
    matched_files: list[str]
    matched_share: float
    reason: str
    num_tasks: int
    """Valid tasks made from this version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decontamination:
    """All findings, refused repositories first."""

    findings: list[Finding]
    reference_ids: list[str]
    """Reference indexes compared against."""

    @property
    def num_refused(self) -> int:
        """Repositories refused."""
        return sum(finding.is_contaminated for finding in self.findings)


def decontamination(evidence: Evidence) -> Decontamination:
    """Contamination records with their repositories -> findings, refused first."""
    findings = [Finding(**row) for row in evidence.rows(FINDINGS)]
    references = [row["reference_id"] for row in evidence.rows(REFERENCES)]
    return Decontamination(findings=findings, reference_ids=references)


FINDINGS = """
    SELECT r.name AS repo, (r.source->>'version') AS version, c.is_contaminated, c.rule, c.benchmark, c.benchmark_repo,
           c.matched_files, c.matched_share, c.reason,
           (SELECT count(*) FROM tasks t WHERE t.repo_id = r.id AND t.status = 'valid') AS num_tasks
    FROM contamination c JOIN repos r ON r.id = c.repo_id
    ORDER BY c.is_contaminated DESC, r.name, version, c.id
"""
REFERENCES = "SELECT DISTINCT reference_id FROM contamination ORDER BY reference_id"
