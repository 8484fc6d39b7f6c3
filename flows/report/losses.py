"""Checkpoint of the mix -> its loss curve, in nats per trainable token."""

import math
from dataclasses import dataclass

from flows.report.charts import LineChart, line_chart
from flows.report.evidence import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """One training run."""

    checkpoint: str
    num_steps: int
    num_trainable_tokens: int
    """Seen, repeats counted."""
    first: float
    last: float
    lowest: float
    uniform: float
    """Loss of guessing every token of the vocabulary with equal chance."""
    vocab_size: int
    seconds: float
    chart: LineChart


def losses(evidence: Evidence) -> Losses | None:
    """Checkpoint trained on the reported mix -> its curve; None before training."""
    checkpoint = evidence.checkpoint()
    if checkpoint is None or not checkpoint.losses:
        return None
    uniform = math.log(evidence.tokenizer.vocab_size)
    return Losses(
        checkpoint=checkpoint.id,
        num_steps=checkpoint.num_steps,
        num_trainable_tokens=checkpoint.num_trainable_tokens,
        first=checkpoint.losses[0],
        last=checkpoint.losses[-1],
        lowest=min(checkpoint.losses),
        uniform=uniform,
        vocab_size=evidence.tokenizer.vocab_size,
        seconds=checkpoint.seconds,
        chart=line_chart(checkpoint.losses, reference=uniform),
    )
