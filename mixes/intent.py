"""TOML file -> MixIntent: which shares, of what, in which unit, within which budget."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass as config_class

from pipeline.config import STRICT, load_toml
from pipeline.errors import UserError
from pipeline.types import Domain, canonical_json

Unit = Literal["trainable", "total"]
"""Tokens that carry loss, or all tokens."""
Positive = Annotated[int, Field(ge=1)]


@config_class(frozen=True, config=STRICT)
class Slice:
    """Samples that match one of the values in every key that is given; without keys all samples."""

    domain: tuple[Domain, ...] = ()
    harness: tuple[str, ...] = ()
    modality: tuple[Literal["native_tools", "plain_text"], ...] = ()
    teacher: tuple[str, ...] = ()
    repo: tuple[str, ...] = ()


DIMENSIONS = ("domain", "harness", "modality", "teacher", "repo")
"""Keys of a Slice, which are columns of a sample."""


@config_class(frozen=True, config=STRICT)
class Share:
    """One wish: tokens of `slice`, divided by tokens of `base`, `op` `share`."""

    name: str
    slice: Slice
    share: Annotated[float, Field(ge=0, le=1)]
    base: Slice = Slice()
    """The whole mix unless stated."""
    op: Literal["=", "<=", ">="] = "="
    unit: Unit = "trainable"
    tolerance: Annotated[float, Field(ge=0, le=1)] = 0.001
    """Largest accepted difference of the share; half the slice's smallest sample is accepted in any case."""


@config_class(frozen=True, config=STRICT)
class Budget:
    """How many tokens, repeats counted."""

    unit: Unit = "trainable"
    value: Positive | Literal["largest"] = "largest"
    """Tokens, or the most that the shares and the supply allow."""


@config_class(frozen=True, config=STRICT)
class Requirements:
    """What every sample must be."""

    is_resolved: bool = True
    """Only trajectories whose verifier gave reward 1."""


@config_class(frozen=True, config=STRICT)
class MixIntent:
    """What a mix should be; a lock says what it is."""

    name: str
    stage: str
    context_tokens: Positive
    """A longer sample is excluded and listed, never truncated."""
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    """Key of every choice among equals."""
    shares: tuple[Share, ...]
    budget: Budget = Budget()
    repeat_cap: Annotated[int, Field(ge=1, le=4)] = 1
    """Times that one sample may occur."""
    task_cap: Annotated[int, Field(ge=0)] = 0
    """Different samples that one task may give, 0 for no cap."""
    on_dry: Literal["fail"] = "fail"
    """What happens when a slice has too few tokens: an error that names it."""
    requirements: Requirements = Requirements()


def read_intent(path: Path) -> MixIntent:
    """File -> intent.

    Raises: UserError when a key is wrong or a share's name occurs twice.
    """
    intent = load_toml(path, MixIntent)
    names = [share.name for share in intent.shares]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"{path}: share name `{twice[0]}` occurs twice: give every share a name of its own")
    return intent


def override(
    intent: MixIntent, *, budget: int | Literal["largest"] | None = None, context: int | None = None
) -> MixIntent:
    """Intent -> the same shares with another budget (in the intent's unit) or context (tokens)."""
    if budget is not None:
        intent = replace(intent, budget=Budget(unit=intent.budget.unit, value=budget))
    return intent if context is None else replace(intent, context_tokens=context)


def plain(intent: MixIntent) -> dict[str, Any]:
    """Intent -> JSON value, for the lock."""
    value: dict[str, Any] = json.loads(canonical_json(asdict(intent)))
    return value


def describe(chosen: Slice) -> str:
    """Slice -> words for a message: domain=agentic_code, or the whole."""
    parts = [f"{name}={'|'.join(getattr(chosen, name))}" for name in DIMENSIONS if getattr(chosen, name)]
    return " ".join(parts) or "the whole"
