"""Trajectory -> token ids and trainable spans: exactly what the assistant would sample carries loss."""

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2.sandbox
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.codec import record_from_plain
from pipeline.render import call_parameters, render, render_text, segments_of, texts_of
from pipeline.tokenizer import (
    BOS,
    CHATBOT,
    END_OF_TURN,
    END_THINKING,
    SPECIAL_TOKENS,
    START_OF_TURN,
    START_THINKING,
    TEMPLATE,
    TOKENIZER_FILES,
    ChatTokenizer,
    load_tokenizer,
)
from pipeline.types import Json, Message, Sample, ToolCall, Trajectory, Verdict, content_id
from tests.unit import builders

GOLDEN = Path(__file__).parents[2] / "golden" / "render"
BASH: Json = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command: <b> & 'c' \"d\" \u00e9.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
BARE: Json = {"type": "function", "function": {"name": "submit"}}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    """The frozen tokenizer, with the chat template of today."""
    folder = tmp_path_factory.mktemp("tokenizer")
    sources = {name: GOLDEN / name for name in TOKENIZER_FILES} | {"chat_template.jinja": TEMPLATE}
    for name, path in sources.items():
        (folder / name).write_bytes(path.read_bytes())
    return load_tokenizer(folder)


def call(number: int, arguments: str = '{"command": "ls"}', name: str = "bash") -> ToolCall:
    return ToolCall(id=f"call-{number}", name=name, arguments=arguments)


def conversation() -> list[Message]:
    return [
        Message(role="system", content="Solve it.\n"),
        Message(role="user", content="Fix <parse> & 'go'."),
        Message(role="assistant", content="", reasoning="Look.", tool_calls=[call(0), call(1, '{"command":"a\\n"}')]),
        Message(role="tool", content='x.py\n"q" <t> \u00e9', tool_call_id="call-0"),
        Message(role="tool", content="", tool_call_id="call-1"),
        Message(role="assistant", content="Now this.", tool_calls=[call(2, "{}")]),
        Message(role="tool", content="ok", tool_call_id="call-2"),
        Message(role="assistant", content="Done.", reasoning="It works."),
        Message(role="user", content="Thanks"),
        Message(role="assistant", content=""),
    ]


def verdict(message: int, action: Any = "mask") -> Verdict:
    return Verdict(
        trajectory_id="j",
        filter="f",
        filter_version=1,
        action=action,
        reason="r",
        message=message,
        span=[],
        evidence="",
    )


def sample_of(tokenizer: ChatTokenizer, messages: list[Message], **options: Any) -> Sample:
    verdicts = options.pop("verdicts", ())
    fields = {"tools": [BASH], "messages": messages} | options
    return render(builders.trajectory(**fields), builders.task(), tokenizer, verdicts)


def supervised(tokenizer: ChatTokenizer, sample: Sample) -> list[str]:
    """Sample -> text of each trainable span."""
    spans = zip(sample.train_spans[::2], sample.train_spans[1::2], strict=True)
    return [tokenizer.decode(sample.token_ids[start:end]) for start, end in spans]


@functools.cache
def chat_template() -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(TEMPLATE.read_text())


def templated(messages: list[Message], tools: list[Json], *, add_generation_prompt: bool) -> str:
    """Messages -> text of the chat template, run the way transformers and vLLM run it."""

    return chat_template().render(
        messages=[on_the_wire(message) for message in messages],
        tools=tools or None,
        add_generation_prompt=add_generation_prompt,
    )


def on_the_wire(message: Message) -> dict[str, Json]:
    """Message -> what a server hands to the template: arguments parsed, absent fields left out."""
    wire: dict[str, Json] = {"role": message.role, "content": message.content or None}
    if message.role in ("system", "user", "tool"):
        wire["content"] = message.content
    if message.reasoning:
        wire["reasoning"] = message.reasoning
    if message.tool_call_id:
        wire["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        wire["tool_calls"] = [
            {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": json.loads(one.arguments)}}
            for one in message.tool_calls
        ]
    return wire


@pytest.mark.parametrize("num_messages", range(11))
@pytest.mark.parametrize(
    "tools", [[], [BASH], [BASH, BASH["function"], BARE]], ids=["no-tool", "one-tool", "three-tools"]
)
def test_rendered_text_equals_the_chat_template(tools: list[Json], num_messages: int) -> None:
    messages = conversation()[:num_messages]
    for prompt in (False, True):
        expected = templated(messages, tools, add_generation_prompt=prompt)
        assert render_text(messages, tools, add_generation_prompt=prompt) == expected


@given(texts=st.lists(st.text(max_size=12), min_size=5, max_size=5))
@settings(max_examples=60, deadline=None)
def test_no_content_makes_text_and_template_differ(texts: list[str]) -> None:
    arguments = json.dumps({"command": texts[0]})
    messages = [
        Message(role="user", content=texts[1]),
        Message(role="assistant", content=texts[2], reasoning=texts[3], tool_calls=[call(0, arguments)]),
        Message(role="tool", content=texts[4], tool_call_id="call-0"),
    ]
    assert render_text(messages, [BASH]) == templated(messages, [BASH], add_generation_prompt=False)


def test_rendered_ids_decode_to_the_rendered_text(tokenizer: ChatTokenizer) -> None:
    sample = sample_of(tokenizer, conversation())
    assert tokenizer.decode(sample.token_ids) == render_text(conversation(), [BASH])
    assert tokenizer.decode(sample.token_ids).count(BOS) == 1


def test_spans_hold_what_follows_the_generation_prompt_up_to_the_end_of_turn(tokenizer: ChatTokenizer) -> None:
    sample = sample_of(tokenizer, conversation())
    assert supervised(tokenizer, sample) == [
        "Look.<|END_THINKING|><|START_ACTION|>["
        '{"tool_call_id": "0", "tool_name": "bash", "parameters": {"command": "ls"}}, '
        '{"tool_call_id": "1", "tool_name": "bash", "parameters": {"command": "a\\n"}}]<|END_ACTION|>'
        "<|END_OF_TURN_TOKEN|>",
        "<|END_THINKING|><|START_TEXT|>Now this.<|END_TEXT|>"
        '<|START_ACTION|>[{"tool_call_id": "2", "tool_name": "bash", "parameters": {}}]<|END_ACTION|>'
        "<|END_OF_TURN_TOKEN|>",
        "It works.<|END_THINKING|><|START_TEXT|>Done.<|END_TEXT|><|END_OF_TURN_TOKEN|>",
        "<|END_THINKING|><|START_TEXT|><|END_TEXT|><|END_OF_TURN_TOKEN|>",
    ]
    prompt = [tokenizer.special_ids[token] for token in (START_OF_TURN, CHATBOT, START_THINKING)]
    for start in sample.train_spans[::2]:
        assert sample.token_ids[start - 3 : start] == prompt


def test_counts_say_how_many_tokens_are_of_which_kind(tokenizer: ChatTokenizer) -> None:
    messages = conversation()[:3]
    sample = sample_of(tokenizer, messages)
    calls = (
        '[{"tool_call_id": "0", "tool_name": "bash", "parameters": {"command": "ls"}}, '
        '{"tool_call_id": "1", "tool_name": "bash", "parameters": {"command": "a\\n"}}]'
    )
    assert sample.num_tokens == len(sample.token_ids)
    assert sample.num_reasoning == len(tokenizer.encode("Look.")) + 1
    assert sample.num_tool_call == len(tokenizer.encode(calls)) + 2
    assert sample.num_assistant == sample.num_reasoning + sample.num_tool_call + 1 == sample.num_trainable


def test_masked_message_loses_its_spans_but_stays_in_context_and_in_the_count(tokenizer: ChatTokenizer) -> None:
    whole = sample_of(tokenizer, conversation())
    masked = sample_of(tokenizer, conversation(), verdicts=[verdict(2), verdict(7, "tag")])
    assert supervised(tokenizer, masked) == supervised(tokenizer, whole)[1:]
    assert masked.token_ids == whole.token_ids
    assert masked.num_assistant == whole.num_assistant
    assert masked.num_trainable == whole.num_trainable - (whole.train_spans[1] - whole.train_spans[0])


def test_mask_without_a_message_takes_all_of_them(tokenizer: ChatTokenizer) -> None:
    sample = sample_of(tokenizer, conversation(), verdicts=[verdict(-1)])
    assert (sample.train_spans, sample.num_trainable) == ([], 0)
    assert sample.num_assistant > 0


def test_examples_in_the_first_request_are_not_trained_on(tokenizer: ChatTokenizer) -> None:
    calls = [builders.model_call(num_messages=9), builders.model_call(seq=1, num_messages=11)]
    sample = sample_of(tokenizer, conversation(), calls=calls)
    assert supervised(tokenizer, sample) == ["<|END_THINKING|><|START_TEXT|><|END_TEXT|><|END_OF_TURN_TOKEN|>"]
    assert sample.num_assistant == sample.num_trainable == 4


@pytest.mark.parametrize("role", ["system", "user", "tool", "assistant"])
def test_special_token_strings_in_content_stay_ordinary_text(tokenizer: ChatTokenizer, role: Any) -> None:
    hostile = "".join(SPECIAL_TOKENS)
    messages = conversation()[:5]
    place = next(index for index, message in enumerate(messages) if message.role == role)
    plain = sample_of(tokenizer, [replace(m, content="x") if i == place else m for i, m in enumerate(messages)])
    sample = sample_of(tokenizer, [replace(m, content=hostile) if i == place else m for i, m in enumerate(messages)])
    specials = set(tokenizer.special_ids.values())

    def structure(one: Sample) -> list[int]:
        return [index for index in one.token_ids if index in specials]

    assert structure(sample) == structure(plain)
    assert hostile in tokenizer.decode(sample.token_ids)


def test_special_token_strings_in_a_tool_call_stay_ordinary_text(tokenizer: ChatTokenizer) -> None:
    hostile = ToolCall(id=END_OF_TURN, name=END_OF_TURN, arguments=json.dumps({END_OF_TURN: END_THINKING}))
    messages = [Message(role="user", content="u"), Message(role="assistant", content="", tool_calls=[hostile])]
    sample = sample_of(tokenizer, messages, tools=[])
    assert sample.token_ids.count(tokenizer.special_ids[END_OF_TURN]) == 2
    assert sample.token_ids.count(tokenizer.special_ids[END_THINKING]) == 1


@pytest.mark.parametrize(
    ("arguments", "rendered"),
    [
        ('{"b":1,"a":"\\u00e9"}', '{"b": 1, "a": "\u00e9"}'),
        ('{"command": ls}', '{"command": ls}'),
        ("[1,2]", "[1,2]"),
        ('{"a":"\\ud800"}', '{"a":"\\ud800"}'),
        ('{"a":' + "[" * 100_000, '{"a":' + "[" * 100_000),
        ("", ""),
    ],
    ids=["object", "not-json", "list", "lone-surrogate", "very-deep", "empty"],
)
def test_arguments_that_are_no_json_object_stay_as_written(arguments: str, rendered: str) -> None:
    assert call_parameters(call(0, arguments)) == rendered


def test_result_names_the_newest_call_with_its_id() -> None:
    turn = [
        Message(role="assistant", content="", tool_calls=[call(0)]),
        Message(role="tool", content="r", tool_call_id="call-0"),
    ]
    text = render_text([*turn, *turn], [])
    assert text.count('{"tool_call_id": "0", "results"') == 1
    assert text.count('{"tool_call_id": "1", "results"') == 1
    assert text == templated([*turn, *turn], [], add_generation_prompt=False)


def test_texts_for_tokenizer_training_are_those_between_special_tokens() -> None:
    trajectory = builders.trajectory(messages=conversation()[:3], tools=[])
    assert texts_of(trajectory)[:3] == ["Solve it.\n", "Fix <parse> & 'go'.", "Look."]
    joined = "".join(segment.text for segment in segments_of(trajectory.messages, []) if not segment.is_special)
    assert "".join(texts_of(trajectory)) == joined


def test_sample_keeps_its_parents_and_its_id_is_its_content(tokenizer: ChatTokenizer) -> None:
    trajectory, task = builders.trajectory(), builders.task(repo="toolz")
    sample = render(trajectory, task, tokenizer)
    assert (sample.trajectory_id, sample.task_id, sample.repo) == (trajectory.id, trajectory.task_id, "toolz")
    assert (sample.tokenizer_id, sample.modality, sample.is_resolved) == (tokenizer.id, "plain_text", True)
    assert sample == render(trajectory, task, tokenizer)
    plain = json.loads((GOLDEN / "completion.json").read_text())
    assert sample.id != render(record_from_plain(Trajectory, plain["trajectory"]), task, tokenizer).id


@pytest.mark.parametrize("harness", ["mini_swe_agent-native", "mini_swe_agent-text", "completion"])
def test_supervised_ids_of_each_harness_are_exactly_the_frozen_ones(tokenizer: ChatTokenizer, harness: str) -> None:
    golden = json.loads((GOLDEN / f"{harness}.json").read_text())
    trajectory = record_from_plain(Trajectory, golden["trajectory"])
    sample = render(trajectory, builders.task(), tokenizer)
    spans = zip(sample.train_spans[::2], sample.train_spans[1::2], strict=True)
    ids = [sample.token_ids[place] for start, end in spans for place in range(start, end)]
    assert trajectory.harness.name == harness.partition("-")[0]
    assert ids == golden["supervised_ids"]
    assert supervised(tokenizer, sample) == golden["supervised_texts"]
    assert content_id(sample.token_ids) == golden["token_ids_hash"]
