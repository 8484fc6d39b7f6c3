"""Each filter drops what it names, says why, and lets the near miss pass."""

import json
import random
from typing import Any

import pytest

from filters import FILTERS, apply, is_dropped
from filters.config import FilterConfig
from filters.repetition import duplicate_share, top_ngram
from filters.tool_calls import has_invalid_call, invalid_calls
from pipeline.types import Message, ToolCall, Trajectory, Verdict
from tests.unit.builders import model_call, result, trajectory

CONFIG = FilterConfig()
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
            "additionalProperties": False,
        },
    },
}
WORDS = (
    "the parser returns early because a blank line resets its state so that later keys are lost and we should keep "
    "that state until the section ends which also explains why only files with comments fail while others pass here"
)


def turn(arguments: str, *, name: str = "bash", content: str = "", number: int = 0) -> list[Message]:
    """One call and what came back."""
    call = ToolCall(id=f"c{number}", name=name, arguments=arguments)
    return [
        Message(role="assistant", content=content, tool_calls=[call]),
        Message(role="tool", content=f"out {number}", tool_call_id=call.id),
    ]


def agent(*turns: list[Message], prompt: str = "Mend it.", **overrides: Any) -> Trajectory:
    messages = [Message(role="user", content=prompt), *(message for one in turns for message in one)]
    return trajectory(**({"messages": messages, "tools": [BASH]} | overrides))


def command(text: str) -> str:
    return json.dumps({"command": text})


def said(content: str, *, reasoning: str = "", prompt: str = "Explain it.") -> Trajectory:
    """A plain-text reply."""
    reply = Message(role="assistant", content=content, reasoning=reasoning)
    return trajectory(messages=[Message(role="user", content=prompt), reply])


def reasons(record: Trajectory, config: FilterConfig = CONFIG) -> list[tuple[str, str, int]]:
    return [(row.filter, row.reason, row.message) for row in apply(record, config)]


CLEAN = [("all", "clean", -1)]


def test_a_clean_trajectory_has_one_row_that_keeps_it_and_names_what_it_passed() -> None:
    record = agent(turn(command("ls"), number=1), turn(command("submit"), number=2))
    (row,) = apply(record, CONFIG)
    assert (row.action, row.reason, row.trajectory_id) == ("keep", "clean", record.id)
    assert set(FILTERS) == {part.partition("=")[0] for part in row.evidence.split()}
    assert not is_dropped([row])


@pytest.mark.parametrize(
    ("arguments", "name", "reason"),
    [
        ('{"command": "ls"', "bash", "invalid_json"),
        ("{'command': 'ls'}", "bash", "invalid_json"),
        (command("ls"), "shell", "unknown_tool"),
        ('{"cmd": "ls"}', "bash", "schema_violation"),
        ('{"command": "ls", "timeout": 3}', "bash", "schema_violation"),
    ],
    ids=["truncated-json", "python-literal", "unknown-tool", "missing-argument", "extra-argument"],
)
def test_an_invalid_tool_call_is_dropped_with_its_reason_and_gets_no_reward(
    arguments: str, name: str, reason: str
) -> None:
    record = agent(turn(command("ls")), turn(arguments, name=name, number=1))
    (row,) = apply(record, CONFIG)
    assert (row.filter, row.reason, row.message, row.action) == ("invalid_tool_call", reason, 3, "drop")
    assert row.evidence
    assert is_dropped([row])
    assert has_invalid_call(record)


def test_every_call_of_a_turn_is_judged() -> None:
    good, bad = ToolCall(id="a", name="bash", arguments=command("ls")), ToolCall(id="b", name="bash", arguments="")
    record = agent([Message(role="assistant", content="", tool_calls=[good, bad])])
    assert [call.reason for call in invalid_calls(record)] == ["invalid_json"]


def test_a_turn_without_a_call_is_invalid_unless_it_ends_the_run() -> None:
    talk = [Message(role="assistant", content="I think so.")]
    asked = [Message(role="user", content="Call a tool.")]
    record = agent(talk, asked, turn(command("ls")), talk)
    assert reasons(record) == [("invalid_tool_call", "no_tool_call", 1)]
    unfinished = agent(turn(command("ls")), talk, exit_status="step_limit")
    assert ("invalid_tool_call", "no_tool_call", 3) in reasons(unfinished)
    assert reasons(agent(turn(command("ls")), talk)) == CLEAN


def test_plain_text_harnesses_need_no_tool_call() -> None:
    assert not has_invalid_call(agent([Message(role="assistant", content="ls")], tools=[]))


def test_a_reply_that_the_harness_left_out_of_its_history_still_counts() -> None:
    lost = model_call(num_messages=1, parse_status="unknown_tool", text="<call>")
    kept = model_call(num_messages=1, seq=1)
    record = agent(turn(command("ls")), calls=[lost, kept])
    assert [(call.reason, call.message, call.evidence) for call in invalid_calls(record)] == [
        ("unknown_tool", 1, "<call>")
    ]
    record = agent(turn(command("ls")), calls=[kept, model_call(num_messages=9, parse_status="invalid_json")])
    assert [(call.reason, call.message) for call in invalid_calls(record)] == [("invalid_json", -1)]


def test_a_call_that_the_server_refused_is_not_the_models_fault() -> None:
    refused = model_call(parse_status="invalid_json", http_status=500)
    assert not has_invalid_call(agent(turn(command("ls")), calls=[refused, model_call(num_messages=1)]))


def test_examples_inside_the_first_prompt_are_not_judged() -> None:
    example = turn("not json", number=1)
    record = agent(example, turn(command("ls"), number=2), calls=[model_call(num_messages=3)])
    assert reasons(record) == CLEAN


@pytest.mark.parametrize(
    "token",
    [
        "<|im_end|>",
        "<|START_ACTION|>",
        "<|eot_id|>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "[INST]",
        "<end_of_turn>",
        "</think>",
        "<tool_call>",
        "<co>",
        "[gMASK]",
        "<fim_middle>",
        "<extra_id_0>",
    ],
)
def test_a_special_token_of_any_family_in_content_is_dropped(token: str) -> None:
    record = said(f"The answer {token} is 4.")
    (row,) = apply(record, CONFIG)
    assert (row.filter, row.reason, row.action) == ("special_tokens", "special_token_in_content", "drop")
    assert record.messages[1].content[slice(*row.span)] == token
    assert row.evidence.startswith(token)


def test_a_special_token_in_reasoning_or_arguments_is_dropped() -> None:
    assert reasons(said("4", reasoning="so <|endoftext|>")) == [("special_tokens", "special_token_in_reasoning", 1)]
    record = agent(turn(command("echo <|im_start|>")))
    assert reasons(record) == [("special_tokens", "special_token_in_arguments", 1)]


def test_a_special_token_that_the_task_showed_first_is_allowed() -> None:
    assert reasons(said("It is <|im_end|>.", prompt="Which token follows <|im_end|>?")) == CLEAN
    shown = turn(command("cat template"))
    shown[1] = Message(role="tool", content="{{ '<|im_end|>' }}", tool_call_id="c0")
    assert reasons(agent(shown, turn(command("grep '<|im_end|>' ."), number=1))) == CLEAN
    assert reasons(agent(turn(command("grep '<|im_end|>' .")), shown)) == [
        ("special_tokens", "special_token_in_arguments", 1)
    ]


def test_what_only_looks_like_a_special_token_passes() -> None:
    assert (
        reasons(said("Use a <| b |> c, x[INST_0], <s>struck</s> words, `cp <filename> out`, [MASK] it, <|>.")) == CLEAN
    )


def test_an_end_marker_is_a_leak_only_at_the_edge_of_a_text() -> None:
    assert reasons(said("Done.</s>")) == [("special_tokens", "special_token_in_content", 1)]
    assert reasons(said("HTML has </s> for strikes.")) == CLEAN


def test_one_phrase_again_and_again_is_repeated_ngrams() -> None:
    words = [f"word{number}" for number in range(60)]
    spread = " ".join(f"{word} {'now then' * (number % 2)}" for number, word in enumerate(words))
    (row,) = apply(said(spread), CONFIG)
    assert (row.filter, row.reason, row.message) == ("repetition", "repeated_ngrams", 1)
    assert "are one 2-gram: " in row.evidence
    assert reasons(said(spread.replace("now then", "now", 20))) == CLEAN


def test_a_long_passage_said_twice_is_repeated_ngrams() -> None:
    (row,) = apply(said(f"{WORDS} and then once more {WORDS}"), CONFIG)
    assert (row.filter, row.reason, row.message) == ("repetition", "repeated_ngrams", 1)
    assert "in repeated 5-grams: " in row.evidence


def test_copied_lines_are_repeated_lines() -> None:
    words = random.Random(0).sample([f"word{number}" for number in range(400)], 60)
    lines = [" ".join(words[start : start + 4]) for start in range(0, 60, 4)]
    assert reasons(said("\n".join(lines))) == CLEAN
    long_copies = [*lines, *lines[:5]]
    (row,) = apply(said("\n".join(long_copies)), FilterConfig(repetition="tag"))[-1:]
    assert (row.reason, row.evidence[:24]) == ("repeated_lines", "0.25 of 20 lines are cop")
    many_short_copies = [*(f"{word} {word[::-1]} end of this line" for word in words[:30]), *["-"] * 15]
    found = apply(said("\n".join(many_short_copies)), CONFIG)
    assert [row.evidence[:24] for row in found if row.reason == "repeated_lines"] == ["0.31 of 45 lines are cop"]
    assert "repeated_lines" not in {row.reason for row in apply(said("\n".join(many_short_copies[:-2])), CONFIG)}


def test_prose_that_zlib_shrinks_to_almost_nothing_is_compressible() -> None:
    record = said("ab" * 2000)
    assert reasons(record) == [("repetition", "compressible", 1)]
    assert reasons(said("ab" * 1000)) == CLEAN
    assert reasons(record, FilterConfig(min_compressed_bytes=5000)) == CLEAN
    assert reasons(record, FilterConfig(min_compressed_share=0.001)) == CLEAN


def test_code_may_repeat_itself() -> None:
    block = "```python\n" + "assert f(1) == 1  # again and again and again\n" * 100 + "```\n"
    assert reasons(said(f"{WORDS}\n{block}")) == CLEAN
    assert reasons(said(f"{WORDS}\n{block.replace('```', '')}")) != CLEAN


def test_prose_too_short_for_shares_is_not_judged_by_them() -> None:
    record = said("again and " * 20)
    assert reasons(record) == CLEAN
    assert reasons(record, FilterConfig(min_prose_words=10))[0][1] == "repeated_ngrams"


def test_the_same_call_three_times_in_a_row_is_a_loop_whatever_its_spelling() -> None:
    spellings = ['{"command": "ls  -a"}', '{"command":"ls -a"}', '{ "command": "ls -a" }']
    record = agent(*(turn(one, number=number, content=f"Try {number}") for number, one in enumerate(spellings)))
    assert reasons(record) == [("repetition", "repeated_call", 5)]
    assert reasons(record, FilterConfig(max_calls_in_row=3)) == CLEAN
    assert reasons(agent(*(turn(one, number=number) for number, one in enumerate(spellings[:2])))) == CLEAN


def test_running_the_tests_again_after_each_edit_is_no_loop() -> None:
    turns = []
    for number in range(0, 8, 2):
        turns += [turn(command("pytest"), number=number), turn(command(f"sed -i {number}"), number=number + 1)]
    assert reasons(agent(*turns)) == CLEAN


def test_the_same_call_with_the_same_answer_four_times_is_a_loop() -> None:
    turns = []
    for number in range(4):
        same = turn(command("git status"), number=number)
        same[1] = Message(role="tool", content="clean", tool_call_id=f"c{number}")
        turns += [same, turn(command(f"echo {number}"), number=number + 10)]
    assert reasons(agent(*turns)) == [("repetition", "repeated_observation", 13)]
    assert reasons(agent(*turns[:6])) == CLEAN
    assert reasons(agent(*turns), FilterConfig(max_equal_observations=4)) == CLEAN


def test_a_plain_text_agent_loops_by_its_fenced_action_and_not_by_its_thought() -> None:
    turns = [
        [
            Message(role="assistant", content=f"Thought {number}.\n```bash\nls\n```"),
            Message(role="user", content=f"out {number}"),
        ]
        for number in range(3)
    ]
    assert reasons(agent(*turns, tools=[])) == [("repetition", "repeated_call", 5)]


def test_ngram_shares_are_those_of_hand_worked_text() -> None:
    words = ["aa", "bb", "aa", "bb", "cc", "dd"]
    assert top_ngram(words, 2) == ("aa bb", 8 / 12)
    assert top_ngram(words[:2], 2) == ("aa bb", 0.0)
    assert top_ngram(words[:1], 2) == ("", 0.0)
    assert duplicate_share(words, 2) == 4 / 12
    assert duplicate_share(["aa"] * 4, 2) == 4 / 8


def test_a_run_that_was_not_resolved_is_dropped_and_a_forged_one_says_so() -> None:
    failed = trajectory(result=result(reward=0.0, reason="1 test failed"))
    (row,) = apply(failed, CONFIG)
    assert (row.filter, row.reason, row.action, row.evidence) == ("unresolved", "unresolved", "drop", "1 test failed")
    for reward in (0.0, 1.0):
        forged = trajectory(result=result(reward=reward, is_forged=True))
        assert reasons(forged) == [("unresolved", "forged", -1)]
    assert reasons(trajectory(result=result(reward=1.0))) == CLEAN


@pytest.mark.parametrize("status", ["step_limit", "wall_limit", "format_error", "context_limit", "error"])
def test_a_run_that_did_not_end_itself_is_dropped_with_how_it_ended(status: str) -> None:
    record = trajectory(exit_status=status, native_exit="Native", num_steps=7)
    (row,) = apply(record, CONFIG)
    assert (row.filter, row.reason, row.evidence) == ("unfinished", status, "ended by Native after 7 steps")


def test_actions_follow_the_configuration() -> None:
    broken = agent(turn("no json"), result=result(reward=0.0), exit_status="error")

    def actions(config: FilterConfig) -> dict[str, str]:
        return {row.filter: row.action for row in apply(broken, config)}

    assert set(actions(CONFIG).values()) == {"drop"}
    gentle = FilterConfig(invalid_tool_call="mask", unresolved="tag", unfinished="tag")
    assert actions(gentle) == {"invalid_tool_call": "mask", "unresolved": "tag", "unfinished": "tag"}
    assert not is_dropped(apply(broken, gentle))
    leak, loop = said("<|im_end|>"), said("again and " * 60)
    assert {row.action for row in apply(leak, FilterConfig(special_tokens="mask"))} == {"mask"}
    assert {row.action for row in apply(loop, FilterConfig(repetition="tag"))} == {"tag"}


def test_verdicts_are_stable_records_with_short_evidence() -> None:
    record = trajectory(messages=said("x <|im_end|>").messages, result=result(reward=0.0, reason="why " * 100))
    first, again = apply(record, CONFIG), apply(record, CONFIG)
    assert first == again
    assert all(isinstance(row, Verdict) and row.id for row in first)
    assert [len(row.evidence) for row in first] == [27, 200]


def test_every_registered_filter_has_its_action_in_the_configuration() -> None:
    assert all(hasattr(CONFIG, name) for name in FILTERS)
