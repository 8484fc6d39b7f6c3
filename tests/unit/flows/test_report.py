"""The report shows the lake's own figures, trusts none of its text, and needs nothing but itself."""

import re
from pathlib import Path

import pytest

from flows.report import write_report
from mixes.intent import MixIntent, Share, Slice
from mixes.manifest import MixManifest
from mixes.solve import solve_and_lock
from tests.unit.flows.report_lake import Made, make_until_samples, train


def lock_mix(made: Made) -> MixManifest:
    shares = (
        Share(name="agentic", slice=Slice(domain=("agentic_code",)), share=0.6, tolerance=0.2),
        Share(name="reasoning", slice=Slice(domain=("reasoning",)), share=0.4, tolerance=0.2),
    )
    return solve_and_lock(made.lake, MixIntent(name="demo", stage="stage1", context_tokens=4096, seed=1, shares=shares))
