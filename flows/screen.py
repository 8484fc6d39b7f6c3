"""Stage reports, findings and lineage -> what a terminal shows."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from flows.claims import Claim
from flows.doctor import Finding
from flows.why import Step
from pipeline.store import LedgerRow, OnRow, StageReport

STATE_STYLE = {"ok": "green", "warning": "yellow", "missing": "bold red", "FAILED": "bold red"}
MAX_REASONS = 4


def console() -> Console:
    """Standard output, wide enough for tables when it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 140, highlight=False)


class Line(NamedTuple):
    """One stage's line of progress."""

    on_row: OnRow
    """To be called with each finished item."""
    note: Callable[[str], None]
    """To be called with a few words about the item at work."""


@contextmanager
def progress(stage: str, num_items: int) -> Iterator[Line]:
    """Stage -> its line: a bar on a terminal, plain lines elsewhere."""
    screen = console()
    if not sys.stdout.isatty():
        screen.print(f"{stage}: {num_items} items")
        yield Line(lambda row: None, lambda text: screen.print(f"{stage}: {text}"))
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[last]}"),
    )
    with Progress(*columns, console=screen) as bar:
        task = bar.add_task(stage, total=num_items, last="")

        def advance(row: LedgerRow) -> None:
            bar.update(task, advance=1, last="" if row.status == "ok" else row.reason[:60])

        yield Line(advance, lambda text: bar.update(task, last=text))


def stage_table(reports: list[StageReport]) -> Table:
    """Reports -> what happened at each stage."""
    table = Table(title="What happened", title_justify="left", show_lines=False)
    for name in ("stage", "in", "out", "dropped, by reason", "reused", "seconds"):
        table.add_column(name, justify="left" if name in ("stage", "dropped, by reason") else "right", overflow="fold")
    for report in reports:
        ordered = sorted(report.reasons.items(), key=lambda pair: (-pair[1], pair[0]))
        shown = [f"{count} {reason}" for reason, count in ordered[:MAX_REASONS]]
        if len(ordered) > MAX_REASONS:
            shown.append(f"{sum(count for _, count in ordered[MAX_REASONS:])} for other reasons")
        dropped = ", ".join(shown)
        table.add_row(
            report.stage,
            str(report.num_in),
            str(report.num_ok),
            dropped,
            str(report.num_reused) if report.num_reused else "",
            f"{report.seconds:.1f}",
        )
    return table


def claims_table(claims: list[Claim]) -> Table:
    """Claims -> which hold, with their figures."""
    table = Table(title="What it shows", title_justify="left")
    for name in ("claim", "holds", "figure"):
        table.add_column(name, overflow="fold")
    for claim in claims:
        state = "ok" if claim.holds else "FAILED"
        table.add_row(claim.text, f"[{STATE_STYLE[state]}]{state}[/]", claim.figure)
    return table


def findings_table(findings: list[Finding]) -> Table:
    """Doctor's findings -> one screen."""
    table = Table(title="treadle doctor", title_justify="left")
    for name in ("check", "state", "what is there", "how to mend it"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        style = STATE_STYLE[finding.state]
        table.add_row(finding.name, f"[{style}]{finding.state}[/]", finding.detail, finding.remedy)
    return table


def lineage_lines(steps: list[Step]) -> list[str]:
    """Lineage -> indented lines, child first."""
    lines = []
    for depth, step in enumerate(steps):
        indent = "  " * depth
        lines.append(f"{indent}{step.table} {step.id[:12]}")
        lines += [f"{indent}    {name}: {value}" for name, value in step.facts.items()]
    return lines
