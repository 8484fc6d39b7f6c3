"""Process table -> servers whose driver was killed: an embedded Prefect server outlives a `kill -9` of its flow."""

import os
import signal
from pathlib import Path
from typing import NamedTuple

SERVERS = (b"prefect.server", b"vllm.entrypoints")


class Orphan(NamedTuple):
    """A server that nobody waits for."""

    pid: int
    environment: bytes
    """Its variables, as the kernel keeps them."""


def servers_without_driver() -> list[Orphan]:
    """Prefect and vLLM servers that fell to init."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            command = (folder / "cmdline").read_bytes()
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            environment = (folder / "environ").read_bytes()
        except (OSError, IndexError):
            continue
        if parent == 1 and any(name in command for name in SERVERS):
            found.append(Orphan(int(folder.name), environment))
    return found


def end_orphans_of(home: Path) -> int:
    """PREFECT_HOME -> number of servers ended that a killed run with the same home left behind."""
    mark = f"PREFECT_HOME={home}".encode()
    left = [orphan for orphan in servers_without_driver() if mark in orphan.environment.split(b"\0")]
    for orphan in left:
        os.kill(orphan.pid, signal.SIGKILL)
    return len(left)
