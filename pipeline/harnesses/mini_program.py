"""Settings file -> one run of the unmodified mini-swe-agent, as a process of its own; only here is it imported.

Its commands go into a sandbox that the driver owns; its own record of the run is what the driver reads afterwards.
The package prints, makes folders and loads half of PyPI when imported: so that happens when this program runs.
"""

import gc
import importlib
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.containers.engine import connect
from pipeline.containers.sandbox import Sandbox, SandboxLimits

SUBMIT_MARK = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSettings:
    """The environment section of mini's configuration."""

    container_id: str
    limits: dict[str, Any]
    """Fields of SandboxLimits."""
    cwd: str
    timeout: int
    """Seconds."""
    env: dict[str, str]
    interpreter: list[str]
    """As shipped: `bash -c`, which is what a sandbox does with text."""


class SandboxEnvironment:
    """mini's Environment protocol over a sandbox that somebody else started and will remove."""

    def __init__(self, **settings: Any) -> None:
        self.config = EnvironmentSettings(**settings)
        self._sandbox = Sandbox(connect(), self.config.container_id, SandboxLimits(**self.config.limits))
        self._submitted: type[Exception] = importlib.import_module("minisweagent.exceptions").Submitted

    def get_template_vars(self, **extra: Any) -> dict[str, Any]:
        """What prompts may refer to."""
        return asdict(self.config) | extra

    def serialize(self) -> dict[str, Any]:
        """Part of mini's own record."""
        return {"info": {"config": {"environment": asdict(self.config)}}}

    def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:
        """Action with a command -> output, exit code and, for a command that was killed, why.

        Raises: mini's Submitted when the command was the submission.
        """
        if not isinstance(action["command"], str):
            return _failure("it is not a string", "")
        result = self._sandbox.execute(
            action["command"],
            timeout_sec=self.config.timeout,
            workdir=cwd or self.config.cwd,
            environment=self.config.env,
        )
        fault = ""
        if result.is_timeout:
            fault = f"the command did not end within {self.config.timeout} seconds and was killed"
        elif result.is_truncated:
            fault = "the command wrote too much output and was killed"
        if fault:
            return _failure(fault, result.output)
        mark, _, submission = result.output.lstrip().partition("\n")
        if mark.strip() == SUBMIT_MARK and result.exit_code == 0:
            extra = {"exit_status": "Submitted", "submission": submission}
            raise self._submitted({"role": "exit", "content": submission, "extra": extra})
        return {"output": result.output, "returncode": result.exit_code, "exception_info": ""}


def _failure(fault: str, output: str) -> dict[str, Any]:
    info = f"An error occurred while executing the command: {fault}"
    return {"output": output, "returncode": -1, "exception_info": info}


def main() -> None:
    """Path of the settings in the first argument -> mini's record at the path they name."""
    # A quarter of the seconds that this import takes is garbage collection that finds nothing.
    gc.disable()
    agents, config, environments, models, _ = (
        importlib.import_module(f"minisweagent.{name}")
        for name in ("agents", "config", "environments", "models", "models.litellm_textbased_model")
    )
    gc.freeze()
    gc.enable()
    merge = importlib.import_module("minisweagent.utils.serialize").recursive_merge
    settings = json.loads(Path(sys.argv[1]).read_text())
    merged = merge(config.get_config_from_spec(settings["prompts"]), settings["overrides"])
    model = models.get_model(config=merged["model"])
    environment = environments.get_environment(merged["environment"])
    agent = agents.get_agent(model, environment, merged["agent"], default_type="default")
    agent.run(settings["task"])


if __name__ == "__main__":
    main()
    # The record is on disk; tearing all those modules down in order would take most of a second.
    os._exit(0)
