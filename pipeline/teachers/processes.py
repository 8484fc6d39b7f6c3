"""Command -> a process group of its own that never outlives this process, its output in a file."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

STOP_TIMEOUT_SEC = 10.0
"""Between asking a group to end and killing it."""
GUARD = Path(__file__).with_name("guard.py")


@contextlib.contextmanager
def guarded(
    command: list[str], *, log_path: Path, environment: Mapping[str, str], stop_timeout_sec: float = STOP_TIMEOUT_SEC
) -> Iterator["subprocess.Popen[bytes]"]:
    """Command -> its running guard; leaving the block ends the whole group, asked first and then killed."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log_file:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD), *command],
            stdin=subprocess.PIPE,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(stop_timeout_sec)
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdin is not None, "opened as a pipe"
        process.stdin.close()


def _signal_group(group: int, number: signal.Signals) -> None:
    # The group outlives its leader as long as it has members, and is gone with the last of them.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def last_lines(path: Path, count: int) -> str:
    """Text file -> its last lines; empty when there is no file."""
    if not path.exists():
        return ""
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-count:])
