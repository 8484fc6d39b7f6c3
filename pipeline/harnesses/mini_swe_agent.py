"""mini-swe-agent, the real one: Task -> settings -> its own process -> EndState."""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic.dataclasses import dataclass as config_class

from pipeline.config import STRICT
from pipeline.containers.sandbox import TESTBED, Sandbox
from pipeline.errors import InfrastructureError
from pipeline.harnesses.contract import EndState, RunLimits
from pipeline.teachers.processes import guarded, last_lines
from pipeline.types import Harness as HarnessRecord
from pipeline.types import Task, content_id

NAME = "mini_swe_agent"
Modality = Literal["native", "text"]

SHIPPED: dict[Modality, tuple[str, str]] = {
    "native": ("benchmarks/swebench.yaml", "litellm"),
    "text": ("benchmarks/swebench_backticks.yaml", "litellm_textbased"),
}
"""Way of calling -> prompts shipped with the package, and its model class."""

ENDS = {
    "Submitted": "submitted",
    "LimitsExceeded": "step_limit",
    "TimeExceeded": "wall_limit",
    "RepeatedFormatError": "format_error",
    "ContextWindowExceededError": "context_limit",
}
OUTSIDE_FAULTS = frozenset({"InfrastructureError", "UserError"})
"""Exits that come from our sandbox and not from the agent."""
LOG_LINES = 15

SETTINGS = {
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_CONFIGURED": "true",
    # The gateway repeats what can be repeated; ten more attempts here would hide a fault for minutes.
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "NO_PROXY": "*",
    "PYTHONUNBUFFERED": "1",
}
INHERITED = ("PATH", "LANG", "DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "LD_LIBRARY_PATH", "SSH_AUTH_SOCK")
"""All that the harness gets to see of our environment: it must not read keys out of it."""


@config_class(frozen=True, config=STRICT, kw_only=True)
class MiniConfig:
    """Settings of mini-swe-agent."""

    variation: Modality = "native"
    """Commands as native tool calls, or as fenced text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniSweAgent:
    """The harness; one process a run."""

    config: MiniConfig
    needs_sandbox: ClassVar[bool] = True
    leftovers: ClassVar[frozenset[str]] = frozenset({"patch.txt"})

    def record(self, limits: RunLimits) -> HarnessRecord:
        """Limits -> name, version, and hash of what shapes its prompts and observations."""
        prompts, model_class = SHIPPED[self.config.variation]
        settings = {
            "prompts": hashlib.sha256((_package_folder() / "config" / prompts).read_bytes()).hexdigest(),
            "model_class": model_class,
            "command_timeout_sec": limits.command_timeout_sec,
        }
        version = importlib.metadata.version("mini-swe-agent")
        return HarnessRecord(name=NAME, version=version, variation=content_id(settings)[:16])

    def run(self, episode_url: str, task: Task, sandbox: Sandbox | None, limits: RunLimits) -> EndState:
        """Teacher's address, task and its sandbox -> how the agent ended.

        Raises: InfrastructureError when the process breaks before its first step, or the sandbox fails.
        """
        assert sandbox is not None, "mini-swe-agent works in a sandbox"
        with tempfile.TemporaryDirectory(prefix="treadle-mini-") as name:
            home = Path(name)
            settings = self._settings(episode_url, task, sandbox, limits, home)
            (home / "settings.json").write_text(json.dumps(settings))
            command = [sys.executable, "-P", "-m", "pipeline.harnesses.mini_program", str(home / "settings.json")]
            with guarded(
                command, log_path=home / "log.txt", environment=process_environment(home), stop_timeout_sec=1.0
            ) as process:
                try:
                    process.wait(limits.wall_limit_sec)
                except subprocess.TimeoutExpired:
                    return EndState("wall_limit", "killed at the wall limit")
            return end_state(home)

    def _settings(
        self, episode_url: str, task: Task, sandbox: Sandbox, limits: RunLimits, home: Path
    ) -> dict[str, Any]:
        prompts, model_class = SHIPPED[self.config.variation]
        overrides = {
            "agent": {
                "step_limit": limits.step_budget,
                "cost_limit": 0,
                "output_path": str(home / "trajectory.json"),
            },
            "environment": {
                "environment_class": "pipeline.harnesses.mini_program.SandboxEnvironment",
                "container_id": sandbox.container_id,
                "limits": asdict(limits.sandbox),
                "cwd": TESTBED,
                "timeout": limits.command_timeout_sec,
                # The shipped value names a file of another image.
                "env": {"BASH_ENV": "", "PYTHONDONTWRITEBYTECODE": "1", "GIT_PAGER": "cat"},
            },
            "model": {
                "model_class": model_class,
                # The gateway sets the real name, so that all teachers see equal requests.
                "model_name": "hosted_vllm/teacher",
                "model_kwargs": {"api_base": episode_url, "api_key": "episode", "timeout": limits.wall_limit_sec},
            },
        }
        return {"prompts": prompts, "overrides": overrides, "task": instruction(task)}


def instruction(task: Task) -> str:
    """Task -> what the agent reads."""
    if not task.interface:
        return task.statement.text
    return f"{task.statement.text}\n\nThe following interface is expected:\n\n{task.interface}"


def process_environment(home: Path) -> dict[str, str]:
    """Temporary folder -> all of the environment that the harness sees."""
    inherited = {key: os.environ[key] for key in INHERITED if key in os.environ}
    return inherited | SETTINGS | {"HOME": str(home), "MSWEA_GLOBAL_CONFIG_DIR": str(home)}


def _package_folder() -> Path:
    """Folder of mini-swe-agent, found without importing it."""
    spec = importlib.util.find_spec("minisweagent")
    assert spec is not None and spec.submodule_search_locations, "mini-swe-agent is a dependency"
    return Path(spec.submodule_search_locations[0])


def end_state(home: Path) -> EndState:
    """Folder with the harness's own record -> how it ended."""
    path = home / "trajectory.json"
    native, detail = "", ""
    if path.exists():
        record = json.loads(path.read_text())
        native, detail = record["info"].get("exit_status", ""), str(record["messages"][-1].get("content", ""))[:300]
    if not native or native in OUTSIDE_FAULTS:
        cause = detail or last_lines(home / "log.txt", LOG_LINES)
        raise InfrastructureError(f"mini-swe-agent broke ({native or 'no record'}): {cause}")
    return EndState(ENDS.get(native, "error"), native)
