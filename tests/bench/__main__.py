"""`python -m tests.bench AREA` -> a table, and build/bench/<AREA>.json."""

import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench import mix, store
from tests.bench.figure import Figure

AREAS = {"mix": mix.measure, "store": store.measure}
"""Name -> function from a working folder to figures."""
WIDTH = 150
"""Characters; names are never cut."""
BUILD = Path(__file__).parents[2] / "build" / "bench"


def number(value: float | None) -> str:
    """Number -> four significant digits."""
    return "-" if value is None else f"{value:,.4g}"


def table(figures: list[Figure]) -> Table:
    """Figures -> table for a terminal."""
    shown = Table("figure", "value", "unit", "peer", "peer's value", "times better")
    for one in figures:
        shown.add_row(
            one.name, number(one.value), one.unit, one.peer or one.reason, number(one.peer_value), number(one.ratio)
        )
    return shown


def main() -> int:
    """Command line -> exit code."""
    area = sys.argv[1] if len(sys.argv) == 2 else ""
    if area not in AREAS:
        print(f"there is no bench area {area!r}: make bench AREA=<one of {', '.join(AREAS)}>", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.WARNING)
    BUILD.mkdir(parents=True, exist_ok=True)
    figures = AREAS[area](BUILD)
    path = BUILD / f"{area}.json"
    path.write_text(json.dumps([asdict(one) for one in figures], indent=1) + "\n")
    Console(width=WIDTH).print(table(figures))
    print(f"written to {path.relative_to(BUILD.parents[1])}")
    return 0


sys.exit(main())
