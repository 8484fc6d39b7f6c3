"""Docker endpoint -> client; engine faults -> InfrastructureError; one process in a container -> its capped output."""

import select
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import requests
import urllib3
from docker import DockerClient as Client
from docker.errors import DockerException, NotFound

from pipeline.errors import DISK_FULL, InfrastructureError, UserError

__all__ = ["Client", "Command", "NotFound", "ProcessOutput", "connect", "engine_faults", "run_process"]

ENGINE_TIMEOUT_SEC = 600
"""Of one API call: committing or importing an image can take minutes on a busy disk."""
POOL_SIZE = 32
IDLE_SEC = 0.5
"""Silence after which the engine is asked whether the process has ended."""
DRAIN_SEC = 10.0
"""Longest wait for the end of a process that was killed, or whose stream has closed."""
CHUNK_BYTES = 65_536
HEADER_BYTES = 8
STDOUT = 1


class ProcessOutput(NamedTuple):
    """What one process in a container wrote and how it ended."""

    exit_code: int | None
    """None for a process that was killed from outside, or whose end the engine did not report."""
    stdout: bytes
    output: bytes
    """Both streams in the order of arrival."""
    is_truncated: bool
    is_late: bool
    """The deadline passed before it ended."""


class Command(NamedTuple):
    """One process to start in a running container."""

    arguments: list[str]
    user: str
    workdir: str
    environment: dict[str, str]
    stdin: bytes = b""
    """Written whole; the process must know how much to read, the stream stays open."""


def connect() -> Client:
    """Docker's own settings (DOCKER_HOST or the default socket) -> client.

    Raises: UserError when no engine answers.
    """
    try:
        client = Client.from_env(timeout=ENGINE_TIMEOUT_SEC, max_pool_size=POOL_SIZE)
        client.ping()
    except (DockerException, requests.exceptions.RequestException, OSError) as error:
        raise UserError(
            f"no Docker engine answers ({_first_line(error)}): start it (`make engine` installs and starts one on "
            "Debian as root) or point DOCKER_HOST at a running one"
        ) from None
    return client


@contextmanager
def engine_faults(action: str) -> Iterator[None]:
    """Faults of the engine inside the block -> InfrastructureError that says what was being done.

    Raises: UserError when the engine's disk is full: repeating cannot help.
    """
    try:
        yield
    except (
        DockerException,
        requests.exceptions.RequestException,
        urllib3.exceptions.HTTPError,
        OSError,
    ) as error:
        if "no space left on device" in str(error).lower():
            raise UserError(DISK_FULL) from error
        raise InfrastructureError(f"docker could not {action}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def run_process(
    client: Client,
    container_id: str,
    command: Command,
    *,
    max_bytes: int,
    deadline_sec: float,
    kill: Callable[[], object],
) -> ProcessOutput:
    """Running container and command -> output, read until the process ends, or is killed at the cap or the deadline.

    `kill` ends the process from outside. Its stream is then read to the end: the engine delays every later process
    of the container while one that still writes has no reader.
    """
    exec_id = client.api.exec_create(
        container_id,
        command.arguments,
        user=command.user,
        workdir=command.workdir,
        environment=command.environment,
        stdin=bool(command.stdin),
    )["Id"]
    stream = client.api.exec_start(exec_id, socket=True)
    # http.client may hold the first bytes of the process in its buffer beside the response's header
    buffered = stream._response.raw._fp.fp
    connection: socket.socket = buffered.raw._sock
    reader = _FrameReader(max_bytes)
    try:
        connection.setblocking(False)
        reader.feed(buffered.peek(1))
        if command.stdin:
            connection.settimeout(deadline_sec)
            connection.sendall(command.stdin)
        ended = partial(_read_until_end, client, exec_id, connection, reader)
        is_late = not ended(time.monotonic() + deadline_sec, stop_when_full=True)
        if is_late or reader.is_full:
            with ThreadPoolExecutor(1) as pool:
                killing = pool.submit(kill)
                ended(time.monotonic() + DRAIN_SEC, stop_when_full=False)
                killing.result()
    finally:
        stream.close()
    exit_code = None if reader.is_full or is_late else _exit_code(client, exec_id)
    return ProcessOutput(exit_code, bytes(reader.stdout), bytes(reader.output), reader.is_full, is_late)


def _read_until_end(
    client: Client,
    exec_id: str,
    connection: socket.socket,
    reader: "_FrameReader",
    deadline: float,
    *,
    stop_when_full: bool,
) -> bool:
    """Stream -> frames in the reader; False when the deadline passed first."""
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    while not (stop_when_full and reader.is_full):
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return False
        if not poller.poll(min(remaining, IDLE_SEC) * 1000):
            # a background process may hold the stream open after the command itself has ended
            if not client.api.exec_inspect(exec_id)["Running"]:
                break
            continue
        data = connection.recv(CHUNK_BYTES)
        if not data:
            break
        reader.feed(data)
    return True


def _exit_code(client: Client, exec_id: str) -> int | None:
    """Ended exec -> its exit code; the engine may learn of the end a moment after the stream closed."""
    deadline = time.monotonic() + DRAIN_SEC
    while True:
        state = client.api.exec_inspect(exec_id)
        if not state["Running"] or time.monotonic() > deadline:
            return None if state["Running"] else int(state["ExitCode"])
        time.sleep(0.01)


class _FrameReader:
    """Bytes of docker's multiplexed stream -> stdout, and both streams together, up to a cap."""

    def __init__(self, max_bytes: int) -> None:
        self.stdout = bytearray()
        self.output = bytearray()
        self.is_full = False
        self._max_bytes = max_bytes
        self._header = bytearray()
        self._kind = 0
        self._missing = 0

    def feed(self, data: bytes | bytearray) -> None:
        position = 0
        while position < len(data) and not self.is_full:
            if not self._missing:
                taken = data[position : position + HEADER_BYTES - len(self._header)]
                self._header += taken
                position += len(taken)
                if len(self._header) == HEADER_BYTES:
                    self._kind = self._header[0]
                    self._missing = int.from_bytes(self._header[4:], "big")
                    self._header.clear()
                continue
            part = data[position : position + self._missing]
            position += len(part)
            self._missing -= len(part)
            room = self._max_bytes - len(self.output)
            self.is_full = len(part) > room
            self.output += part[:room]
            if self._kind == STDOUT:
                self.stdout += part[:room]
