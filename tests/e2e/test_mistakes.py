"""A mistake in what the demo is given ends in one sentence, and nothing is half-written."""

import subprocess
import sys
from pathlib import Path

TREADLE = Path(sys.executable).with_name("treadle")


def treadle(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TREADLE, *arguments], cwd=cwd, capture_output=True, text=True, timeout=300)


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    result = treadle("demo", "--config", "none.toml", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("treadle: there is no configuration none.toml")
    assert result.stderr.count("\n") == 1


def test_a_wrong_key_in_the_demo_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text("[sft]\nlearning_rat = 1.0\n")
    result = treadle("demo", "--config", "wrong.toml", "--work", "w", cwd=tmp_path)
    assert result.returncode == 2
    assert "unknown key `sft.learning_rat`: did you mean `learning_rate`?" in result.stderr
    assert not (tmp_path / "w" / "lake").exists(), "nothing is written before the configuration is valid"


def test_an_unknown_source_is_one_sentence_and_the_corrected_command_continues(tmp_path: Path) -> None:
    text = """
[[sources]]
name = "no-such-package-by-this-name"
version = "1.0"
[[references]]
name = "requests"
version = "2.31.0"
[mix]
intent = "stage1.toml"
"""
    (tmp_path / "unknown.toml").write_text(text)
    result = treadle("demo", "--config", "unknown.toml", "--work", "w", cwd=tmp_path)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("treadle: ")
    assert "no-such-package-by-this-name" in last
    assert not list((tmp_path / "w" / "lake").glob("stages/*/stage.json")), "no stage is half-written"
