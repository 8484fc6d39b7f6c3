"""Sample -> its tokens as text, turn by turn, trainable ones apart from context."""

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import NamedTuple

from pipeline.tokenizer import (
    CHATBOT,
    START_OF_TURN,
    START_TOOL_RESULT,
    SYSTEM,
    USER,
    ChatTokenizer,
)
from pipeline.types import Sample

LONG_TURN_TOKENS = 300
"""A longer turn that nobody is trained on starts folded."""
MAX_BYTES_OF_CHARACTER = 4
REPLACEMENT = "\ufffd"
SPEAKERS = {SYSTEM: "system", USER: "user", CHATBOT: "assistant"}


class Piece(NamedTuple):
    """The fewest neighbouring tokens that make whole characters: nearly always one."""

    text: str
    is_special: bool
    is_trainable: bool
    position: int
    """Index of its first token in the sample."""


class Run(NamedTuple):
    """Neighbouring pieces that all train, or all do not."""

    is_trainable: bool
    pieces: list[Piece]


class Turn(NamedTuple):
    """One turn of the chat format."""

    number: int
    speaker: str
    """system | user | assistant | tool result | start, the tokens before the first turn."""
    num_tokens: int
    num_trainable: int
    is_folded: bool
    preview: str
    runs: list[Run]


def turns(sample: Sample, tokenizer: ChatTokenizer) -> list[Turn]:
    """Sample -> turns; every token of the sample is in exactly one."""
    trainable = [False] * len(sample.token_ids)
    for start, end in zip(sample.train_spans[::2], sample.train_spans[1::2], strict=True):
        trainable[start:end] = [True] * (end - start)
    opener = tokenizer.special_ids[START_OF_TURN]
    starts = [place for place, token in enumerate(sample.token_ids) if token == opener]
    bounds = sorted({0, *starts, len(sample.token_ids)})
    return [
        _turn(number, sample.token_ids, trainable, range(start, end), tokenizer)
        for number, (start, end) in enumerate(pairwise(bounds))
    ]


def _turn(number: int, token_ids: list[int], trainable: list[bool], places: range, tokenizer: ChatTokenizer) -> Turn:
    found = list(pieces(token_ids, trainable, places, tokenizer))
    specials = {piece.text for piece in found if piece.is_special}
    speaker = next((SPEAKERS[piece.text] for piece in found if piece.is_special and piece.text in SPEAKERS), "start")
    if START_TOOL_RESULT in specials:
        speaker = "tool result"
    num_trainable = sum(trainable[place] for place in places)
    text = "".join(piece.text for piece in found if not piece.is_special)
    return Turn(
        number=number,
        speaker=speaker,
        num_tokens=len(places),
        num_trainable=num_trainable,
        is_folded=len(places) > LONG_TURN_TOKENS and not num_trainable,
        preview=" ".join(text[:200].split())[:90],
        runs=[Run(is_trainable, list(group)) for is_trainable, group in groupby(found, lambda it: it.is_trainable)],
    )


def pieces(token_ids: list[int], trainable: list[bool], places: range, tokenizer: ChatTokenizer) -> Iterator[Piece]:
    """Tokens at `places` -> pieces of text; a character whose bytes lie in several tokens stays whole."""
    special = set(tokenizer.special_ids.values())
    start = places.start
    while start < places.stop:
        end = start + 1
        text = tokenizer.decode(token_ids[start:end])
        longest = min(start + MAX_BYTES_OF_CHARACTER, places.stop)
        while (
            text.endswith(REPLACEMENT)
            and end < longest
            and token_ids[end] not in special
            and trainable[end] == trainable[start]
        ):
            end += 1
            text = tokenizer.decode(token_ids[start:end])
        yield Piece(text, token_ids[start] in special, trainable[start], start)
        start = end
