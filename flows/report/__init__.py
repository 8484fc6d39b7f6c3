"""Lake -> one static HTML file: figures, stages, decontamination, mix, loss, examples, filters and lineage.

One module per section turns records into the few values that its template prints. Nothing is read but the lake, the
tokenizer and the given stage reports; the file needs no network, and its policy forbids it one.
"""

import base64
import functools
import hashlib
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from flows.report import figures
from flows.report.ancestry import ancestry
from flows.report.composition import composition
from flows.report.decontamination import decontamination
from flows.report.evidence import Evidence
from flows.report.example import dropped_example, trained_example
from flows.report.filtering import filtering
from flows.report.headline import headline
from flows.report.losses import losses
from flows.report.stages import stages as stage_lines
from mixes.manifest import load
from pipeline.store import Lake, StageReport, write_atomic
from pipeline.tokenizer import load_tokenizer

TEMPLATES = Path(__file__).with_name("templates")


class Section(NamedTuple):
    """One part of the page."""

    anchor: str
    """Names its template, too."""
    heading: str
    data: Any
    """What the template prints; None where there is nothing to show."""


def write_report(
    lake: Lake, path: Path, *, mix_id: str, tokenizer_folder: Path, stages: list[StageReport], title: str
) -> Path:
    """Lake, a locked mix and the stage reports of a run -> the report's path, the file written whole.

    Raises: UserError when the lock, a shard of it or the tokenizer is missing or altered.
    """
    with closing(Evidence(lake, load(lake, mix_id), load_tokenizer(tokenizer_folder), stages)) as evidence:
        write_atomic(path, _page(evidence, title).encode())
    return path


def _sections(evidence: Evidence) -> list[Section]:
    trained = trained_example(evidence)
    return [
        Section("headline", "What came out", headline(evidence)),
        Section("stages", "Stages", stage_lines(evidence)),
        Section("decontamination", "Decontamination", decontamination(evidence)),
        Section("composition", "Mix against target", composition(evidence)),
        Section("losses", "Loss", losses(evidence)),
        Section("trained", "One sample and its loss mask", trained),
        Section("dropped", "One trajectory that was dropped", dropped_example(evidence)),
        Section("filtering", "Filters", filtering(evidence)),
        Section("ancestry", "Where that sample comes from", ancestry(evidence, trained.sample if trained else None)),
    ]


def _page(evidence: Evidence, title: str) -> str:
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            title=title,
            mix_id=evidence.mix.id,
            sections=_sections(evidence),
            style_hash=_policy_hash("style.css"),
            script_hash=_policy_hash("page.js"),
        )
    )


@functools.cache
def _environment() -> Environment:
    """Text of the lake is untrusted: everything printed is escaped, and what cannot be seen is spelled out."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=figures.visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= figures.FILTERS
    return environment


def _policy_hash(name: str) -> str:
    """File that the page holds inside itself -> the hash by which the page's policy allows it."""
    text = (TEMPLATES / name).read_text().removesuffix("\n")
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
