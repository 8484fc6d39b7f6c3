"""Stage reports and ledger -> what each stage took in, let through and dropped, and how long it took."""

from dataclasses import dataclass
from typing import NamedTuple

from flows.report.evidence import Evidence


class Reason(NamedTuple):
    """Why items did not go on."""

    text: str
    num_items: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLine:
    """One stage of this run."""

    name: str
    num_in: int
    num_out: int
    num_reused: int
    num_failed: int
    reasons: list[Reason]
    """Most frequent first."""
    seconds: float
    """Wall time in this run."""
    worked_sec: float
    """Sum over its items, whenever they ran."""
    bar: float
    """Seconds as a share of the longest stage's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The stage table."""

    lines: list[StageLine]
    seconds: float
    worked_sec: float
    num_in: int
    num_reused: int


def stages(evidence: Evidence) -> Stages:
    """Reports of this run, ledger of all runs -> the stage table."""
    worked = {row["stage"]: row["worked"] for row in evidence.rows(WORKED)}
    longest = max((report.seconds for report in evidence.stages), default=0.0)
    lines = [
        StageLine(
            name=report.stage,
            num_in=report.num_in,
            num_out=report.num_ok,
            num_reused=report.num_reused,
            num_failed=report.num_failed,
            reasons=[
                Reason(text, number)
                for text, number in sorted(report.reasons.items(), key=lambda pair: (-pair[1], pair[0]))
            ],
            seconds=report.seconds,
            worked_sec=worked.get(report.stage, 0.0),
            bar=report.seconds / longest if longest else 0.0,
        )
        for report in evidence.stages
    ]
    return Stages(
        lines=lines,
        seconds=sum(line.seconds for line in lines),
        worked_sec=sum(line.worked_sec for line in lines),
        num_in=sum(line.num_in for line in lines),
        num_reused=sum(line.num_reused for line in lines),
    )


WORKED = "SELECT stage, sum(seconds) AS worked FROM ledger GROUP BY stage"
