"""Name and version -> source archive in the downloads folder, checked against the registry's hash.

`pip download` of an sdist runs its build script to read the metadata. Here pip only lists the links
(`pip index versions`, which honours pip's own index, proxy and certificate settings); the archive is then fetched as
plain bytes. No foreign code runs on this machine.
"""

import hashlib
import logging
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import InfrastructureError, UserError
from pipeline.store import write_atomic

log = logging.getLogger(__name__)

LINK = re.compile(r"Found link (\S+?)(?:#(\S*))? \(from .*, version: (\S+)\s*$", re.MULTILINE)
OFFLINE = re.compile(r"Retrying \(Retry|Max retries exceeded|connection error", re.IGNORECASE)
SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
TIMEOUT_SEC = 120


class Link(NamedTuple):
    """Where an archive lies."""

    url: str
    sha256: str
    """As the registry states it; empty if it does not."""


def download_sdist(name: str, version: str, downloads: Path) -> Path:
    """Name and version -> path of the archive; one that is already there is used as it is.

    Raises: UserError for an unknown name or version; InfrastructureError when the registry cannot be reached.
    """
    for suffix in SUFFIXES:
        path = downloads / f"{name}-{version}{suffix}"
        if path.exists():
            return path
    link = find_link(name, version, list_links(name))
    log.info("download name=%s version=%s", name, version)
    data = _read_url(link.url, name)
    if link.sha256 and hashlib.sha256(data).hexdigest() != link.sha256:
        raise InfrastructureError(f"the archive of {name} {version} arrived damaged: run the same command again")
    suffix = next(suffix for suffix in SUFFIXES if link.url.endswith(suffix))
    path = downloads / f"{name}-{version}{suffix}"
    write_atomic(path, data)
    return path


def list_links(name: str) -> str:
    """Package name -> pip's listing of all its files.

    Raises: UserError when there is no such package; InfrastructureError when the registry does not answer.
    """
    command = [sys.executable, "-m", "pip", "-vvv", "--retries", "2", "index", "versions", name]
    run = subprocess.run(
        [*command, "--no-binary", ":all:", "--ignore-requires-python"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SEC * 3,
        check=False,
    )
    output = run.stdout + run.stderr
    if "No module named pip" in output:
        raise UserError("this Python has no pip, which sources of kind sdist need: run `python -m ensurepip`")
    if LINK.search(output):
        return output
    if OFFLINE.search(output):
        raise InfrastructureError(f"the package registry does not answer for {name}: check the network, then run again")
    raise UserError(f"sources: there is no source archive named `{name}` in the package registry: correct its name")


def find_link(name: str, version: str, listing: str) -> Link:
    """pip's listing -> link of the one source archive of that version.

    Raises: UserError when that version has none.
    """
    links = LINK.findall(listing)
    for url, fragment, found in links:
        if found == version and url.endswith(SUFFIXES):
            return Link(url, fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else "")
    known = [found for url, _, found in links if url.endswith(SUFFIXES)]
    raise UserError(
        f"sources: {name} has no source archive of version `{version}`: choose from {', '.join(known[-5:])}"
    )


def _read_url(url: str, name: str) -> bytes:
    assert url.startswith(("https:", "http:", "file:")), "pip lists no other kind of link"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SEC) as response:
            return response.read()
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise InfrastructureError(f"the archive of {name} cannot be fetched ({error}): run again") from None
