"""Name of a teacher -> handle: where it answers for a task, and how it is recorded."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

from pipeline.gateway.wire import Sampling, Upstream
from pipeline.teachers.oracle import MODEL
from pipeline.teachers.vllm_server import Server
from pipeline.types import Task, Teacher


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherHandle:
    """A teacher that answers now."""

    name: str
    """oracle | vllm | openai."""
    model: str
    """Name it serves the model under."""
    url: str
    """Base URL, up to and with `/v1`; `{task_id}` stands for the task where the teacher wants to know it."""
    weights_hash: str = ""
    api_key: str = ""
    returns_tokens: bool = False

    def upstream(self, task: Task) -> Upstream:
        """Task -> address to ask for its replies."""
        return Upstream(
            url=self.url.replace("{task_id}", task.id),
            model=self.model,
            api_key=self.api_key,
            returns_tokens=self.returns_tokens,
            policy_version=self.weights_hash,
        )

    def record(self, sampling: Sampling) -> Teacher:
        """Sampling rules -> how a trajectory names this teacher; the seed is the trajectory's own."""
        rules = asdict(sampling)
        rules.pop("seed")
        return Teacher(name=self.name, model=self.model, weights_hash=self.weights_hash, sampling=rules)


def oracle_teacher(url: str) -> TeacherHandle:
    """Base URL of a served oracle app -> handle."""
    return TeacherHandle(name="oracle", model=MODEL, url=f"{url}/t/{{task_id}}/v1")


def vllm_teacher(server: Server, weights_hash: str) -> TeacherHandle:
    """Running vLLM server -> handle; its calls are token-exact."""
    return TeacherHandle(name="vllm", model=server.name, url=server.url, weights_hash=weights_hash, returns_tokens=True)


def openai_teacher(url: str, model: str, api_key: str) -> TeacherHandle:
    """Any OpenAI-compatible base URL (up to and with `/v1`) -> handle."""
    return TeacherHandle(name="openai", model=model, url=url, api_key=api_key)


TEACHERS: dict[str, Callable[..., TeacherHandle]] = {
    "oracle": oracle_teacher,
    "vllm": vllm_teacher,
    "openai": openai_teacher,
}
