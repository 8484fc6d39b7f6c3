"""Any id -> the chain of records from it back to the source it came from."""

from typing import NamedTuple

from pipeline.errors import UserError
from pipeline.store import Connection, Lake

MIN_PREFIX = 6
"""Hex digits that an id needs at least."""


class Step(NamedTuple):
    """One record of the chain."""

    table: str
    id: str
    facts: dict[str, str]
    """What a person wants to know of it."""


FACTS = {
    "parity": "max_difference, tolerance, is_equal",
    "checkpoints": "path, num_parameters, num_steps, num_trainable_tokens",
    "mixes": "name, stage, num_samples, num_tokens, num_trainable",
    "samples": "domain, harness, modality, teacher, num_tokens, num_trainable",
    "verdicts": "filter, action, reason, evidence",
    "trajectories": "harness->>'name' AS harness, teacher->>'name' AS teacher, exit_status, "
    "result->>'reward' AS reward, result->>'reason' AS verifier, num_steps, round(wall_sec, 1) AS seconds",
    "tasks": "source->>'name' AS source, source->>'version' AS version, source->>'sha256' AS sha256, "
    "kind, domain, strategy, modifier, entity, split, status, len(fail_to_pass) AS fail_to_pass, "
    "len(pass_to_pass) AS pass_to_pass, statement->>'origin' AS statement_by",
    "images": "ref, digest, recipe_hash, size_bytes",
    "contamination": "is_contaminated, rule, reason",
    "benchmarks": "sources",
    "repos": "name, source->>'kind' AS source, source->>'name' AS source_name, source->>'version' AS version, "
    "source->>'sha256' AS sha256, source->>'licence' AS licence, source->>'url' AS url, num_files",
}
"""Table -> columns shown. Tables are in the order in which children point to parents."""

PARENTS = {
    "parity": {"checkpoints": "checkpoint_id"},
    "checkpoints": {"mixes": "mix_id"},
    "samples": {"trajectories": "trajectory_id"},
    "verdicts": {"trajectories": "trajectory_id"},
    "trajectories": {"tasks": "task_id"},
    "tasks": {"images": "image_id", "contamination": "contamination_id", "repos": "repo_id"},
    "images": {"repos": "repo_id"},
    "contamination": {"repos": "repo_id", "benchmarks": "reference_id"},
}
"""Table -> parent table -> column that holds the parent's id."""


def lineage(lake: Lake, prefix: str) -> list[Step]:
    """Id or its first digits -> the record and all its ancestors, each once, child first.

    Raises: UserError when no record, or more than one, has such an id.
    """
    if len(prefix) < MIN_PREFIX:
        raise UserError(f"id {prefix!r} is too short: give at least {MIN_PREFIX} digits")
    connection = lake.connect()
    found = [
        (table, row[0])
        for table in FACTS
        for row in connection.execute(
            f"SELECT DISTINCT id FROM {table} WHERE starts_with(id, $prefix)", {"prefix": prefix}
        ).fetchall()
    ]
    if not found:
        raise UserError(
            f"no record has an id that starts with {prefix!r}: list ids with `treadle mix sql 'SELECT id FROM samples'`"
        )
    if len(found) > 1:
        tables = ", ".join(sorted({table for table, _ in found}))
        raise UserError(f"id {prefix!r} fits {len(found)} records ({tables}): give more digits")
    return _climb(connection, *found[0], {})


def _climb(connection: Connection, table: str, record: str, seen: dict[str, Step]) -> list[Step]:
    if record in seen:
        return []
    parents = PARENTS.get(table, {})
    columns = ", ".join([FACTS[table], *(f"{column} AS parent_{name}" for name, column in parents.items())])
    cursor = connection.execute(f"SELECT {columns} FROM {table} WHERE id = $id", {"id": record})
    names = [column[0] for column in cursor.description or []]
    row = cursor.fetchone()
    if row is None:
        return []
    values = dict(zip(names, row, strict=True))
    seen[record] = Step(table, record, {name: str(value) for name, value in values.items() if "parent_" not in name})
    steps = [seen[record]]
    for parent in parents:
        if values[f"parent_{parent}"]:
            steps += _climb(connection, parent, values[f"parent_{parent}"], seen)
    return steps
