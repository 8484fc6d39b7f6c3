"""Samples and verdicts -> one trajectory that trains, token by token, and one that was dropped."""

from dataclasses import dataclass
from typing import NamedTuple

from flows.report.evidence import Evidence
from flows.report.mask import Turn, turns
from pipeline.types import Sample, Task, Trajectory, Verdict

GOOD_LENGTH_TOKENS = 2500
"""The example's length is as near to this as the samples allow: long enough for tool results, short enough to read."""
GOOD_NUM_STEPS = 4
EXCERPT = 600
"""Characters shown of one message of the dropped trajectory."""
OPENING = 2
"""Messages shown from its start."""
MAX_MESSAGES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedExample:
    """A sample of the mix with its parents."""

    sample: Sample
    turns: list[Turn]
    trajectory: Trajectory | None
    task: Task | None
    has_own_tokenizer: bool
    """Whether the report's tokenizer is the one that the sample was rendered with."""


class Excerpt(NamedTuple):
    """One message in short."""

    place: int
    """Among the trajectory's messages, from 0."""
    role: str
    text: str
    num_left_out: int
    """Characters not shown."""
    verdicts: list[Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedExample:
    """A trajectory that no sample was made from."""

    trajectory: Trajectory
    task: Task | None
    whole: list[Verdict]
    """Verdicts on the trajectory as a whole."""
    excerpts: list[Excerpt]
    num_messages: int


def trained_example(evidence: Evidence) -> TrainedExample | None:
    """Selected samples -> a resolved agentic one of moderate length, or the next best; None if there is none."""
    chosen = evidence.rows(TRAINED, length=GOOD_LENGTH_TOKENS)
    if not chosen:
        return None
    sample = evidence.record(Sample, chosen[0]["id"])
    assert sample is not None, "the id was read from the same table"
    return TrainedExample(
        sample=sample,
        turns=turns(sample, evidence.tokenizer),
        trajectory=evidence.record(Trajectory, sample.trajectory_id),
        task=evidence.record(Task, sample.task_id),
        has_own_tokenizer=sample.tokenizer_id == evidence.tokenizer.id,
    )


def dropped_example(evidence: Evidence) -> DroppedExample | None:
    """Verdicts -> the trajectory that most filters dropped, a model's before the oracle's; None if none was dropped."""
    chosen = evidence.rows(DROPPED, steps=GOOD_NUM_STEPS)
    if not chosen:
        return None
    trajectory = evidence.record(Trajectory, chosen[0]["id"])
    assert trajectory is not None, "the id was read from the same table"
    drops = evidence.records(Verdict, DROPS, trajectory=trajectory.id)
    return DroppedExample(
        trajectory=trajectory,
        task=evidence.record(Task, trajectory.task_id),
        whole=[verdict for verdict in drops if not 0 <= verdict.message < len(trajectory.messages)],
        excerpts=_excerpts(trajectory, drops),
        num_messages=len(trajectory.messages),
    )


def _excerpts(trajectory: Trajectory, drops: list[Verdict]) -> list[Excerpt]:
    """The first messages, those that a verdict points at, and the last."""
    concerned = sorted({verdict.message for verdict in drops if 0 <= verdict.message < len(trajectory.messages)})
    last = len(trajectory.messages) - 1
    wanted = [*range(min(OPENING, last + 1)), *concerned, last]
    shown = sorted(set(wanted[:MAX_MESSAGES]))
    excerpts = []
    for index in shown:
        message = trajectory.messages[index]
        calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
        text = "\n".join(part for part in (message.reasoning, message.content, *calls) if part)
        excerpts.append(
            Excerpt(
                place=index,
                role=message.role,
                text=text[:EXCERPT],
                num_left_out=max(0, len(text) - EXCERPT),
                verdicts=[verdict for verdict in drops if verdict.message == index],
            )
        )
    return excerpts


TRAINED = """
    SELECT id FROM samples
    ORDER BY (id IN (SELECT sample_id FROM mix)) DESC, is_resolved DESC, (domain = 'agentic_code') DESC,
             (num_tool_call > 0) DESC, abs(num_tokens - $length), id
    LIMIT 1
"""
DROPPED = """
    SELECT t.id FROM trajectories t JOIN verdicts v ON v.trajectory_id = t.id
    WHERE v.action = 'drop'
    GROUP BY t.id, t.teacher, t.num_steps
    ORDER BY ((t.teacher->>'name') = 'oracle'), count(DISTINCT v.filter) DESC, abs(t.num_steps - $steps), t.id
    LIMIT 1
"""
DROPS = "trajectory_id = $trajectory AND action = 'drop' ORDER BY message, filter, id"
