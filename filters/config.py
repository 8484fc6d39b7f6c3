"""What each filter does with what it finds, and where its thresholds lie."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass as config_class

from pipeline.config import STRICT

Action = Literal["drop", "mask", "tag"]
"""drop the trajectory, take the message out of the loss, or only note it."""
SelectionAction = Literal["drop", "tag"]
"""For findings about the whole trajectory, where a mask would leave nothing."""


@config_class(frozen=True, config=STRICT)
class FilterConfig:
    """Section [filters]."""

    invalid_tool_call: Action = "drop"
    special_tokens: Action = "drop"
    repetition: Action = "drop"
    unresolved: SelectionAction = "drop"
    unfinished: SelectionAction = "drop"
    min_prose_words: Annotated[int, Field(ge=1)] = 50
    """Prose shorter than this is too short for shares of repeated words."""
    min_compressed_bytes: Annotated[int, Field(ge=1)] = 2048
    """Prose shorter than this compresses too unevenly to judge."""
    min_compressed_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Prose that zlib shrinks below this share of its bytes is degenerate."""
    max_calls_in_row: Annotated[int, Field(ge=1)] = 2
    """Equal calls one after the other; one more is a loop."""
    max_equal_observations: Annotated[int, Field(ge=1)] = 3
    """Times that an equal call may meet an equal observation; one more is a loop."""
