"""Trajectory -> Verdicts about prose that repeats itself and about calls that go round in a loop."""

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from filters.config import FilterConfig
from filters.verdict import replies, verdict
from pipeline.types import Message, Trajectory, Verdict

NAME = "repetition"
VERSION = 1

MAX_TOP_SHARE = {2: 0.20, 3: 0.18, 4: 0.16}
"""n of an n-gram -> largest share of characters in the most frequent one.  Source: Gopher, arXiv 2112.11446, A.1."""
MAX_DUPLICATE_SHARE = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
"""n of an n-gram -> largest share of characters in repeated ones.  Source: as above."""
MAX_DUPLICATE_LINES = 0.30
"""Share of lines.  Source: as above."""
MAX_DUPLICATE_LINE_CHARACTERS = 0.20
"""Source: as above."""
FENCED = re.compile(r"^[ \t]*(```|~~~).*?^[ \t]*\1[ \t]*$", re.DOTALL | re.MULTILINE)


class Step(NamedTuple):
    """One action of the agent and what came back, both with thought and white space taken out."""

    message: int
    action: str
    observation: str | None
    """None if nothing came back."""


class Finding(NamedTuple):
    """Why, where, and the proof."""

    reason: str
    message: int
    evidence: str


def check(trajectory: Trajectory, config: FilterConfig) -> list[Verdict]:
    """Reasons: repeated_ngrams, repeated_lines, compressible, repeated_call, repeated_observation."""
    prose = [
        Finding(reason, index, evidence)
        for index, message in replies(trajectory)
        for reason, evidence in _prose_findings(prose_of(message), config)
    ]
    return [
        verdict(
            trajectory,
            NAME,
            VERSION,
            config.repetition,
            finding.reason,
            message=finding.message,
            evidence=finding.evidence,
        )
        for finding in [*prose, *_loops(list(_steps(trajectory)), config)]
    ]


def prose_of(message: Message) -> str:
    """Message -> its reasoning and text without fenced code: code may repeat itself."""
    return FENCED.sub("", f"{message.reasoning}\n{message.content}").strip()


def _prose_findings(prose: str, config: FilterConfig) -> Iterator[tuple[str, str]]:
    words = prose.split()
    if len(words) >= config.min_prose_words:
        yield from _ngram_findings(words)
        yield from _line_findings(prose)
    data = prose.encode(errors="replace")
    if len(data) >= config.min_compressed_bytes:
        share = len(zlib.compress(data, 1)) / len(data)
        if share < config.min_compressed_share:
            yield "compressible", f"zlib shrinks {len(data)} bytes to {share:.3f} of them: {prose[:100]}"


def _ngram_findings(words: list[str]) -> Iterator[tuple[str, str]]:
    """At most one: the smallest n-gram that is over its share."""
    for size, limit in MAX_TOP_SHARE.items():
        gram, share = top_ngram(words, size)
        if share > limit:
            yield "repeated_ngrams", f"{share:.2f} of the characters are one {size}-gram: {gram}"
            return
    for size, limit in MAX_DUPLICATE_SHARE.items():
        share = duplicate_share(words, size)
        if share > limit:
            yield "repeated_ngrams", f"{share:.2f} of the characters are in repeated {size}-grams: {' '.join(words)}"
            return


def _line_findings(prose: str) -> Iterator[tuple[str, str]]:
    lines = [line.strip() for line in prose.splitlines() if line.strip()]
    counts = Counter(lines)
    copies = {line: count - 1 for line, count in counts.items() if count > 1}
    line_share = sum(copies.values()) / len(lines)
    character_share = sum(len(line) * count for line, count in copies.items()) / sum(map(len, lines))
    if line_share > MAX_DUPLICATE_LINES or character_share > MAX_DUPLICATE_LINE_CHARACTERS:
        worst = max(copies, key=lambda line: copies[line] * len(line))
        yield "repeated_lines", f"{line_share:.2f} of {len(lines)} lines are copies, most of all: {worst}"


def top_ngram(words: list[str], size: int) -> tuple[str, float]:
    """Words -> their most frequent n-gram and its share of all characters; share 0 if nothing comes twice."""
    grams = Counter(zip(*(words[start:] for start in range(size)), strict=False))
    if not grams:
        return "", 0.0
    gram, count = max(grams.items(), key=lambda item: (item[1] * sum(map(len, item[0])), item[0]))
    share = count * sum(map(len, gram)) / sum(map(len, words)) if count > 1 else 0.0
    return " ".join(gram), share


def duplicate_share(words: list[str], size: int) -> float:
    """Words -> share of characters inside n-grams that occurred before, each character counted once."""
    seen: set[tuple[str, ...]] = set()
    repeated, place = 0, 0
    while place + size <= len(words):
        gram = tuple(words[place : place + size])
        if gram in seen:
            repeated += sum(map(len, gram))
            place += size
        else:
            seen.add(gram)
            place += 1
    return repeated / sum(map(len, words))


def _loops(steps: list[Step], config: FilterConfig) -> Iterator[Finding]:
    """One finding per step that goes on with a loop."""
    row = 0
    pairs: Counter[tuple[str, str]] = Counter()
    for place, step in enumerate(steps):
        row = row + 1 if place and steps[place - 1].action == step.action else 1
        if row > config.max_calls_in_row:
            yield Finding("repeated_call", step.message, f"{row} times in a row: {step.action}")
        if step.observation is None:
            continue
        pairs[step.action, step.observation] += 1
        times = pairs[step.action, step.observation]
        if times > config.max_equal_observations:
            yield Finding("repeated_observation", step.message, f"{times} times with the same answer: {step.action}")


def _steps(trajectory: Trajectory) -> Iterator[Step]:
    """Trajectory -> its actions in order: tool calls, or what a plain-text reply fenced (else its whole text)."""
    messages = trajectory.messages
    for index, message in replies(trajectory):
        following = _until_next_reply(messages, index)
        for call in message.tool_calls:
            answer = next((one.content for one in following if one.tool_call_id == call.id), None)
            yield Step(index, f"{call.name} {_canonical_arguments(call.arguments)}", _canonical(answer))
        if not message.tool_calls:
            fenced = [block.group() for block in FENCED.finditer(message.content)]
            answer = following[0].content if following else None
            yield Step(index, " ".join(("\n".join(fenced) or message.content).split()), _canonical(answer))


def _until_next_reply(messages: list[Message], index: int) -> list[Message]:
    following = []
    for message in messages[index + 1 :]:
        if message.role == "assistant":
            break
        following.append(message)
    return following


def _canonical(text: str | None) -> str | None:
    return None if text is None else " ".join(text.split())


def _canonical_arguments(arguments: str) -> str:
    try:
        arguments = json.dumps(json.loads(arguments), sort_keys=True, ensure_ascii=False)
    except (ValueError, RecursionError):
        return " ".join(arguments.split())
    return re.sub(r"(\\[nrt]|\s)+", " ", arguments)
