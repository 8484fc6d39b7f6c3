"""No tools, one turn: the statement is the request, the reply is the answer."""

from dataclasses import dataclass
from typing import ClassVar

import httpx

from pipeline.containers.sandbox import Sandbox
from pipeline.errors import InfrastructureError
from pipeline.harnesses.contract import EndState, RunLimits
from pipeline.types import Harness as HarnessRecord
from pipeline.types import Task, content_id

NAME = "completion"
VERSION = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The harness of single-turn tasks."""

    needs_sandbox: ClassVar[bool] = False
    leftovers: ClassVar[frozenset[str]] = frozenset()

    def record(self, limits: RunLimits) -> HarnessRecord:
        """Limits -> name, version and variation; it has no settings."""
        return HarnessRecord(name=NAME, version=VERSION, variation=content_id({"name": NAME, "version": VERSION})[:16])

    def run(self, episode_url: str, task: Task, sandbox: Sandbox | None, limits: RunLimits) -> EndState:
        """Teacher's address and task -> how the one request ended."""
        body = {"model": "teacher", "messages": [{"role": "user", "content": task.statement.text}]}
        try:
            with httpx.Client(trust_env=False, timeout=limits.wall_limit_sec) as client:
                response = client.post(f"{episode_url}/chat/completions", json=body)
        except httpx.TimeoutException:
            return EndState("wall_limit", "no reply in time")
        except httpx.TransportError as error:
            raise InfrastructureError(f"the gateway did not answer: {error}") from None
        if response.status_code != 200:
            return EndState("context_limit" if response.status_code == 400 else "error", str(response.status_code))
        return EndState("submitted", response.json()["choices"][0]["finish_reason"])
