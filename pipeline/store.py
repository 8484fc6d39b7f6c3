"""Items -> ledger rows and parquet shards in the lake -> DuckDB views over exact file lists.

    lake/blobs/ab/<sha256>                     file trees and other bytes, content-addressed
    lake/stages/<stage>/<shard>/journal.jsonl  the ledger: one line per finished item, appended and synced
    lake/stages/<stage>/<shard>/<table>-*.parquet
    lake/stages/<stage>/<shard>/done.json      completion marker: exact files and hashes, written last
    lake/stages/<stage>/stage.json             the shards that count, written last
    lake/locks/<mix id>.json                   locked mixes

A `kill -9` at any moment loses at most the items in flight: a torn last line of a journal is cut off, files appear by
rename after fsync, and readers follow markers only.
"""

import fcntl
import hashlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.codec import record_from_plain, record_from_row, row_of, schema_of
from pipeline.errors import Failure, UserError, boundary
from pipeline.types import RECORDS

R = TypeVar("R")
Connection = duckdb.DuckDBPyConnection
TABLES = {record: table for table, record in RECORDS.items()}
ROW_GROUP = 64
"""Rows per parquet row group: random access to one trajectory reads little."""


class Item(NamedTuple):
    """One unit of work of a stage."""

    id: str
    input_hash: str
    """Hash of everything the result depends on; a changed hash means the item runs again."""
    payload: Any


class Outcome(NamedTuple):
    """What work on one item came to; `reason` says why it was rejected, or adds a word to an ok."""

    status: str
    """ok | rejected."""
    reason: str = ""
    records: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """One finished item."""

    item: str
    input_hash: str
    status: str
    """ok | rejected | failed (infrastructure or defect: runs again)."""
    attempt: int
    reason: str
    seconds: float
    records: dict[str, list[dict[str, Any]]] | None
    """Table -> plain records; None where they are in the shard's parquet files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReport:
    """Counts of one shard or stage."""

    stage: str
    num_in: int
    num_ok: int
    num_reused: int
    """Items whose result was already in the lake."""
    reasons: dict[str, int]
    """Why items were rejected or failed -> count."""
    num_failed: int
    seconds: float


Work = Callable[[Any], Outcome]
OnRow = Callable[[LedgerRow], None]


def write_atomic(path: Path, data: bytes) -> None:
    """Bytes -> file that appears whole or not at all, and stays after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Lake:
    """The folder that holds all data; opening it creates nothing but the folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.root.mkdir(parents=True, exist_ok=True)

    def put_blob(self, data: bytes) -> str:
        """Bytes -> their sha256, stored once."""
        blob = hashlib.sha256(data).hexdigest()
        path = self._blob_path(blob)
        if not path.exists():
            sink = pa.BufferOutputStream()
            with pa.CompressedOutputStream(sink, "zstd") as packed:
                packed.write(data)
            write_atomic(path, sink.getvalue().to_pybytes())
        return blob

    def get_blob(self, blob: str) -> bytes:
        """sha256 -> the bytes it was made from.

        Raises: UserError when the blob is missing or damaged.
        """
        path = self._blob_path(blob)
        if not path.exists():
            raise UserError(f"blob {blob[:12]} is missing from {self.root}: remove {self.root}/stages and run again")
        try:
            data = pa.CompressedInputStream(pa.OSFile(str(path)), "zstd").read()
        except OSError:
            data = b""
        if hashlib.sha256(data).hexdigest() != blob:
            raise UserError(f"blob {path} is damaged: remove that file and {self.root}/stages and run again")
        return data

    def _blob_path(self, blob: str) -> Path:
        return self.root / "blobs" / blob[:2] / blob

    def shard_folder(self, stage: str, shard: str) -> Path:
        return self.root / "stages" / stage / shard

    def stages(self) -> list[str]:
        """Names of the stages that completed at least once."""
        return sorted(path.parent.name for path in self.root.glob("stages/*/stage.json"))

    def shards(self, stage: str) -> list[str]:
        """Stage -> names of the shards that count; empty if the stage never completed."""
        path = self.root / "stages" / stage / "stage.json"
        return list(json.loads(path.read_bytes())["shards"]) if path.exists() else []

    def files(self, table: str) -> list[Path]:
        """Table -> exactly the parquet files that hold it, in a fixed order."""
        found = []
        for stage in self.stages():
            for shard in self.shards(stage):
                folder = self.shard_folder(stage, shard)
                marker = json.loads((folder / "done.json").read_bytes())
                found += [folder / name for name in marker["files"].get(table, {})]
        return found

    def records(self, record_type: type[R]) -> Iterator[R]:
        """Record class -> all its records, in file order."""
        for path in self.files(TABLES[record_type]):
            for row in pq.read_table(path).to_pylist():
                yield record_from_row(record_type, row)

    def ledger(self) -> list[tuple[str, str, LedgerRow]]:
        """All finished items as (stage, shard, row), records left out."""
        rows = []
        for stage in self.stages():
            for shard in self.shards(stage):
                for row in _read_journal(self.shard_folder(stage, shard) / "journal.jsonl").values():
                    rows.append((stage, shard, row))
        return rows

    def connect(self) -> Connection:
        """Lake -> DuckDB connection with one read-only view per table, over exact files; nothing else can be read."""
        connection = duckdb.connect()
        allowed: list[str] = []
        for table, record_type in RECORDS.items():
            files = [str(path) for path in self.files(table)]
            allowed += files
            if files:
                quoted = ", ".join("'" + name.replace("'", "''") + "'" for name in files)
                connection.execute(f"CREATE VIEW {table} AS SELECT * EXCLUDE (item) FROM read_parquet([{quoted}])")
            else:
                connection.register("empty", schema_of(record_type).empty_table())
                connection.execute(f"CREATE TABLE {table} AS SELECT * FROM empty")
                connection.unregister("empty")
        connection.register("ledger_rows", _ledger_table(self.ledger()))
        connection.execute("CREATE TABLE ledger AS SELECT * FROM ledger_rows")
        connection.unregister("ledger_rows")
        connection.execute("SET allowed_paths = $paths", {"paths": allowed})
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        return connection


def _ledger_table(rows: list[tuple[str, str, LedgerRow]]) -> pa.Table:
    schema = schema_of(LedgerRow).remove(schema_of(LedgerRow).get_field_index("records"))
    places = pa.schema([("stage", pa.string()), ("shard", pa.string())])
    plain = [{"stage": stage, "shard": shard, **asdict(row)} for stage, shard, row in rows]
    return pa.Table.from_pylist(plain, pa.unify_schemas([places, schema]))


def plan_shards(items: Iterable[Item], size: int) -> dict[str, list[Item]]:
    """Items -> shard name -> items, in order; item ids must be unique within a stage."""
    ordered = list(items)
    assert len({item.id for item in ordered}) == len(ordered), "item ids are unique within a stage"
    return {f"{start // size:05d}": ordered[start : start + size] for start in range(0, len(ordered), size)}


def run_shard(
    lake: Lake, stage: str, shard: str, items: list[Item], work: Work, *, workers: int = 1, on_row: OnRow | None = None
) -> StageReport:
    """Items -> ledger rows and, once none has failed, parquet files behind a completion marker.

    Items already finished with the same input hash are not run again. `work` runs in `workers` threads.
    """
    started = time.monotonic()
    folder = lake.shard_folder(stage, shard)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        finished = _finished_rows(folder)
        wanted = {item.id: item for item in items}
        rows = {
            name: row
            for name, row in finished.items()
            if name in wanted and row.input_hash == wanted[name].input_hash and row.status != "failed"
        }
        todo = [item for item in items if item.id not in rows]
        num_reused = len(items) - len(todo)
        if on_row:
            for row in rows.values():
                on_row(row)
        if todo:
            rows |= _run_items(folder / "journal.jsonl", todo, finished, work, workers, on_row)
        report = _report(stage, [rows[item.id] for item in items], num_reused, time.monotonic() - started)
        if not report.num_failed and (todo or not _is_complete(folder, items)):
            rows = _with_records(folder, rows)
            _complete(folder, [rows[item.id] for item in items])
    return report


def finish_stage(lake: Lake, stage: str, shards: Iterable[str]) -> None:
    """Complete shards -> the stage's current version; readers see it from here on."""
    names = list(shards)
    write_atomic(lake.root / "stages" / stage / "stage.json", json.dumps({"shards": names}).encode())


def run_stage(
    lake: Lake, stage: str, items: Iterable[Item], work: Work, *, shard_size: int = 200, workers: int = 1
) -> StageReport:
    """All shards of a stage, one after the other, without a scheduler."""
    plan = plan_shards(items, shard_size)
    reports = [run_shard(lake, stage, name, part, work, workers=workers) for name, part in plan.items()]
    report = merge_reports(stage, reports)
    if not report.num_failed:
        finish_stage(lake, stage, plan)
    return report


def merge_reports(stage: str, reports: Iterable[StageReport]) -> StageReport:
    """Reports of shards -> report of their stage."""
    reports = list(reports)
    reasons: Counter[str] = Counter()
    for report in reports:
        reasons.update(report.reasons)
    return StageReport(
        stage=stage,
        num_in=sum(report.num_in for report in reports),
        num_ok=sum(report.num_ok for report in reports),
        num_reused=sum(report.num_reused for report in reports),
        reasons=dict(reasons),
        num_failed=sum(report.num_failed for report in reports),
        seconds=sum(report.seconds for report in reports),
    )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time works on a shard; the lock goes with its holder."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run_items(
    journal: Path, todo: list[Item], finished: dict[str, LedgerRow], work: Work, workers: int, on_row: OnRow | None
) -> dict[str, LedgerRow]:
    rows: dict[str, LedgerRow] = {}
    guard = threading.Lock()
    with journal.open("ab") as file, ThreadPoolExecutor(workers) as pool:

        def run(item: Item) -> None:
            started = time.monotonic()
            result = boundary(lambda: work(item.payload))
            attempt = finished[item.id].attempt + 1 if item.id in finished else 1
            row = _ledger_row(item, result, attempt, time.monotonic() - started)
            line = json.dumps(asdict(row), ensure_ascii=False).encode() + b"\n"
            with guard:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
                rows[item.id] = row
                if on_row:
                    on_row(row)

        pending = [pool.submit(run, item) for item in todo]
        try:
            for future in pending:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return rows


def _ledger_row(item: Item, result: Outcome | Failure, attempt: int, seconds: float) -> LedgerRow:
    records: dict[str, list[dict[str, Any]]] = {}
    if isinstance(result, Outcome):
        for record in result.records:
            records.setdefault(TABLES[type(record)], []).append(asdict(record))
        status, reason = result.status, result.reason
    else:
        status, reason = "failed", f"{result.kind}: {result.reason}"
    return LedgerRow(
        item=item.id,
        input_hash=item.input_hash,
        status=status,
        attempt=attempt,
        reason=reason,
        seconds=round(seconds, 3),
        records=records,
    )


def _read_journal(path: Path) -> dict[str, LedgerRow]:
    """Journal -> item -> its last row. A torn last line is left out."""
    rows: dict[str, LedgerRow] = {}
    if path.exists():
        for line in path.read_bytes().split(b"\n")[:-1]:
            row = LedgerRow(**json.loads(line))
            rows[row.item] = row
    return rows


def _finished_rows(folder: Path) -> dict[str, LedgerRow]:
    """Shard folder -> item -> its row, without the records that are in parquet files.

    A torn last line is cut off. Rows whose parquet files are gone are left out: their items run again.
    """
    journal = folder / "journal.jsonl"
    if journal.exists():
        data = journal.read_bytes()
        if data and not data.endswith(b"\n"):
            write_atomic(journal, data[: data.rfind(b"\n") + 1])
    rows = _read_journal(journal)
    files = _marked_files(folder)
    is_whole = files is not None and all(path.exists() for _, path in files)
    stored = json.loads((folder / "done.json").read_bytes())["items"] if is_whole else {}
    return {name: row for name, row in rows.items() if row.records is not None or stored.get(name) == row.input_hash}


def _marked_files(folder: Path) -> list[tuple[str, Path]] | None:
    """Shard folder -> (table, file) pairs of its completion marker, or None without a marker."""
    marker = folder / "done.json"
    if not marker.exists():
        return None
    files = json.loads(marker.read_bytes())["files"]
    return [(table, folder / name) for table, names in files.items() for name in names]


def _with_records(folder: Path, rows: dict[str, LedgerRow]) -> dict[str, LedgerRow]:
    """Rows -> the same, those records filled in that are in the parquet files of the marker."""
    records: dict[str, dict[str, list[dict[str, Any]]]] = {
        name: {} for name, row in rows.items() if row.records is None
    }
    for table, path in _marked_files(folder) or [] if records else []:
        for plain in pq.read_table(path).to_pylist():
            item = plain.pop("item")
            if item in records:
                records[item].setdefault(table, []).append(asdict(record_from_row(RECORDS[table], plain)))
    return rows | {name: replace(rows[name], records=found) for name, found in records.items()}


def _is_complete(folder: Path, items: list[Item]) -> bool:
    files = _marked_files(folder)
    if files is None or not all(path.exists() for _, path in files):
        return False
    recorded = json.loads((folder / "done.json").read_bytes())["items"]
    return bool(recorded == {item.id: item.input_hash for item in items})


def _complete(folder: Path, rows: list[LedgerRow]) -> None:
    """Ledger rows -> parquet files, then the marker, then a journal without records."""
    files: dict[str, dict[str, str]] = {}
    tables = sorted({table for row in rows for table in row.records or {}})
    for table in tables:
        record_type = RECORDS[table]
        schema = schema_of(record_type).append(pa.field("item", pa.string()))
        plain = [
            {**row_of(record_from_plain(record_type, record)), "item": row.item}
            for row in rows
            for record in (row.records or {}).get(table, [])
        ]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(plain, schema), sink, compression="zstd", row_group_size=ROW_GROUP)
        data = sink.getvalue().to_pybytes()
        digest = hashlib.sha256(data).hexdigest()
        name = f"{table}-{digest[:16]}.parquet"
        write_atomic(folder / name, data)
        files[table] = {name: digest}
    marker = {"items": {row.item: row.input_hash for row in rows}, "files": files}
    write_atomic(folder / "done.json", json.dumps(marker).encode())
    slim = b"".join(json.dumps(asdict(row) | {"records": None}).encode() + b"\n" for row in rows)
    write_atomic(folder / "journal.jsonl", slim)
    current = {name for names in files.values() for name in names}
    for path in folder.glob("*.parquet"):
        if path.name not in current:
            path.unlink()


def _report(stage: str, rows: list[LedgerRow], num_reused: int, seconds: float) -> StageReport:
    reasons = Counter(row.reason for row in rows if row.status != "ok")
    return StageReport(
        stage=stage,
        num_in=len(rows),
        num_ok=sum(row.status == "ok" for row in rows),
        num_reused=num_reused,
        reasons=dict(reasons),
        num_failed=sum(row.status == "failed" for row in rows),
        seconds=seconds,
    )
