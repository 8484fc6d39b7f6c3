"""SQL over the lake, and over one mix -> rows, as a text table, CSV or JSON."""

import csv
import io
import json
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from mixes.manifest import MixManifest, load
from pipeline import store
from pipeline.errors import UserError
from pipeline.store import Connection, Lake

Output = Literal["table", "csv", "json"]
MAX_CELL = 60
"""Characters of a value that a text table shows."""


class Answer(NamedTuple):
    """Result of a query."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


def answer(lake: Lake, sql: str, *, lock: str = "", output: Output = "table") -> str:
    """Lake, query and perhaps the id of a lock -> text.

    Raises: UserError when the query or the lock is wrong.
    """
    return FORMATS[output](query(lake, sql, load(lake, lock) if lock else None))


def query(lake: Lake, sql: str, manifest: MixManifest | None = None) -> Answer:
    """Lake and query -> rows. With a manifest there are also the views mix, targets and excluded.

    Raises: UserError with the engine's message and the tables there are.
    """
    connection = connect(lake, manifest)
    try:
        result = connection.execute(sql)
        columns = [column[0] for column in result.description or []]
        return Answer(columns, result.fetchall() if columns else [])
    except store.duckdb.Error as error:
        names = [row[0] for row in connection.execute("SHOW TABLES").fetchall()]
        message = " ".join(str(error).split())
        raise UserError(f"the query failed ({message}): the tables are {', '.join(names)}") from None
    finally:
        connection.close()


def connect(lake: Lake, manifest: MixManifest | None = None) -> Connection:
    """Lake and perhaps a manifest -> read-only connection with one view per table.

    mix: one row per use of a sample (position, bin, sample_id and the sample's columns); targets: shares asked and
    reached; excluded: reasons with counts.
    """
    connection = lake.connect()
    if manifest is None:
        return connection
    bins = {place: number for number, members in enumerate(manifest.packing.bins) for place in members}
    places = range(len(manifest.sample_ids))
    selected = pa.table(
        {
            "position": pa.array(places, pa.int64()),
            "bin": pa.array([bins[place] for place in places], pa.int64()),
            "sample_id": pa.array(manifest.sample_ids, pa.string()),
        }
    )
    _add_table(connection, "selected", selected)
    connection.execute(
        "CREATE VIEW mix AS SELECT selected.*, samples.* EXCLUDE (id) FROM selected "
        "JOIN samples ON samples.id = selected.sample_id"
    )
    _add_table(connection, "targets", pa.Table.from_pylist([asdict(one) for one in manifest.constraints]))
    excluded = [
        {
            "reason": reason,
            "num_samples": one.num_samples,
            "num_tokens": one.num_tokens,
            "num_trainable": one.num_trainable,
            "sample_ids": one.sample_ids,
        }
        for reason, one in manifest.excluded.items()
    ]
    _add_table(connection, "excluded", pa.Table.from_pylist(excluded, EXCLUDED))
    return connection


EXCLUDED = pa.schema(
    [
        ("reason", pa.string()),
        ("num_samples", pa.int64()),
        ("num_tokens", pa.int64()),
        ("num_trainable", pa.int64()),
        ("sample_ids", pa.list_(pa.string())),
    ]
)


def _add_table(connection: Connection, name: str, table: pa.Table) -> None:
    connection.register(f"{name}_rows", table)
    connection.execute(f"CREATE TABLE {name} AS SELECT * FROM {name}_rows")
    connection.unregister(f"{name}_rows")


def _as_table(found: Answer) -> str:
    cells = [[_cell(value) for value in row] for row in found.rows]
    widths = [max(map(len, column)) for column in zip(found.columns, *cells, strict=True)]
    lines = [found.columns, ["-" * width for width in widths], *cells]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _cell(value: Any) -> str:
    text = " ".join(f"{value:.6g}".split()) if isinstance(value, float) else " ".join(str(value).split())
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 3] + "..."


def _as_csv(found: Answer) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([found.columns, *found.rows])
    return buffer.getvalue().removesuffix("\n")


def _as_json(found: Answer) -> str:
    return json.dumps(
        [dict(zip(found.columns, row, strict=True)) for row in found.rows], ensure_ascii=False, default=str
    )


FORMATS = {"table": _as_table, "csv": _as_csv, "json": _as_json}
