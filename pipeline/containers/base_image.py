"""Suite and packages -> the image below all others: Python, git and tools, two users, no repository."""

import logging
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from pydantic.dataclasses import dataclass as config_class

from pipeline.config import STRICT
from pipeline.containers.engine import Client, NotFound, engine_faults
from pipeline.containers.reaper import owner_labels, remove
from pipeline.containers.sandbox import AGENT_UID, HOME, TESTBED, Sandbox, SandboxLimits
from pipeline.errors import InfrastructureError, UserError
from pipeline.types import content_id

log = logging.getLogger(__name__)

BUILDER_UID = 1001
"""Installs packages into images; owns VENV and nothing else, so that a hostile build can change nothing else."""
VENV = "/opt/venv"
EPOCH = "1735689600"
"""Time stamp of every file: 2025-01-01."""
BUILD_LIMITS = SandboxLimits()

SETUP = f"""set -e
printf 'agent:x:{AGENT_UID}:{AGENT_UID}::{HOME}:/bin/bash\\n' >> etc/passwd
printf 'agent:x:{AGENT_UID}:\\n' >> etc/group
printf 'builder:x:{BUILDER_UID}:{BUILDER_UID}::/nonexistent:/bin/bash\\n' >> etc/passwd
printf 'builder:x:{BUILDER_UID}:\\n' >> etc/group
mkdir -p .{HOME} .{TESTBED} .{VENV} ./wheelhouse
chown {AGENT_UID}:{AGENT_UID} .{HOME} .{TESTBED}
chown {BUILDER_UID}:{BUILDER_UID} .{VENV}
chmod 755 var/tmp run/lock
"""
"""Run in the root folder of the image; tmp is left alone, a folder in memory lies over it."""

DPKG_OPTIONS = (
    "force-unsafe-io",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
)
IMAGE_SETTINGS = (
    "ENV LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 PIP_NO_INPUT=1",
    f"WORKDIR {TESTBED}",
    'CMD ["bash"]',
    "LABEL treadle.image=base",
)
SHARED_MEMORY = Path("/dev/shm")
WORK_BYTES = 4 * 2**30
"""Free memory asked for before a system is built in it; it takes about 1 GiB."""
MAX_STEP_CHARS = 100
NEEDED_PROGRAMS = ("python3", "bash", "tar", "git", "timeout", "find", "ps", "tmux", "patch")
PINNED = re.compile(r"[\w./:-]+@sha256:[0-9a-f]{64}")


@config_class(frozen=True, config=STRICT, kw_only=True)
class BaseImageConfig:
    """What every container stands on."""

    suite: str = "bookworm"
    """Debian release; it decides the Python version."""
    packages: list[str] = field(
        default_factory=lambda: [
            "python3",
            "python3-venv",
            "python3-pip",
            "git",
            "ca-certificates",
            "tmux",
            "procps",
            "patch",
        ]
    )
    """Debian packages."""
    image: str = ""
    """Reference pinned by digest, name@sha256:...: pulled and used in place of a Debian system of our own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseImage:
    """An image that is there."""

    ref: str
    recipe_hash: str
    digest: str
    """Image id of the engine."""
    python_version: str
    """Such as 3.11."""


def ensure_base_image(client: Client, config: BaseImageConfig) -> BaseImage:
    """Configuration -> base image, built or pulled if it is not there yet (about a minute).

    Raises: UserError when mmdebstrap is missing or the configuration does not fit, InfrastructureError when the
    mirror, the registry or the engine fails.
    """
    if config.image and not PINNED.fullmatch(config.image):
        raise UserError(f"`base_image.image` = {config.image!r} has no digest: write it as name@sha256:<64 digits>")
    content = [config.image] if config.image else [config.suite, *sorted(config.packages), EPOCH, *DPKG_OPTIONS]
    recipe_hash = content_id([content, SETUP, IMAGE_SETTINGS])
    ref = f"treadle-base:{recipe_hash[:12]}"
    if not find_image(client, ref):
        if config.image:
            _adopt(client, config.image, ref)
        else:
            _build(client, config, ref)
    return BaseImage(
        ref=ref, recipe_hash=recipe_hash, digest=find_image(client, ref), python_version=_python_version(client, ref)
    )


def find_image(client: Client, ref: str) -> str:
    """Reference -> image id, or "" when the engine does not have it."""
    with engine_faults(f"look for image {ref}"):
        try:
            return str(client.api.inspect_image(ref)["Id"])
        except NotFound:
            return ""


def _build(client: Client, config: BaseImageConfig, ref: str) -> None:
    if not shutil.which("mmdebstrap"):
        raise UserError(
            "mmdebstrap is missing: `apt-get install mmdebstrap`, or name an image by digest in `base_image.image`"
        )
    log.info("base image state=building suite=%s packages=%d", config.suite, len(config.packages))
    with tempfile.TemporaryDirectory(prefix="treadle-base-", dir=_work_folder()) as folder:
        archive = Path(folder) / "root.tar"
        _bootstrap(config, archive)
        log.info("base image state=importing mebibytes=%d", archive.stat().st_size // 2**20)
        repository, tag = ref.split(":")
        with engine_faults("import the base image"):
            client.api.import_image_from_file(str(archive), repository, tag, changes=list(IMAGE_SETTINGS))
    log.info("base image state=ready ref=%s", ref)


def _work_folder() -> str | None:
    """Shared memory where it is large and allows devices (five times faster), else the system's choice."""
    if not SHARED_MEMORY.is_dir():
        return None
    state = os.statvfs(SHARED_MEMORY)
    is_restricted = state.f_flag & (os.ST_NODEV | os.ST_NOSUID | os.ST_NOEXEC)
    memory = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    free_bytes = min(state.f_bavail * state.f_frsize, int(memory[1]) * 1024 if memory else 0)
    return str(SHARED_MEMORY) if not is_restricted and free_bytes > WORK_BYTES else None


def _bootstrap(config: BaseImageConfig, archive: Path) -> None:
    """Suite and packages -> tar of a root folder; equal packages in the mirror give equal bytes."""
    command = [
        "mmdebstrap",
        "--variant=minbase",
        f"--include={','.join(sorted(config.packages))}",
        *(f"--dpkgopt={option}" for option in DPKG_OPTIONS),
        '--customize-hook=cd "$1"\n' + SETUP,
        "--format=tar",
        config.suite,
        str(archive),
    ]
    errors: list[str] = []
    environment = os.environ | {"TMPDIR": str(archive.parent), "SOURCE_DATE_EPOCH": EPOCH, "LC_ALL": "C"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace", env=environment) as process:
        assert process.stderr is not None, "it was asked for"
        for line in process.stderr:
            if line.startswith("I: ") and len(line) < MAX_STEP_CHARS:
                log.info("base image step=%s", line[3:].strip().replace(" ", "_"))
            elif line.startswith("E: "):
                errors.append(line[3:].strip())
    if process.returncode:
        detail = errors[0][:300] if errors else f"exit code {process.returncode}"
        if re.search(r"does not have a Release file|Unable to locate package|no installation candidate", detail):
            raise UserError(f"`base_image` names what Debian does not have ({detail}): mend `suite` or `packages`")
        raise InfrastructureError(f"mmdebstrap could not build {config.suite}: {detail}")


def _adopt(client: Client, image: str, ref: str) -> None:
    """Foreign image -> ours: pulled by digest, users and folders added."""
    log.info("base image state=pulling image=%s", image)
    with engine_faults(f"pull {image}"):
        client.api.pull(image)
        command = ["sh", "-c", "mkdir -p run/lock\n" + SETUP]
        container_id = client.api.create_container(
            image,
            command,
            entrypoint=[],
            user="0",
            working_dir="/",
            labels=owner_labels(),
            host_config=client.api.create_host_config(network_mode="none"),
        )["Id"]
    repository, tag = ref.split(":")
    try:
        with engine_faults(f"prepare {image}"):
            client.api.start(container_id)
            exit_code = client.api.wait(container_id)["StatusCode"]
            if exit_code:
                raise UserError(f"`base_image.image` = {image!r} cannot be prepared: take one with sh, mkdir and chown")
            changes = [*IMAGE_SETTINGS, "USER root", "ENTRYPOINT []", forget_owner()]
            client.api.commit(container_id, repository, tag, changes=changes)
    finally:
        remove(client, container_id)


def forget_owner() -> str:
    """Image setting that keeps the labels of the container it was made in from marking later ones."""
    return "LABEL " + " ".join(f'{name}=""' for name in owner_labels())


def _python_version(client: Client, ref: str) -> str:
    """Base image -> version of its Python, which also proves that containers start and all programs are there."""
    script = f"for name in {' '.join(NEEDED_PROGRAMS)}; do command -v $name >/dev/null || echo $name; done"
    version = "import sys; print('%d.%d' % sys.version_info[:2])"
    with Sandbox.start(client, ref, limits=BUILD_LIMITS) as sandbox:
        missing = sandbox.execute(script, timeout_sec=30, workdir="/").output.split()
        if missing:
            raise UserError(f"the base image {ref} has no {missing[0]}: add its package to `base_image.packages`")
        return sandbox.execute(["python3", "-I", "-c", version], timeout_sec=30, workdir="/").output.strip()
