"""Guarded processes: nothing outlives its starter, however the starter ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from pipeline.teachers.processes import guarded, last_lines

GROUP = "import subprocess, sys, time; p = subprocess.Popen(['sleep', '300']); print(p.pid, flush=True); p.wait()"
DRIVER = """
import os, sys, time
from pathlib import Path
from pipeline.teachers.processes import guarded
with guarded([sys.executable, "-c", sys.argv[1]], log_path=Path(sys.argv[2]), environment=os.environ):
    time.sleep(300)
"""


def wait_for(condition) -> bool:
    deadline = time.monotonic() + 10
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def grandchild(log_path: Path) -> int:
    assert wait_for(lambda: last_lines(log_path, 1) != "")
    return int(last_lines(log_path, 1))


def test_group_dies_when_its_starter_is_killed_hard(tmp_path: Path) -> None:
    log_path = tmp_path / "log.txt"
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, GROUP, str(log_path)])
    pid = grandchild(log_path)
    assert is_alive(pid)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    assert wait_for(lambda: not is_alive(pid))


def test_leaving_the_block_ends_grandchildren_that_ignore_the_request(tmp_path: Path) -> None:
    log_path = tmp_path / "log.txt"
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + GROUP
    command = [sys.executable, "-c", stubborn]
    with guarded(command, log_path=log_path, environment=os.environ, stop_timeout_sec=0.2) as process:
        pid = grandchild(log_path)
        assert is_alive(pid)
    assert process.returncode is not None
    assert wait_for(lambda: not is_alive(pid))


def test_exit_code_and_output_of_the_command_come_through(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import os; print('seen', flush=True); os._exit(7)"]
    with guarded(command, log_path=tmp_path / "log.txt", environment={}) as process:
        assert process.wait(10) == 7
    assert last_lines(tmp_path / "log.txt", 5) == "seen"
