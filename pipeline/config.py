"""TOML file -> one frozen dataclass; an unknown key is an error that names its neighbour."""

import difflib
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from pipeline.errors import UserError

C = TypeVar("C")

UNKNOWN_KEY = "unexpected_keyword_argument"
"""What pydantic calls it."""
STRICT = ConfigDict(extra="forbid")
"""For `pydantic.dataclasses.dataclass(frozen=True, config=STRICT)`: no unknown keys."""


def read_toml(path: Path) -> dict[str, Any]:
    """File -> its content.

    Raises: UserError when it is missing or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"there is no configuration {path}: name an existing file with --config") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not valid TOML ({error}): mend that line") from None


def load_toml(path: Path, config_type: type[C]) -> C:
    """File -> validated configuration.

    Raises: UserError, one sentence with the place and the remedy.
    """
    try:
        return TypeAdapter(config_type).validate_python(read_toml(path))
    except ValidationError as error:
        # A misspelt key is also a missing one: the misspelling is what the reader has to mend.
        first = min(error.errors(), key=lambda found: found["type"] != UNKNOWN_KEY)
        raise UserError(f"{path}: {explain(first, config_type)}") from None


def explain(error: Any, config_type: type) -> str:
    """One pydantic error -> one sentence with the remedy."""
    place = ".".join(str(part) for part in error["loc"])
    if error["type"] == UNKNOWN_KEY:
        known = _known_keys(config_type)
        near = difflib.get_close_matches(str(error["loc"][-1]), known, n=1)
        hint = f"did you mean `{near[0]}`?" if near else "remove it"
        return f"unknown key `{place}`: {hint}"
    if error["type"] in ("missing", "missing_argument"):
        return f"key `{place}` is missing: add it"
    return f"`{place}` = {error['input']!r} does not fit: {error['msg'].lower()}"


def _known_keys(config_type: type) -> list[str]:
    schema = TypeAdapter(config_type).json_schema()
    parts = [schema, *schema.get("$defs", {}).values()]
    return sorted({key for part in parts for key in part.get("properties", {})})
