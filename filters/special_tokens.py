"""Trajectory -> Verdicts about control tokens, of any known tokenizer family, that leaked into what the teacher wrote.

A token that an earlier message of the user, the system or a tool shows is a subject of the task: it is allowed.
"""

import re
from typing import NamedTuple

from filters.config import FilterConfig
from filters.verdict import replies, verdict
from pipeline.types import Message, Trajectory, Verdict

NAME = "special_tokens"
VERSION = 1

FAMILIES = {
    # <|im_end|>, <|endoftext|>, <|eot_id|>, <|START_ACTION|>, <|channel|>, <|tool_calls_section_begin|>
    "bar": r"<\|/?[A-Za-z0-9][A-Za-z0-9_.:-]{0,60}\|>",
    # DeepSeek writes the bars in full width and the spaces as U+2581
    "full_width_bar": "<\uff5c[^<>\\s\uff5c]{1,60}\uff5c>",
    "llama2_mistral": r"\[/?INST\]|<</?SYS>>"
    r"|\[/?(?:TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS|TOOL_CONTENT|SYSTEM_PROMPT|THINK)\]",
    "gemma": r"</?(?:start_of_turn|end_of_turn|start_of_image|end_of_image|bos|eos)>|<unused\d{1,3}>",
    "glm": r"\[gMASK\]|\[sMASK\]|<sop>|<eop>|</?arg_(?:key|value)>",
    "code_model": r"<(?:fim_prefix|fim_middle|fim_suffix|fim_pad|file_sep|reponame|gh_stars"
    r"|issue_start|issue_comment|issue_closed|jupyter_start|jupyter_code|jupyter_output|empty_output|commit_before"
    r"|commit_msg|commit_after)>|<(?:SUF|MID|EOT)>",
    "reserved": r"<(?:extra_id_\d{1,3}|reserved_?\d{1,4}|SPECIAL_\d{1,4}|special_token_\d{1,4})>",
    "xml_markers": r"</?(?:think|tool_call|tool_response|function_calls|seed:think|seed:tool_call|co)>"
    r"|</co: [\d:,\[\]]+>|<(?:function|parameter)=[\w.-]{1,60}>",
}
ANYWHERE = re.compile("|".join(FAMILIES.values()))
AT_EDGE = re.compile(r"</?s>|<(?:pad|unk|mask|PRE|filename|repo_name)>|</?tools>|\[(?:CLS|SEP|PAD|UNK|MASK)\]")
"""Also words of HTML, of usage lines and of prose: a leak only where a text begins or ends."""


class Part(NamedTuple):
    """One text of a message."""

    name: str
    """content | reasoning | arguments."""
    text: str


def check(trajectory: Trajectory, config: FilterConfig) -> list[Verdict]:
    """Reasons: special_token_in_content, special_token_in_reasoning, special_token_in_arguments."""
    written = dict(replies(trajectory))
    shown: set[str] = set()
    found = []
    for index, message in enumerate(trajectory.messages):
        if index not in written:
            shown |= {hit.group() for hit in _markers(message.content)}
            continue
        for part in _parts(message):
            leak = next((hit for hit in _leaks(part.text) if hit.group() not in shown), None)
            if leak:
                found.append(
                    verdict(
                        trajectory,
                        NAME,
                        VERSION,
                        config.special_tokens,
                        f"special_token_in_{part.name}",
                        message=index,
                        span=leak.span(),
                        evidence=f"{leak.group()} in: {part.text[max(0, leak.start() - 60) : leak.end() + 60]}",
                    )
                )
    return found


def _parts(message: Message) -> list[Part]:
    calls = [Part("arguments", call.arguments) for call in message.tool_calls]
    return [Part("content", message.content), Part("reasoning", message.reasoning), *calls]


def _markers(text: str) -> list[re.Match[str]]:
    return [*ANYWHERE.finditer(text), *AT_EDGE.finditer(text)]


def _leaks(text: str) -> list[re.Match[str]]:
    """Text -> markers in it, those that are also ordinary words only at its edges."""
    start, end = len(text) - len(text.lstrip()), len(text.rstrip())
    return [hit for hit in _markers(text) if hit.re is ANYWHERE or hit.start() == start or hit.end() == end]
