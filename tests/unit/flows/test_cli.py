"""Errors end in one sentence and an exit code; help loads nothing heavy."""

import subprocess
import sys
from pathlib import Path

import pytest

TREADLE = Path(sys.executable).with_name("treadle")


def treadle(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TREADLE, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("why", "abcdef"), "there is no lake in build/demo: run `treadle demo`"),
        (("mix", "sql", "SELECT 1"), "there is no lake in build/demo: run `treadle demo`"),
    ],
)
def test_a_mistake_ends_in_one_sentence(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    result = treadle(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith(f"treadle: {sentence}")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr + result.stdout


def test_an_unknown_command_names_its_neighbour(tmp_path: Path) -> None:
    result = treadle("dmo", cwd=tmp_path)
    assert result.returncode != 0
    assert 'Did you mean "demo"?' in result.stdout + result.stderr


def test_traceback_is_there_for_those_who_ask(tmp_path: Path) -> None:
    result = treadle("why", "abcdef", "--traceback", cwd=tmp_path)
    assert result.returncode != 0
    assert "Traceback" in result.stderr
