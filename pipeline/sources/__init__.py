"""SourceConfig -> fetch -> Repo with its file tree in the lake.

config.py    which source, which version, how its tests run
registry.py  name and version -> archive, without running any foreign code
metadata.py  PKG-INFO, pyproject.toml, licence text -> licence, page of the project
renamed.py   a planted contaminated source: a real package under another name
fetch.py     all of it -> Repo records
"""

from pipeline.sources.config import SourceConfig
from pipeline.sources.fetch import fetch, pair_releases

__all__ = ["SourceConfig", "fetch", "pair_releases"]
