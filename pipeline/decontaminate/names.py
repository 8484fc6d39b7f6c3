"""Repository page, owner/name or package name -> the benchmark repository it stands for, if any.

A name is only the first guard: a renamed copy is caught by its content (verdict.py).
"""

import re
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

FORGE_PATH = re.compile(r"^(?:git\+)?(?:https?|ssh|git)://(?:[^/@]+@)?[^/]+/([^/]+)/([^/?#]+)")
SSH_PATH = re.compile(r"^[\w.-]+@[\w.-]+:([^/]+)/([^/]+)$")
SHORT = re.compile(r"^([\w.-]+)/([\w.-]+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkNames:
    """Every name that a benchmark repository is known by; keys and values are lower case."""

    benchmark_of: dict[str, str]
    """owner/name -> benchmark."""
    aliases: dict[str, str]
    """Old or other owner/name -> owner/name."""
    package_aliases: dict[str, str]
    """ecosystem:package -> owner/name."""
    mirrors: tuple[re.Pattern[str], ...]
    """Patterns of mirror names, with groups owner and repo."""

    def canonical(self, name: str) -> str:
        """Page, clone address or owner/name -> owner/name as the benchmark lists write it; empty if it is neither."""
        text = name.strip().rstrip("/")
        match = FORGE_PATH.match(text) or SSH_PATH.match(text) or SHORT.match(text)
        if match is None:
            return ""
        found = f"{match[1]}/{match[2].removesuffix('.git')}".lower()
        for pattern in self.mirrors:
            if mirrored := pattern.fullmatch(found):
                found = f"{mirrored['owner']}/{mirrored['repo']}"
        return self.aliases.get(found, found)

    def match(self, package: str, page: str) -> tuple[str, str]:
        """Package name and repository page -> benchmark repository and why; both empty if neither is known.

        A package name alone counts only where the page names no repository, or one with that same last part (a fork):
        unrelated packages share short names with benchmark repositories.
        """
        repository = self.canonical(page)
        if repository in self.benchmark_of:
            return repository, f"its page {page} is {repository}"
        plain = re.sub(r"[-_.]+", "-", package).lower()
        if f"pypi:{plain}" in self.package_aliases:
            return self.package_aliases[f"pypi:{plain}"], f"the package {package} is built from it"
        if repository and repository.split("/")[1] != plain:
            return "", ""
        for known in sorted(self.benchmark_of):
            if known.split("/")[1] == plain:
                return known, f"it has the package name {package} and " + (f"the page {page}" if page else "no page")
        return "", ""


def load_names() -> BenchmarkNames:
    """Lists shipped with the package -> names, lower case."""
    text = resources.files("pipeline.decontaminate").joinpath("benchmark_repos.toml").read_text()
    return parse_names(tomllib.loads(text))


def parse_names(lists: dict[str, Any]) -> BenchmarkNames:
    """Content of benchmark_repos.toml -> names."""
    benchmarks = {name: part for name, part in lists.items() if isinstance(part, dict) and "repos" in part}
    benchmark_of = {
        repo.lower(): name
        for name, part in reversed(benchmarks.items())
        for repo in [*part["also_block"], *part["repos"]]
    }
    return BenchmarkNames(
        benchmark_of=benchmark_of,
        aliases=_lower(lists["aliases"]),
        package_aliases=_lower(lists["package_aliases"]),
        mirrors=tuple(_mirror_pattern(text) for text in lists["mirrors"]["patterns"]),
    )


def _lower(mapping: dict[str, str]) -> dict[str, str]:
    return {key.lower(): value.lower() for key, value in mapping.items()}


def _mirror_pattern(text: str) -> re.Pattern[str]:
    parts = {"{owner}": r"(?P<owner>[\w-]+)", "{repo}": r"(?P<repo>[\w.-]+)", "{sha8}": r"[0-9a-f]{8}"}
    pattern = re.escape(text)
    for place, group in parts.items():
        pattern = pattern.replace(re.escape(place), group)
    return re.compile(pattern)
