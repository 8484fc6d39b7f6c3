"""The `treadle` command: arguments -> one call into a room; errors -> one sentence and an exit code.

Exit codes: 0 done; 1 a defect or a claim that does not hold; 2 something the caller can mend; 3 infrastructure failed.
Rooms are imported by the command that needs them, so that help stays quick.
"""

import errno
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

if TYPE_CHECKING:
    from pipeline.store import Lake

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "configs" / "demo.toml"
Work = Annotated[Path, Parameter(help="Folder that holds the lake and everything else a run makes.")]
WORK = Path("build/demo")

app = App(name="treadle", help="The loom for agentic coding models.", version_flags=["--version"])
mix = App(name="mix", help="Ask what a mix is made of.")
app.command(mix)


@app.command
def demo(*, config: Path = DEMO, work: Work = WORK) -> int:
    """Run the whole journey on real input: repositories in, a trained and served checkpoint out."""
    prepare_prefect(work)
    from flows.orphans import end_orphans_of

    end_orphans_of(work.resolve() / "prefect")
    from flows.journey import run_journey

    return run_journey(config, work)


@app.command
def doctor(*, work: Work = WORK) -> int:
    """Say what this machine has and lacks, and how to mend it."""
    from flows.doctor import examine
    from flows.screen import console, findings_table

    findings = examine(work)
    console().print(findings_table(findings))
    return 1 if any(finding.state == "missing" for finding in findings) else 0


@app.command
def why(record: str, *, work: Work = WORK) -> int:
    """Follow an id (sample, trajectory, task, checkpoint, ...) back to the source it came from."""
    from flows.screen import lineage_lines
    from flows.why import lineage

    print("\n".join(lineage_lines(lineage(open_lake(work), record))))
    return 0


@app.command
def reap() -> int:
    """Remove containers whose driver is gone."""
    from pipeline.containers.engine import connect
    from pipeline.containers.reaper import reap as remove_orphans

    print(f"removed {remove_orphans(connect())} containers")
    return 0


@mix.command
def sql(
    query: str,
    *,
    lock: Annotated[str, Parameter(name="--mix", help="Lock id: adds the views mix and targets.")] = "",
    format: Literal["table", "csv", "json"] = "table",
    work: Work = WORK,
) -> int:
    """Answer an SQL query over the lake, read-only."""
    from mixes.catalog import answer

    print(answer(open_lake(work), query, lock=lock, output=format))
    return 0


def open_lake(work: Path) -> "Lake":
    """Folder -> the lake in it.

    Raises: UserError when there is none.
    """
    from pipeline.errors import UserError
    from pipeline.store import Lake

    if not (work / "lake").is_dir():
        raise UserError(f"there is no lake in {work}: run `treadle demo`, or name the folder of a run with --work")
    return Lake(work / "lake")


def prepare_prefect(work: Path) -> None:
    """Settings that Prefect reads at import: own home, no telemetry, silence (`main` tells errors); set ones win."""
    home = work.resolve() / "prefect"
    home.mkdir(parents=True, exist_ok=True)
    defaults = {
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_MEMO_STORE_PATH": str(home / "memo_store.toml"),
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",
        "DO_NOT_TRACK": "1",
        "PREFECT_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_TO_API_ENABLED": "false",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def main() -> None:
    """Command line -> exit code of the process."""
    from pipeline.errors import DISK_FULL, InfrastructureError, UserError

    arguments = sys.argv[1:]
    show_traceback = "--traceback" in arguments
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    try:
        code = app([argument for argument in arguments if argument != "--traceback"])
    except (UserError, InfrastructureError) as error:
        if show_traceback:
            raise
        print(f"treadle: {error}", file=sys.stderr)
        code = 2 if isinstance(error, UserError) else 3
    except OSError as error:
        if show_traceback or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"treadle: {DISK_FULL}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print("treadle: stopped; the same command continues", file=sys.stderr)
        code = 130
    sys.exit(code or 0)


if __name__ == "__main__":
    main()
