"""Image -> locked-down container -> outputs and file trees; whatever comes out is data, never a link or a path here."""

import io
import logging
import tarfile
import time
from dataclasses import dataclass
from functools import partial
from typing import Self

from docker.types import LogConfig, Ulimit
from pydantic import Field
from pydantic.dataclasses import dataclass as config_class

from pipeline.config import STRICT
from pipeline.containers.engine import Client, Command, ProcessOutput, engine_faults, run_process
from pipeline.containers.reaper import owner_labels, remove
from pipeline.errors import InfrastructureError
from pipeline.trees import MAX_FILE_BYTES, MAX_FILES, Tree, pack_tree

log = logging.getLogger(__name__)

AGENT_UID = 1000
INIT_USER = "65534:65534"
"""Holds the container open; another user than the agent's, so that `kill -9 -1` does not end the sandbox."""
TESTBED = "/testbed"
HOME = "/agent"
COPY_TIMEOUT_SEC = 120.0
KILL_AFTER_SEC = 5
HOST_GRACE_SEC = 10.0
"""Past the limit inside the container: then the host stops listening."""
EXIT_TIMEOUT, EXIT_KILLED = 124, 137
SKIPPED_FOLDERS = frozenset({".git", "__pycache__", ".venv", ".tox", ".pytest_cache", ".mypy_cache", ".hypothesis"})


@config_class(frozen=True, config=STRICT, kw_only=True)
class SandboxLimits:
    """What one container may use; the defaults let five real test suites pass."""

    memory_mb: int = Field(default=1024, ge=32)
    """MiB, the files below included; swap is not granted."""
    cpus: float = Field(default=1.0, gt=0)
    """Cores."""
    pids: int = Field(default=256, ge=8)
    """Processes and threads."""
    open_files: int = Field(default=1024, ge=64)
    """Descriptors per process."""
    file_size_mb: int = Field(default=128, ge=1)
    """MiB, largest single file."""
    testbed_mb: int = Field(default=256, ge=1)
    """MiB of files in the working folder, held in memory."""
    tmp_mb: int = Field(default=128, ge=1)
    """MiB of files in /tmp, held in memory."""
    num_files: int = Field(default=50_000, ge=100)
    """Files in each of both folders."""
    output_bytes: int = Field(default=10_485_760, ge=1024)
    """Of one command; beyond, it is killed."""
    read_bytes: int = Field(default=104_857_600, ge=1024)
    """Of one tree read back, as tar."""
    lifetime_sec: int = Field(default=7200, ge=1)
    """After this the sandbox ends by itself, whatever became of its owner."""
    runtime: str = "runc"
    """OCI runtime of the engine, such as runsc."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What one command came to."""

    exit_code: int
    """124 or 137 after a timeout; 137 also for a process killed for memory, or stopped for too much output."""
    output: str
    """Standard output and error in the order of arrival, bad UTF-8 replaced."""
    seconds: float
    is_timeout: bool
    is_truncated: bool
    """The output met its cap, and the command was killed."""


class Sandbox:
    """A running container without network, capabilities, new privileges or disk; leaving the context removes it."""

    def __init__(self, client: Client, container_id: str, limits: SandboxLimits) -> None:
        self.container_id = container_id
        self._client = client
        self._limits = limits

    @classmethod
    def start(
        cls,
        client: Client,
        image_ref: str,
        *,
        limits: SandboxLimits,
        labels: dict[str, str] | None = None,
        testbed_uid: int = AGENT_UID,
        is_root_writable: bool = False,
        folders: dict[str, str] | None = None,
    ) -> Self:
        """Image -> running sandbox. `folders` are further writable ones in memory: path -> mount options.

        The working folder belongs to `testbed_uid`. A writable root is for building images only: it has no disk limit.
        Raises: InfrastructureError when the image is missing or the engine fails.
        """
        with engine_faults(f"start a sandbox from {image_ref}"):
            container_id = client.api.create_container(
                image_ref,
                ["sleep", str(limits.lifetime_sec)],
                entrypoint=[],
                user=INIT_USER,
                working_dir="/",
                labels=owner_labels() | (labels or {}),
                host_config=_host_config(client, limits, testbed_uid, is_root_writable, folders or {}),
            )["Id"]
        sandbox = cls(client, container_id, limits)
        try:
            with engine_faults(f"start a sandbox from {image_ref}"):
                client.api.start(container_id)
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes the container with all its processes and files; may be called twice."""
        remove(self._client, self.container_id)

    def execute(
        self,
        command: str | list[str],
        *,
        timeout_sec: float,
        user: str = "agent",
        workdir: str = TESTBED,
        environment: dict[str, str] | None = None,
    ) -> Execution:
        """Shell text or argument list -> what it came to.

        Raises: InfrastructureError when the engine fails; a command that fails, floods or hangs is an Execution.
        """
        arguments = ["bash", "-c", command] if isinstance(command, str) else command
        limited = ["timeout", "-k", f"{KILL_AFTER_SEC}s", f"{timeout_sec}s", *arguments]
        started = time.monotonic()
        result = self._run(
            Command(limited, user, workdir, {"HOME": HOME} | (environment or {})),
            max_bytes=self._limits.output_bytes,
            deadline_sec=timeout_sec + HOST_GRACE_SEC,
        )
        seconds = time.monotonic() - started
        exit_code = EXIT_KILLED if result.exit_code is None else result.exit_code
        return Execution(
            exit_code=exit_code,
            output=result.output.decode("utf-8", "replace"),
            seconds=seconds,
            is_timeout=result.is_late or (exit_code in (EXIT_TIMEOUT, EXIT_KILLED) and seconds >= timeout_sec),
            is_truncated=result.is_truncated,
        )

    def write_tree(self, tree: Tree, path: str, *, uid: int) -> None:
        """Tree -> files under `path`, owned by `uid`. For a sandbox in which no foreign code has run yet.

        Raises: InfrastructureError when they cannot be written.
        """
        data = pack_tree(tree, uid=uid)
        # through a process and not the engine's copy, which cannot see folders in memory
        script = 'mkdir -p "$1" && head -c "$2" | tar -x --no-same-owner -C "$1"'
        arguments = ["bash", "-c", f"set -o pipefail; {script}", "write", path, str(len(data))]
        command = Command(arguments, str(uid), "/", {}, data)
        result = self._run(command, max_bytes=self._limits.output_bytes, deadline_sec=COPY_TIMEOUT_SEC)
        if result.exit_code != 0:
            detail = result.output.decode("utf-8", "replace").strip()[-200:]
            raise InfrastructureError(f"cannot copy {len(tree)} files to {path} in a sandbox: {detail}")

    def read_tree(self, path: str, *, max_bytes: int | None = None) -> Tree:
        """Folder -> its regular files of acceptable size, name and place; at most `max_bytes` of tar in name order.

        Links, devices, caches and version control are left out. What does not fit is left out with a warning: the
        sandboxed program did that, and its work is judged by what could be read.
        """
        names = " -o ".join(f"-name {name}" for name in sorted(SKIPPED_FOLDERS))
        script = (
            f'cd "$1" && find . -xdev \\( {names} \\) -prune -o -type f -size -{MAX_FILE_BYTES + 1}c -print0 '
            "| LC_ALL=C sort -z | tar -c --format=gnu --null --no-recursion --hard-dereference -T -"
        )
        cap = self._limits.read_bytes if max_bytes is None else max_bytes
        command = Command(["bash", "-c", script, "read", path], str(AGENT_UID), "/", {})
        result = self._run(command, max_bytes=cap, deadline_sec=COPY_TIMEOUT_SEC)
        if result.exit_code != 0:
            log.warning(
                "tree incomplete sandbox=%s exit_code=%s truncated=%s",
                self.container_id[:12],
                result.exit_code,
                result.is_truncated,
            )
        return read_archive(result.stdout)

    def _run(self, command: Command, *, max_bytes: int, deadline_sec: float) -> ProcessOutput:
        try:
            with engine_faults("run a process in a sandbox"):
                return run_process(
                    self._client,
                    self.container_id,
                    command,
                    max_bytes=max_bytes,
                    deadline_sec=deadline_sec,
                    kill=partial(self._kill_all, command.user),
                )
        except InfrastructureError:
            if self._is_out_of_memory():
                return ProcessOutput(EXIT_KILLED, b"", b"the sandbox ran out of memory\n", False, False)
            raise

    def _is_out_of_memory(self) -> bool:
        """Whether the container ended because its program used up its memory: no fault of the engine."""
        with engine_faults("inspect a sandbox"):
            state = self._client.api.inspect_container(self.container_id)["State"]
        return bool(state["OOMKilled"]) and not state["Running"]

    def _kill_all(self, user: str) -> None:
        """Ends every process of a user; where none can be started for that, removal of the sandbox will do it."""
        command = Command(["bash", "-c", "kill -9 -1"], user, "/", {})
        with engine_faults("kill the processes of a sandbox"):
            run_process(
                self._client,
                self.container_id,
                command,
                max_bytes=self._limits.output_bytes,
                deadline_sec=HOST_GRACE_SEC,
                kill=lambda: None,
            )


def _host_config(
    client: Client, limits: SandboxLimits, testbed_uid: int, is_root_writable: bool, folders: dict[str, str]
) -> dict[str, object]:
    memory_bytes = limits.memory_mb * 2**20
    file_bytes = limits.file_size_mb * 2**20
    shared = f"rw,exec,nosuid,nodev,nr_inodes={limits.num_files}"
    config: dict[str, object] = client.api.create_host_config(
        network_mode="none",
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        pids_limit=limits.pids,
        mem_limit=memory_bytes,
        memswap_limit=memory_bytes,
        nano_cpus=int(limits.cpus * 10**9),
        init=True,
        read_only=not is_root_writable,
        ipc_mode="private",
        runtime=limits.runtime,
        log_config=LogConfig(type=LogConfig.types.NONE),
        ulimits=[
            Ulimit(name="nofile", soft=limits.open_files, hard=limits.open_files),
            Ulimit(name="fsize", soft=file_bytes, hard=file_bytes),
            Ulimit(name="core", soft=0, hard=0),
        ],
        tmpfs={
            TESTBED: f"{shared},size={limits.testbed_mb}m,uid={testbed_uid},gid={testbed_uid},mode=755",
            "/tmp": f"{shared},size={limits.tmp_mb}m,mode=1777",
            HOME: f"{shared},size={limits.tmp_mb}m,uid={AGENT_UID},gid={AGENT_UID},mode=755",
        }
        | folders,
    )
    return config


def read_archive(data: bytes) -> Tree:
    """Hostile tar, perhaps cut off -> the regular files with safe, printable, relative names."""
    tree: Tree = {}
    # read as a stream: a member can then never send the reader back to where it was before
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r|") as archive:
            for member in archive:
                path = _safe_path(member.name)
                if not member.isreg() or member.issparse() or not path or not 0 <= member.size <= MAX_FILE_BYTES:
                    continue
                file = archive.extractfile(member)
                content = file.read() if file else b""
                if len(tree) >= MAX_FILES or len(content) != member.size:
                    break
                tree[path] = content
    except (tarfile.TarError, EOFError, OSError, ValueError, RecursionError) as error:
        log.warning("archive ends early files=%d error=%s", len(tree), error)
    return tree


def _safe_path(name: str) -> str:
    """Member name -> normal relative path, or "" when it is not one."""
    parts = name.removeprefix("./").split("/")
    is_safe = name.isprintable() and len(name) <= 1024 and not {"", ".", ".."} & set(parts)
    return "/".join(parts) if is_safe and not SKIPPED_FOLDERS & set(parts) else ""
