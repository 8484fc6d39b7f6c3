"""Sources: archives found without running foreign code, honest metadata, records per release, the planted copy."""

import io
import tarfile
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.sources import SourceConfig, fetch, pair_releases
from pipeline.sources.metadata import read_metadata
from pipeline.sources.registry import find_link
from pipeline.sources.renamed import rename_package
from pipeline.store import Lake
from pipeline.trees import unpack_tree
from pipeline.types import Repo

LISTING = """
  Found link https://x.test/a/demo-1.0-py3-none-any.whl#sha256=aa (from https://x.test/simple/demo/), version: 1.0
  Found link https://x.test/a/demo-1.0.tar.gz#sha256=bb (from https://x.test/s/) (requires-python:>=3.6), version: 1.0
  Found link https://x.test/a/demo-1.1.tar.gz (from https://x.test/simple/demo/), version: 1.1
"""
PKG_INFO = b"""Metadata-Version: 2.1
Name: Demo
Version: 1.0
License: BSD
Home-page: https://demo.test/
Project-URL: Donate, https://github.com/sponsors/someone
Project-URL: Source, https://github.com/Owner/demo.git/
Classifier: License :: OSI Approved :: BSD License

"""
BSD3 = b"Redistribution and use in source and binary forms ... Neither the name of the copyright holder ..."


def archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as packed:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def put_sdist(downloads: Path, version: str, **files: bytes) -> None:
    downloads.mkdir(exist_ok=True)
    tree = {"PKG-INFO": PKG_INFO, "demo.py": b"x = 1\n", "tests/test_demo.py": b"def test(): pass\n"} | files
    data = archive({f"demo-{version}/{path}": content for path, content in tree.items()})
    (downloads / f"demo-{version}.tar.gz").write_bytes(data)


def test_the_source_archive_of_the_wanted_version_is_found_with_its_hash() -> None:
    assert find_link("demo", "1.0", LISTING) == ("https://x.test/a/demo-1.0.tar.gz", "bb")
    assert find_link("demo", "1.1", LISTING).sha256 == ""


def test_an_unknown_version_is_refused_with_those_that_exist() -> None:
    with pytest.raises(UserError, match=r"no source archive of version `9`: choose from 1\.0, 1\.1"):
        find_link("demo", "9", LISTING)


def test_metadata_prefers_the_repository_and_reads_the_licence_text_where_its_name_is_vague() -> None:
    metadata = read_metadata({"PKG-INFO": PKG_INFO, "LICENSE.txt": BSD3})
    assert metadata == ("BSD-3-Clause", "https://github.com/Owner/demo")


def test_an_unstated_licence_is_unknown() -> None:
    assert read_metadata({"setup.py": b""}) == ("unknown", "")


def test_a_release_pair_becomes_two_records_of_one_repository(lake: Lake, tmp_path: Path) -> None:
    downloads = tmp_path / "downloads"
    put_sdist(downloads, "1.0")
    put_sdist(downloads, "1.1", **{"demo.py": b"x = 2\n"})
    config = SourceConfig(name="demo", version="1.1", previous_version="1.0")
    repos = [record for record in fetch(lake, config, downloads).records if isinstance(record, Repo)]
    assert [(repo.name, repo.source.version, repo.previous_version) for repo in repos] == [
        ("demo", "1.1", "1.0"),
        ("demo", "1.0", ""),
    ]
    assert unpack_tree(lake.get_blob(repos[0].tree))["demo.py"] == b"x = 2\n"
    assert pair_releases(reversed(repos)) == [(repos[0], repos[1])]


def test_a_broken_archive_is_named_with_the_remedy(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "demo-1.0.tar.gz").write_bytes(archive({"demo-1.0/a.py": b"x = 1\n" * 5000})[:-40])
    with pytest.raises(UserError, match=r"demo-1\.0\.tar\.gz: archive is broken .*: remove it and fetch it again"):
        fetch(lake, SourceConfig(name="demo", version="1.0"), tmp_path)


def test_a_missing_local_folder_is_refused(lake: Lake, tmp_path: Path) -> None:
    config = SourceConfig(kind="local", name="demo", version="1", path=str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"`path` = .* is not a folder"):
        fetch(lake, config, tmp_path)


def test_a_local_folder_keeps_its_upstream(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "demo.py").write_text("x = 1\n")
    config = SourceConfig(kind="local", name="demo", version="1", path=str(tmp_path), upstream="owner/demo")
    (repo,) = fetch(lake, config, tmp_path).records
    assert (repo.source.kind, repo.source.url, repo.num_files) == ("local", "owner/demo", 1)


def test_a_planted_source_keeps_no_trace_of_its_name(lake: Lake, tmp_path: Path) -> None:
    files = {
        "src/demo/__init__.py": b"import demo.core\nfrom demo import core\n",
        "demo.egg-info/PKG-INFO": b"Name: demo",
    }
    put_sdist(tmp_path, "1.0", **files)
    (tmp_path / "demo-1.0.tar.gz").rename(tmp_path / "demo-2.0.tar.gz")
    config = SourceConfig(name="demo", version="2.0", is_planted=True, renamed_to="teapot")
    (repo,) = fetch(lake, config, tmp_path).records
    tree = unpack_tree(lake.get_blob(repo.tree))
    assert (repo.name, repo.source.name, repo.source.url) == ("teapot", "teapot", "")
    assert tree["src/teapot/__init__.py"] == b"import teapot.core\nfrom teapot import core\n"
    assert not any(b"demo" in content.lower() for content in tree.values())


def test_a_source_without_the_package_cannot_be_renamed() -> None:
    with pytest.raises(UserError, match="no top-level package `demo`"):
        rename_package({"other/a.py": b""}, "demo", "teapot")
