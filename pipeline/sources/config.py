"""TOML table `[[sources]]` -> SourceConfig."""

from dataclasses import field
from typing import Literal

from pydantic.dataclasses import dataclass as config_class

from pipeline.config import STRICT


@config_class(frozen=True, kw_only=True, config=STRICT)
class SourceConfig:
    """One repository to take: which version, and how its tests run."""

    name: str
    """Name in the package registry, or of the local folder."""
    version: str
    kind: Literal["sdist", "local"] = "sdist"
    path: str = ""
    """Folder of a local source."""
    previous_version: str = ""
    """Release before `version`; the two become a release pair."""
    requires: list[str] = field(default_factory=lambda: ["pytest"])
    """Requirements that its tests need, beside the package's own."""
    test_command: list[str] = field(default_factory=lambda: ["tests"])
    """Arguments after `python -m pytest`."""
    upstream: str = ""
    """owner/name, where the package's own metadata names no repository."""
    is_planted: bool = False
    """A contaminated source on purpose: it shows that decontamination works."""
    renamed_to: str = ""
    """Name that a planted source hides under."""
