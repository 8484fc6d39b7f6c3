"""TOML table `[tasks]` -> TaskConfig."""

from dataclasses import field
from typing import Literal

from pydantic.dataclasses import dataclass as config_class

from pipeline.config import STRICT

Strategy = Literal["syntax_tree_bug", "release_pair", "function_completion"]


@config_class(frozen=True, kw_only=True, config=STRICT)
class TaskConfig:
    """How many tasks of which kinds a repository gives, and which of them are good enough."""

    strategies: list[Strategy] = field(
        default_factory=lambda: ["syntax_tree_bug", "release_pair", "function_completion"]
    )
    seed: int = 0
    max_bugs: int = 8
    """Candidates of strategy syntax_tree_bug per repository."""
    max_completions: int = 4
    """Candidates of strategy function_completion per repository."""
    max_fail_to_pass_share: float = 0.25
    """Share of the passing tests that one syntax-tree bug may break; above it the bug is too loud."""
    max_fail_to_pass: int = 150
    """Number of tests that one syntax-tree bug may break."""
    step_budget: int = 20
    """Most model calls of a rollout on an agentic task."""
    max_module_chars: int = 6000
    """Code shown in the statement of a function completion."""
    split_key: str = "treadle"
    """Secret-free key of the hash that assigns repositories to splits; another key, another assignment."""
    sft_share: float = 1.0
    """Share of repositories whose tasks are for supervised fine-tuning."""
    rlvr_share: float = 0.0
    """Share for reinforcement learning; the rest is held out."""


DEFAULTS = TaskConfig()
