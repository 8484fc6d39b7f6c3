"""Configuration -> the parts that stages share: lake, folders, Docker, gateway, servers; opened on first use."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from flows.config import JourneyConfig
from pipeline.store import Lake

T = TypeVar("T")


class Context:
    """What one run of the journey works with. Resources opened by a stage are closed when that stage ends."""

    def __init__(self, config: JourneyConfig, work: Path) -> None:
        self.config = config
        self.work = work.resolve()
        self.lake = Lake(self.work / "lake")
        self.downloads = self.work / "downloads"
        self.wheelhouses = self.work / "wheelhouses"
        self.models = self.work / "models"
        self.logs = self.work / "logs"
        for folder in (self.downloads, self.wheelhouses, self.models, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        self._stack = ExitStack()
        self._opened: dict[str, object] = {}
        self._guard = threading.RLock()

    @contextmanager
    def stage_resources(self) -> Iterator[None]:
        """Scope of one stage: what it opens is closed at its end."""
        with ExitStack() as stack:
            self._stack, self._opened = stack, {}
            yield

    def open(self, name: str, resource: Callable[[], AbstractContextManager[T]]) -> T:
        """Name and maker -> the resource, opened once per stage whichever thread asks first."""
        with self._guard:
            if name not in self._opened:
                self._opened[name] = self._stack.enter_context(resource())
            return self._opened[name]  # type: ignore[return-value]
