"""File tree of a package -> its licence as SPDX and the page of its repository, by its own metadata."""

import email.parser
import re
import tomllib
from email.message import Message
from typing import Any, NamedTuple

from pipeline.trees import Tree

UNKNOWN = "unknown"
FORGE = re.compile(
    r"https?://(?:www\.)?((?:github|gitlab|bitbucket|codeberg)\.(?:com|org))/([\w.-]+)/([\w.-]+)", re.IGNORECASE
)
SPDX_OF_NAME = {
    "mit": "MIT",
    "mit license": "MIT",
    "the mit license": "MIT",
    "bsd-3-clause": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd-2-clause": "BSD-2-Clause",
    "apache 2.0": "Apache-2.0",
    "apache-2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "isc": "ISC",
    "isc license (iscl)": "ISC",
    "mpl-2.0": "MPL-2.0",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
    "psf-2.0": "PSF-2.0",
    "the unlicense (unlicense)": "Unlicense",
    "gnu general public license v3 (gplv3)": "GPL-3.0-only",
    "gnu general public license v2 (gplv2)": "GPL-2.0-only",
}
"""Licence field or classifier, lower case -> SPDX; names that leave the version open ("BSD") are absent."""
SPDX_OF_TEXT = (
    ("Permission is hereby granted, free of charge", "MIT"),
    ("Apache License Version 2.0", "Apache-2.0"),
    ("Mozilla Public License Version 2.0", "MPL-2.0"),
    ("Permission to use, copy, modify, and/or distribute this software", "ISC"),
    ("GNU GENERAL PUBLIC LICENSE Version 3", "GPL-3.0-only"),
    ("GNU GENERAL PUBLIC LICENSE Version 2", "GPL-2.0-only"),
)


class Metadata(NamedTuple):
    """What a package says about itself."""

    licence: str
    url: str


def read_metadata(tree: Tree) -> Metadata:
    """Tree, top folder removed -> licence (SPDX or "unknown") and repository page (empty if none is stated)."""
    info = email.parser.Parser().parsestr(tree.get("PKG-INFO", b"").decode(errors="replace"), headersonly=True)
    project = _read_project(tree.get("pyproject.toml", b""))
    return Metadata(_find_licence(info, project, tree), _find_url(info, project))


def _read_project(content: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode(errors="replace")).get("project", {})
    except tomllib.TOMLDecodeError:
        return {}


def _find_licence(info: Message, project: dict[str, Any], tree: Tree) -> str:
    if info["License-Expression"]:
        return str(info["License-Expression"])
    stated = project.get("license", "")
    names = [str(info["License"] or ""), stated if isinstance(stated, str) else str(stated.get("text", ""))]
    classifiers = [*info.get_all("Classifier", []), *project.get("classifiers", [])]
    names += [str(item).rsplit(" :: ", 1)[-1] for item in classifiers if str(item).startswith("License ::")]
    for name in names:
        if name.strip().lower() in SPDX_OF_NAME:
            return SPDX_OF_NAME[name.strip().lower()]
    files = [path for path in sorted(tree) if re.fullmatch(r"(LICEN[CS]E|COPYING)[^/]*", path, re.IGNORECASE)]
    found = {_licence_of_text(tree[path].decode(errors="replace")) for path in files}
    return found.pop() if len(found) == 1 else UNKNOWN


def _licence_of_text(text: str) -> str:
    plain = " ".join(text.split())
    for phrase, licence in SPDX_OF_TEXT:
        if phrase.lower() in plain.lower():
            return licence
    if "Redistribution and use in source and binary forms" in plain:
        return (
            "BSD-3-Clause"
            if re.search("Neither the names? of|names? of .{0,80} may not be used", plain)
            else "BSD-2-Clause"
        )
    return UNKNOWN


def _find_url(info: Message, project: dict[str, Any]) -> str:
    """The repository on a forge where one is named, else the home page."""
    named = [str(item).split(",", 1)[-1].strip() for item in info.get_all("Project-URL", [])]
    named += [str(url) for url in project.get("urls", {}).values()]
    home = str(info["Home-page"] or "").replace("UNKNOWN", "")
    for url in [home, *named]:
        match = FORGE.match(url)
        if match and match[2].lower() != "sponsors":
            return f"https://{match[1].lower()}/{match[2]}/{match[3].removesuffix('.git')}"
    return home or (named[0] if named else "")
