"""Settings file -> one run of the unmodified mini-swe-agent, as a process of its own; only here is it imported.

Its commands go into a sandbox that the driver owns; its own record of the run is what the driver reads afterwards.
"""

import json
import sys
from pathlib import Path
from typing import Any

from minisweagent.agents import get_agent
from minisweagent.config import get_config_from_spec
from minisweagent.environments import get_environment
from minisweagent.environments.docker import DockerEnvironment, DockerEnvironmentConfig
from minisweagent.models import get_model
from minisweagent.utils.serialize import recursive_merge

from pipeline.containers.engine import connect
from pipeline.containers.sandbox import Sandbox, SandboxLimits


class SandboxEnvironmentConfig(DockerEnvironmentConfig):
    """Settings of mini's docker environment, for a container that runs already."""

    image: str = ""
    container_id: str
    limits: dict[str, Any]
    """Fields of SandboxLimits."""


class SandboxEnvironment(DockerEnvironment):
    """mini's environment over a sandbox that somebody else started and will remove."""

    config: SandboxEnvironmentConfig

    def __init__(self, **settings: Any) -> None:
        super().__init__(config_class=SandboxEnvironmentConfig, **settings)

    def _start_container(self) -> None:
        self.container_id = self.config.container_id
        self._sandbox = Sandbox(connect(), self.config.container_id, SandboxLimits(**self.config.limits))

    def cleanup(self) -> None:
        """Nothing: the sandbox belongs to the driver."""

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Action with a command -> output, exit code and, for a command that was killed, why."""
        limit_sec = timeout or self.config.timeout
        result = self._sandbox.execute(
            action.get("command", ""),
            timeout_sec=limit_sec,
            workdir=cwd or self.config.cwd,
            environment=self.config.env,
        )
        fault = ""
        if result.is_timeout:
            fault = f"the command did not end within {limit_sec} seconds and was killed"
        elif result.is_truncated:
            fault = "the command wrote too much output and was killed"
        output: dict[str, Any] = {"output": result.output, "returncode": result.exit_code, "exception_info": ""}
        if fault:
            info = f"An error occurred while executing the command: {fault}"
            output |= {"returncode": -1, "exception_info": info}
        self._check_finished(output)
        return output


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    config = recursive_merge(get_config_from_spec(settings["prompts"]), settings["overrides"])
    model = get_model(config=config["model"])
    environment = get_environment(config["environment"])
    agent = get_agent(model, environment, config["agent"], default_type="default")
    agent.run(settings["task"])


if __name__ == "__main__":
    main()
