"""What every harness is given and what it answers."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from pipeline.containers.sandbox import Sandbox, SandboxLimits
from pipeline.types import Harness as HarnessRecord
from pipeline.types import Task


class EndState(NamedTuple):
    """How a run ended."""

    exit_status: str
    """submitted | step_limit | wall_limit | format_error | context_limit | error."""
    native_exit: str
    """The harness's own word for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """What one run may use."""

    step_budget: int
    """Most model calls."""
    wall_limit_sec: float
    command_timeout_sec: int
    """Of one command in the sandbox."""
    sandbox: SandboxLimits
    """Those the sandbox was started with."""


class Harness(Protocol):
    """An agent program, ready to run."""

    needs_sandbox: ClassVar[bool]
    leftovers: ClassVar[frozenset[str]]
    """Files that its own protocol leaves in the working folder: no part of the agent's work."""

    def record(self, limits: RunLimits) -> HarnessRecord:
        """Limits -> name, version and variation."""
        ...

    def run(self, episode_url: str, task: Task, sandbox: Sandbox | None, limits: RunLimits) -> EndState:
        """Teacher's address, task and the sandbox that holds its base tree -> how the run ended.

        Raises: InfrastructureError when something other than the model failed.
        """
        ...
