"""Owner of a container <-> its labels; containers of dead owners -> removed."""

import logging
import os
import socket
from pathlib import Path

from pipeline.containers.engine import Client, NotFound, engine_faults
from pipeline.errors import InfrastructureError

log = logging.getLogger(__name__)

START_TIME_FIELD = 19
"""Of /proc/<pid>/stat, counted after the command's name: clock ticks from boot to the start of the process."""


def owner_labels() -> dict[str, str]:
    """This process -> labels that let a later process tell whether it still lives."""
    pid = str(os.getpid())
    boot_id, started = _boot_id(), _started(pid)
    return {
        "treadle": "1",
        "treadle.run": f"{boot_id[:8]}-{pid}-{started}",
        "treadle.owner_pid": pid,
        "treadle.owner_start": started,
        "treadle.boot_id": boot_id,
        "treadle.owner_host": socket.gethostname(),
        "treadle.owner_pid_namespace": _pid_namespace(),
    }


def reap(client: Client) -> int:
    """Engine -> number of removed containers whose owner is dead; those of other machines are left alone."""
    with engine_faults("list containers"):
        found = client.api.containers(all=True, filters={"label": "treadle=1"})
    num_removed = 0
    for container in found:
        if is_orphan(container["Labels"]):
            num_removed += remove(client, container["Id"])
    if num_removed:
        log.info("reaped orphans containers=%d", num_removed)
    return num_removed


def is_orphan(labels: dict[str, str]) -> bool:
    """Labels of a container -> whether the process that started it is certainly gone."""
    pid = labels.get("treadle.owner_pid", "")
    if not pid or labels.get("treadle.owner_host") != socket.gethostname():
        return False
    if labels.get("treadle.boot_id") != _boot_id():
        return True
    if labels.get("treadle.owner_pid_namespace") != _pid_namespace():
        return False
    return _started(pid) != labels.get("treadle.owner_start")


def remove(client: Client, container_id: str) -> bool:
    """Container -> whether it was there to be removed, with its anonymous volumes; never waits for its processes."""
    try:
        with engine_faults("remove a container"):
            client.api.remove_container(container_id, force=True, v=True)
    except InfrastructureError as error:
        if isinstance(error.__cause__, NotFound) or "already in progress" in str(error):
            return False
        raise
    return True


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


def _started(pid: str) -> str:
    """Process id -> its start time in clock ticks, "" if there is no such process or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] == "Z" else fields[START_TIME_FIELD]
