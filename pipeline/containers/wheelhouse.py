"""Requirements and a Python version -> folder of wheels; no code of any package runs here."""

import fcntl
import hashlib
import logging
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import InfrastructureError, UserError
from pipeline.types import content_id

log = logging.getLogger(__name__)

PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_28_x86_64")
REQUIREMENT = re.compile(
    r"[A-Za-z0-9][\w.-]*(\[[\w., -]+\])?\s*(\(?\s*(===|==|~=|!=|<=|>=|<|>)\s*[\w.*+!-]+(\s*,\s*(===|==|~=|!=|<=|>=|<|>)"
    r"\s*[\w.*+!-]+)*\s*,?\s*\)?)?\s*(;.*)?"
)
TIMEOUT_SEC = 1200


class UnbuildableError(Exception):
    """This repository cannot have an image; repeating cannot help, and other repositories are not concerned."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        """Stable slug."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheelhouse:
    """A complete folder of wheels."""

    path: Path
    hash: str
    """Of the names and contents of all wheels."""
    files: list[str]


def ensure_wheelhouse(folder: Path, requirements: list[str], python_version: str) -> Wheelhouse:
    """Requirements -> their wheels and those of everything they need, downloaded once into a folder of `folder`.

    Raises: UnbuildableError for a requirement that is none or has no wheels, InfrastructureError when the index fails.
    """
    for requirement in requirements:
        if not REQUIREMENT.fullmatch(requirement):
            raise UnbuildableError("bad_requirement", f"{requirement!r} is no name with versions, such as `name>=1.0`")
    wanted = sorted(set(requirements))
    key = content_id([wanted, python_version, PLATFORMS])[:16]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / key
    with (folder / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _download(path, wanted, python_version)
    files = sorted(file.name for file in path.glob("*.whl"))
    digests = {name: hashlib.sha256((path / name).read_bytes()).hexdigest() for name in files}
    return Wheelhouse(path=path, hash=content_id(digests), files=files)


def _download(path: Path, requirements: list[str], python_version: str) -> None:
    partial = path.with_suffix(".part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    log.info("wheelhouse state=downloading requirements=%d python=%s", len(requirements), python_version)
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"),
        # without retries pip does not say that nothing answered
        *("--retries", "3"),
        *("--dest", str(partial), "--only-binary", ":all:"),
        *("--implementation", "cp", "--python-version", python_version),
        *(option for platform in PLATFORMS for option in ("--platform", platform)),
        "--",
        *requirements,
    ]
    try:
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_SEC)
    except subprocess.TimeoutExpired:
        raise InfrastructureError(f"downloading {', '.join(requirements)} took over {TIMEOUT_SEC} s") from None
    if result.returncode:
        shutil.rmtree(partial, ignore_errors=True)
        raise _failure(result.stderr, requirements)
    partial.rename(path)
    log.info("wheelhouse state=ready files=%d path=%s", len(list(path.iterdir())), path.name)


def _failure(errors: str, requirements: list[str]) -> UserError | UnbuildableError | InfrastructureError:
    """What pip wrote -> whose fault it is: a wrong requirement, or a network that may work again."""
    lines = [line.removeprefix("ERROR: ").strip() for line in errors.splitlines() if line.strip()]
    detail = lines[-1][:200] if lines else "pip wrote nothing"
    if "No module named pip" in errors:
        return UserError("this Python has no pip: run `python -m ensurepip` with it")
    is_reached = not re.search(r"Retrying|ConnectionError|NewConnectionError|timed out|resolve", errors, re.IGNORECASE)
    if is_reached and "No matching distribution" in errors:
        return UnbuildableError("no_wheels", detail)
    return InfrastructureError(f"the package index did not give {', '.join(requirements)}: {detail}")
