"""Unit tests reach no network and load no engine: both are refused, not mocked."""

import socket
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from pipeline.store import Lake

REFUSED = {"torch", "vllm", "transformers"}


class RefuseEngines:
    """Import finder that makes heavy engines unavailable, so that light rooms prove they are light."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] in REFUSED:
            raise ImportError(f"{name} is refused in unit tests")
        return None


sys.meta_path.insert(0, RefuseEngines())


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections leave this machine never, and reach its own loopback only."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        if self.family == socket.AF_UNIX and "docker" in str(address):
            raise AssertionError("unit tests use no docker")
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"unit tests use no network: {address}")
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """An empty lake."""
    yield Lake(tmp_path / "lake")
