"""A running engine, the base image, and one small real package with its image, shared by all docker tests."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.containers.base_image import BaseImage, BaseImageConfig, ensure_base_image
from pipeline.containers.engine import Client, connect
from pipeline.containers.images import build_image
from pipeline.containers.sandbox import SandboxLimits
from pipeline.store import Lake
from pipeline.trees import Tree, pack_tree
from pipeline.types import Repo, RepoImage, Source, with_id

WHEELHOUSES = Path(__file__).parents[2] / "build" / "test" / "wheelhouses"
LIMITS = SandboxLimits(memory_mb=512, pids=64, output_bytes=1_000_000, testbed_mb=64, tmp_mb=64)

SOLVED: Tree = {
    "setup.py": b"""from setuptools import setup

setup(
    name="knots",
    version="2.1",
    packages=["knots"],
    long_description="Version 2.1 mends slug, which kept capital letters.",
    entry_points={"console_scripts": ["knots = knots.text:main"]},
)
""",
    "knots/__init__.py": b"""# Small functions on text: a file long enough to be told from others by its content.
from knots.text import count, slug

__all__ = ["count", "slug"]
""",
    "knots/text.py": b'''"""Text -> shorter text."""


def slug(text):
    """Words of a text, in small letters, joined by dashes."""
    return "-".join(text.lower().split())


def count(text):
    """Number of words."""
    return len(text.split())


def main():
    print(slug("Hello Loom"))
''',
    "tests/test_count.py": b"""import pytest

from knots import count


@pytest.mark.parametrize("text", ["one two", "one  two", "a [b]"])
def test_count(text):
    assert count(text) == 2


class TestEmpty:
    def test_none(self):
        assert count("") == 0


def test_skipped():
    pytest.skip("for a reason")
""",
    "tests/test_text.py": b"""from knots import slug


def test_slug():
    assert slug("Hello Loom") == "hello-loom"
""",
}
BROKEN: Tree = SOLVED | {"knots/text.py": SOLVED["knots/text.py"].replace(b".lower()", b"")}
assert BROKEN != SOLVED


def make_repo(lake: Lake, tree: Tree, version: str = "2.1") -> Repo:
    """Tree -> Repo of the small package, stored in the lake."""
    source = Source(kind="local", name="knots", version=version, sha256="", licence="MIT", url="")
    return with_id(
        Repo(
            source=source,
            name="knots",
            tree=lake.put_blob(pack_tree(tree)),
            num_files=len(tree),
            num_bytes=sum(map(len, tree.values())),
            python_requires=[],
            test_command=["tests"],
        )
    )


@pytest.fixture(scope="session")
def client() -> Client:
    """Fails, with the remedy, where no engine answers."""
    return connect()


@pytest.fixture(scope="session")
def base(client: Client) -> BaseImage:
    return ensure_base_image(client, BaseImageConfig())


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(tmp_path_factory.mktemp("lake"))


@pytest.fixture(scope="session")
def repo(lake: Lake) -> Repo:
    """Its version is new in each run of the tests, so that its image is really built."""
    version = f"2.1.{secrets.randbelow(10**9)}"
    tree = SOLVED | {"setup.py": SOLVED["setup.py"].replace(b'"2.1"', f'"{version}"'.encode())}
    return make_repo(lake, tree, version)


@pytest.fixture(scope="session")
def image(client: Client, lake: Lake, repo: Repo, base: BaseImage) -> Iterator[RepoImage]:
    built = build_image(lake, client, repo, base, WHEELHOUSES)
    yield built
    client.api.remove_image(built.ref, force=True)
