"""Trajectory -> Sample: the only place that knows the chat format and decides which tokens carry loss.

A token is trainable exactly when the assistant would sample it: what follows the generation prompt
`<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|>`, up to and including `<|END_OF_TURN_TOKEN|>`.
chat_template.jinja gives the same text to the server; texts lie whole between special tokens, so their ids agree too.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from pipeline.tokenizer import (
    BOS,
    CHATBOT,
    END_ACTION,
    END_OF_TURN,
    END_TEXT,
    END_THINKING,
    END_TOOL_RESULT,
    START_ACTION,
    START_OF_TURN,
    START_TEXT,
    START_THINKING,
    START_TOOL_RESULT,
    SYSTEM,
    USER,
    ChatTokenizer,
)
from pipeline.types import Json, Message, Sample, Task, ToolCall, Trajectory, Verdict, with_id

TOOLS_HEADING = "# Tools\nEach line below is one tool that you can call."
GENERATION_PROMPT = (START_OF_TURN, CHATBOT, START_THINKING)

Kind = Literal["given", "reasoning", "text", "tool_call", "turn_end"]


class Segment(NamedTuple):
    """A special token, or the whole text between two of them."""

    text: str
    is_special: bool
    message: int
    """Index of its message, -1 for what belongs to none."""
    kind: Kind
    """What the assistant samples; "given" where it samples nothing."""


def render(trajectory: Trajectory, task: Task, tokenizer: ChatTokenizer, verdicts: Iterable[Verdict] = ()) -> Sample:
    """Trajectory of a task -> token ids and trainable spans; mask verdicts take their message out of the spans.

    Counts of assistant, reasoning and tool-call tokens are taken before masks.
    """
    masked = {verdict.message for verdict in verdicts if verdict.action == "mask"}
    first_reply = min((call.num_messages for call in trajectory.calls), default=0)
    token_ids: list[int] = []
    train_spans: list[int] = []
    counts = dict.fromkeys(("reasoning", "text", "tool_call", "turn_end"), 0)
    for segment in segments_of(trajectory.messages, trajectory.tools):
        ids = [tokenizer.special_ids[segment.text]] if segment.is_special else tokenizer.encode(segment.text)
        start, end = len(token_ids), len(token_ids) + len(ids)
        token_ids += ids
        # Assistant messages of the first request are the harness's examples: nobody sampled them.
        if not ids or segment.kind == "given" or segment.message < first_reply:
            continue
        counts[segment.kind] += len(ids)
        if masked & {segment.message, -1}:
            continue
        if train_spans and train_spans[-1] == start:
            train_spans[-1] = end
        else:
            train_spans += [start, end]
    return with_id(
        Sample(
            trajectory_id=trajectory.id,
            task_id=trajectory.task_id,
            repo=task.repo,
            domain=task.domain,
            harness=trajectory.harness.name,
            modality="native_tools" if trajectory.tools else "plain_text",
            teacher=trajectory.teacher.name,
            is_resolved=trajectory.result.reward == 1.0,
            tokenizer_id=tokenizer.id,
            token_ids=token_ids,
            train_spans=train_spans,
            num_tokens=len(token_ids),
            num_assistant=sum(counts.values()),
            num_trainable=sum(train_spans[1::2]) - sum(train_spans[::2]),
            num_reasoning=counts["reasoning"],
            num_tool_call=counts["tool_call"],
        )
    )


def render_text(messages: Sequence[Message], tools: Sequence[Json], *, add_generation_prompt: bool = False) -> str:
    """Messages and tools -> the text that chat_template.jinja gives for them."""
    text = "".join(segment.text for segment in segments_of(messages, tools))
    return text + "".join(GENERATION_PROMPT) if add_generation_prompt else text


def texts_of(trajectory: Trajectory) -> list[str]:
    """Trajectory -> its texts between special tokens, as the tokenizer will meet them."""
    segments = segments_of(trajectory.messages, trajectory.tools)
    return [segment.text for segment in segments if not segment.is_special]


def segments_of(messages: Sequence[Message], tools: Sequence[Json]) -> Iterator[Segment]:
    """Messages and tools -> special tokens and texts in order, each with who wrote it."""
    yield Segment(BOS, True, -1, "given")
    if tools:
        yield from _given_turn(SYSTEM, "\n".join([TOOLS_HEADING, *map(_tool_line, tools)]), -1)
    call_ids: list[str] = []
    for index, message in enumerate(messages):
        if message.role == "assistant":
            yield from _assistant_turn(message, index, len(call_ids))
            call_ids += [call.id for call in message.tool_calls]
        elif message.role == "tool":
            yield from _tool_result(messages, index, call_ids)
        else:
            yield from _given_turn(SYSTEM if message.role == "system" else USER, message.content, index)


def _given_turn(speaker: str, text: str, index: int) -> Iterator[Segment]:
    for token in (START_OF_TURN, speaker, START_TEXT):
        yield Segment(token, True, index, "given")
    yield Segment(text, False, index, "given")
    for token in (END_TEXT, END_OF_TURN):
        yield Segment(token, True, index, "given")


def _assistant_turn(message: Message, index: int, num_calls: int) -> Iterator[Segment]:
    """`num_calls`: tool calls before this turn; ids count them through the conversation."""
    for token in GENERATION_PROMPT:
        yield Segment(token, True, index, "given")
    yield Segment(message.reasoning, False, index, "reasoning")
    yield Segment(END_THINKING, True, index, "reasoning")
    if message.content or not message.tool_calls:
        yield Segment(START_TEXT, True, index, "text")
        yield Segment(message.content, False, index, "text")
        yield Segment(END_TEXT, True, index, "text")
    if message.tool_calls:
        calls = [_call_json(call, num_calls + place) for place, call in enumerate(message.tool_calls)]
        yield Segment(START_ACTION, True, index, "tool_call")
        yield Segment(f"[{', '.join(calls)}]", False, index, "tool_call")
        yield Segment(END_ACTION, True, index, "tool_call")
    yield Segment(END_OF_TURN, True, index, "turn_end")


def _tool_result(messages: Sequence[Message], index: int, call_ids: list[str]) -> Iterator[Segment]:
    """Consecutive results share one turn, given with the last of them."""
    if index + 1 < len(messages) and messages[index + 1].role == "tool":
        return
    first = index
    while first > 0 and messages[first - 1].role == "tool":
        first -= 1
    for token in (START_OF_TURN, SYSTEM, START_TOOL_RESULT):
        yield Segment(token, True, index, "given")
    results = [_result_json(message, call_ids) for message in messages[first : index + 1]]
    yield Segment(f"[{', '.join(results)}]", False, index, "given")
    for token in (END_TOOL_RESULT, END_OF_TURN):
        yield Segment(token, True, index, "given")


def _tool_line(tool: Json) -> str:
    function = tool.get("function", tool)
    line = {
        "name": function["name"],
        "description": function.get("description") or "",
        "parameters": function.get("parameters") or {},
    }
    return _json(line)


def _call_json(call: ToolCall, number: int) -> str:
    return f'{{"tool_call_id": "{number}", "tool_name": {_json(call.name)}, "parameters": {call_parameters(call)}}}'


def call_parameters(call: ToolCall) -> str:
    """Tool call -> its arguments as the format spells a JSON object; anything else stays as the model wrote it."""
    try:
        parameters = json.loads(call.arguments)
        text = _json(parameters)
        text.encode()
    except (ValueError, RecursionError):
        return call.arguments
    return text if isinstance(parameters, dict) else call.arguments


def _result_json(message: Message, call_ids: list[str]) -> str:
    """The newest call with the answered id counts: harnesses may use an id again."""
    places = [place for place, call_id in enumerate(call_ids) if call_id == message.tool_call_id]
    number = str(places[-1]) if places else message.tool_call_id
    result = {"tool_call_id": number, "results": {"0": {"content": message.content}}, "is_error": None}
    return _json(result)


def _json(payload: Json) -> str:
    return json.dumps(payload, ensure_ascii=False)
