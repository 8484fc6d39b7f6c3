"""Finding of a filter -> Verdict."""

from pipeline.types import Message, Trajectory, Verdict, with_id

MAX_EVIDENCE = 200
"""Characters of evidence kept."""


def verdict(
    trajectory: Trajectory,
    filter_name: str,
    version: int,
    action: str,
    reason: str,
    *,
    message: int = -1,
    span: tuple[int, int] | None = None,
    evidence: str = "",
) -> Verdict:
    """One finding -> its row, the evidence cut to what the record holds."""
    return with_id(
        Verdict(
            trajectory_id=trajectory.id,
            filter=filter_name,
            filter_version=version,
            action=action,  # type: ignore[arg-type]
            reason=reason,
            message=message,
            span=list(span or ()),
            evidence=evidence[:MAX_EVIDENCE],
        )
    )


def replies(trajectory: Trajectory) -> list[tuple[int, Message]]:
    """Trajectory -> (index, message) of what the teacher wrote; examples inside the first prompt are left out."""
    first = min((call.num_messages for call in trajectory.calls), default=0)
    return [
        (index, message)
        for index, message in enumerate(trajectory.messages)
        if message.role == "assistant" and index >= first
    ]
