"""A server left behind by a killed run is found by its home, and no other process is touched."""

import subprocess
import sys
import time
from pathlib import Path

from flows.orphans import end_orphans_of, servers_without_driver

PARENT = """
import os, subprocess, sys
command = [sys.executable, "-c", "import time; time.sleep(60)", "prefect.server"]
environment = os.environ | {"PREFECT_HOME": sys.argv[1]}
child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
print(child.pid, flush=True)
os._exit(0)
"""


def test_only_the_orphan_of_the_same_home_is_ended(tmp_path: Path) -> None:
    pids = {}
    for name in ("mine", "other"):
        started = subprocess.run(
            [sys.executable, "-c", PARENT, str(tmp_path / name)], stdout=subprocess.PIPE, text=True, timeout=30
        )
        pids[name] = int(started.stdout)
    deadline = time.monotonic() + 20
    while not set(pids.values()) <= {orphan.pid for orphan in servers_without_driver()}:
        assert time.monotonic() < deadline, "the kernel gives orphans to init"
        time.sleep(0.1)
    assert end_orphans_of(tmp_path / "mine") == 1
    assert end_orphans_of(tmp_path / "mine") == 0
    assert end_orphans_of(tmp_path / "other") == 1
