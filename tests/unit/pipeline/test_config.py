"""A wrong configuration ends with one sentence that says how to mend it."""

from pathlib import Path

import pytest
from pydantic.dataclasses import dataclass

from pipeline.config import STRICT, load_toml
from pipeline.errors import UserError


@dataclass(frozen=True, config=STRICT)
class Limits:
    memory_mb: int = 512


@dataclass(frozen=True, config=STRICT)
class Config:
    name: str
    limits: Limits = Limits()
    seeds: tuple[int, ...] = ()


def load(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return load_toml(path, Config)


def test_a_valid_file_becomes_a_frozen_configuration(tmp_path: Path) -> None:
    assert load(tmp_path, 'name = "a"\nseeds = [1]\n[limits]\nmemory_mb = 9') == Config("a", Limits(9), (1,))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('name = "a"\n[limits]\nmemory = 9', "unknown key `limits.memory`: did you mean `memory_mb`?"),
        ('name = "a"\nzzz = 9', "unknown key `zzz`: remove it"),
        ("seeds = [1]", "key `name` is missing: add it"),
        ('name = "a"\n[limits]\nmemory_mb = "lots"', "`limits.memory_mb` = 'lots' does not fit"),
        ("name =", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_the_remedy(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        load(tmp_path, text)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value).partition(": ")[2].partition("(")[0]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no configuration"):
        load_toml(tmp_path / "none.toml", Config)
