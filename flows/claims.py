"""Lake -> what a run of the journey proves, each claim with the figure that shows it."""

from typing import NamedTuple

from pipeline.store import Connection, Lake
from pipeline.types import Checkpoint, Parity, Trajectory


class Claim(NamedTuple):
    """One sentence, whether it holds, and the figure."""

    text: str
    holds: bool
    figure: str


def check_claims(lake: Lake, *, min_swe_tasks: int, planted: set[str]) -> list[Claim]:
    """Lake of a finished journey, number of tasks wanted, names of planted sources -> claims, from records only."""
    connection = lake.connect()
    return [
        enough_tasks(connection, min_swe_tasks),
        planted_sources_are_caught(connection, planted),
        no_task_of_a_contaminated_repository(connection),
        oracle_solves(connection),
        calls_are_token_exact(lake),
        loss_falls(lake),
        server_agrees(lake),
    ]


def count(connection: Connection, query: str) -> int:
    """SQL that counts -> the number."""
    row = connection.execute(query).fetchone()
    assert row is not None, "a count has one row"
    return int(row[0])


def enough_tasks(connection: Connection, wanted: int) -> Claim:
    """At least the wanted number of valid repository tasks, each with tests on both sides."""
    swe = count(connection, "SELECT count(*) FROM tasks WHERE kind = 'swe' AND status = 'valid'")
    sided = count(
        connection,
        "SELECT count(*) FROM tasks WHERE kind = 'swe' AND len(fail_to_pass) > 0 AND len(pass_to_pass) > 0",
    )
    return Claim(
        f"at least {wanted} verified repository tasks, each with FAIL_TO_PASS and PASS_TO_PASS",
        sided == swe >= wanted,
        f"{swe} tasks",
    )


def planted_sources_are_caught(connection: Connection, planted: set[str]) -> Claim:
    """Every planted source is found contaminated, and nothing else is."""
    rows = connection.execute(
        "SELECT DISTINCT repos.name, contamination.reason FROM contamination "
        "JOIN repos ON repos.id = contamination.repo_id WHERE is_contaminated AND rule = 'content'"
    ).fetchall()
    caught = {name for name, _ in rows}
    return Claim(
        "decontamination catches the planted source by its content, and nothing else",
        caught == planted,
        "; ".join(reason for _, reason in rows) or "nothing caught",
    )


def no_task_of_a_contaminated_repository(connection: Connection) -> Claim:
    """Contaminated repositories yield no task."""
    leaked = count(
        connection,
        "SELECT count(*) FROM tasks JOIN contamination USING (repo_id) WHERE contamination.is_contaminated",
    )
    return Claim("no task comes from a contaminated repository", leaked == 0, f"{leaked} tasks")


def oracle_solves(connection: Connection) -> Claim:
    """The oracle, who knows the gold patch, solves its tasks through the harness's own tools."""
    solved, total = connection.execute(
        "SELECT count(*) FILTER (WHERE CAST(result->>'reward' AS DOUBLE) = 1), count(*) "
        "FROM trajectories WHERE teacher->>'name' = 'oracle'"
    ).fetchone() or (0, 0)
    return Claim("the oracle solves every task", 0 < solved == total, f"{solved} of {total}")


def calls_are_token_exact(lake: Lake) -> Claim:
    """Every answered call of the served model carries prompt ids, sampled ids and one log-prob per sampled id."""
    calls = [
        call
        for trajectory in lake.records(Trajectory)
        if trajectory.teacher.name == "vllm"
        for call in trajectory.calls
        if call.http_status == 200
    ]
    exact = [
        call
        for call in calls
        if call.prompt_token_ids and call.sampled_token_ids and len(call.sampled_token_ids) == len(call.logprobs)
    ]
    return Claim(
        "every call of the served model is recorded token by token",
        0 < len(exact) == len(calls),
        f"{len(exact)} of {len(calls)} calls, {sum(len(call.sampled_token_ids) for call in exact)} sampled tokens",
    )


def loss_falls(lake: Lake) -> Claim:
    """The last tenth of the steps has at most four fifths of the first tenth's loss."""
    checkpoint = max(lake.records(Checkpoint), key=lambda record: record.num_steps)
    part = max(1, len(checkpoint.losses) // 10)
    first = sum(checkpoint.losses[:part]) / part
    last = sum(checkpoint.losses[-part:]) / part
    return Claim("the loss falls", last < 0.8 * first, f"{first:.2f} -> {last:.2f} nats per trainable token")


def server_agrees(lake: Lake) -> Claim:
    """vLLM's log-probs equal the learner's on the fixed prompt."""
    parity = next(iter(lake.records(Parity)))
    return Claim(
        "vLLM serves the checkpoint with the learner's log-probs",
        parity.is_equal,
        f"largest difference {parity.max_difference:.1e} nats over {parity.num_tokens} tokens, "
        f"allowed {parity.tolerance:.0e}",
    )
