"""What mini-swe-agent is given and how its ends are read; the run itself is a docker test."""

import json
from pathlib import Path

import pytest

from pipeline.containers.sandbox import SandboxLimits
from pipeline.errors import InfrastructureError, UserError
from pipeline.harnesses.contract import EndState, RunLimits
from pipeline.harnesses.mini_swe_agent import MiniConfig, MiniSweAgent, end_state, instruction, process_environment
from pipeline.harnesses.registry import find_harness
from tests.unit import builders


def limits(**overrides: object) -> RunLimits:
    fields = {"step_budget": 5, "wall_limit_sec": 60, "command_timeout_sec": 30, "sandbox": SandboxLimits()}
    return RunLimits(**(fields | overrides))  # type: ignore[arg-type]


def finished(folder: Path, exit_status: str, content: str = "") -> Path:
    record = {"info": {"exit_status": exit_status}, "messages": [{"role": "exit", "content": content}]}
    (folder / "trajectory.json").write_text(json.dumps(record))
    return folder


@pytest.mark.parametrize(
    ("native", "expected"),
    [
        ("Submitted", "submitted"),
        ("LimitsExceeded", "step_limit"),
        ("TimeExceeded", "wall_limit"),
        ("RepeatedFormatError", "format_error"),
        ("ContextWindowExceededError", "context_limit"),
        ("UndefinedError", "error"),
    ],
)
def test_native_exit_has_one_normalised_name(native: str, expected: str, tmp_path: Path) -> None:
    assert end_state(finished(tmp_path, native)) == EndState(expected, native)


def test_fault_of_the_sandbox_is_not_the_agents(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="docker could not run"):
        end_state(finished(tmp_path, "InfrastructureError", "docker could not run a process"))


def test_harness_that_never_got_going_is_an_infrastructure_fault_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("ModuleNotFoundError: No module named 'mcp'\n")
    with pytest.raises(InfrastructureError, match=r"no record.*'mcp'"):
        end_state(tmp_path)


def test_process_sees_no_key_of_our_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy")
    environment = process_environment(tmp_path)
    assert "OPENAI_API_KEY" not in environment and "HTTP_PROXY" not in environment
    assert environment["HOME"] == str(tmp_path)
    assert environment["MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT"] == "1"


def test_variation_names_what_shapes_the_prompts_and_nothing_else() -> None:
    native, text = (MiniSweAgent(config=MiniConfig(variation=name)) for name in ("native", "text"))
    assert native.record(limits()).version == "2.4.6"
    assert native.record(limits()) == native.record(limits(wall_limit_sec=1, step_budget=9))
    assert native.record(limits()).variation != text.record(limits()).variation
    assert native.record(limits()).variation != native.record(limits(command_timeout_sec=31)).variation


def test_interface_is_told_beside_the_statement() -> None:
    assert instruction(builders.task()) == "It fails."
    assert instruction(builders.task(interface="def f(a)")).endswith("expected:\n\ndef f(a)")


def test_unknown_harness_is_a_user_error_that_names_the_known_ones() -> None:
    with pytest.raises(UserError, match="completion, mini_swe_agent"):
        find_harness("aider", MiniConfig())
