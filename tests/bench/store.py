"""Area store: the ledger against a journal in SQLite that is as safe (one synced transaction an item)."""

import json
import shutil
import sqlite3
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from pipeline.store import Item, Lake, Outcome, run_stage
from pipeline.types import Sample, with_id
from tests.bench.figure import Figure, compare, timed

NUM_ITEMS = 4_000
NUM_TOKENS = 500
"""Per record, so that a line of the journal has about 3 kB."""


def measure(folder: Path) -> list[Figure]:
    """Working folder -> figures."""
    root = folder / "store_bench"
    shutil.rmtree(root, ignore_errors=True)
    lake, items = Lake(root / "lake"), [Item(f"item-{number}", "h", record(number)) for number in range(NUM_ITEMS)]
    database = root / "journal.db"
    write_seconds, report = timed(lambda: run_stage(lake, "bench", items, keep))
    assert report.num_ok == NUM_ITEMS
    peer_write, _ = timed(lambda: sqlite_write(database, items))
    resume_seconds, again = timed(lambda: run_stage(lake, "bench", items, keep), repeats=3)
    assert again.num_reused == NUM_ITEMS
    peer_resume, _ = timed(lambda: sqlite_resume(database, items), repeats=3)
    read_seconds, read = timed(lambda: sum(1 for _ in lake.records(Sample)), repeats=3)
    peer_read, peer_read_count = timed(lambda: sum(1 for _ in sqlite_records(database)), repeats=3)
    assert read == peer_read_count == NUM_ITEMS
    lake_bytes = sum(path.stat().st_size for path in lake.root.rglob("*") if path.is_file())
    sqlite_bytes = sum(path.stat().st_size for path in root.glob("journal.db*"))
    shutil.rmtree(root)
    peer = f"sqlite {sqlite3.sqlite_version} WAL, synchronous=FULL"
    return [
        compare(
            "store_items_per_second",
            "items/s",
            NUM_ITEMS / write_seconds,
            peer,
            NUM_ITEMS / peer_write,
            more_is_better=True,
        ),
        compare("store_resume_seconds", "s", resume_seconds, peer, peer_resume, more_is_better=False),
        compare(
            "store_records_per_second",
            "records/s",
            NUM_ITEMS / read_seconds,
            peer,
            NUM_ITEMS / peer_read,
            more_is_better=True,
        ),
        compare(
            "store_bytes_per_item",
            "bytes",
            lake_bytes / NUM_ITEMS,
            peer,
            sqlite_bytes / NUM_ITEMS,
            more_is_better=False,
        ),
    ]


def record(number: int) -> Sample:
    """One record of the usual size."""
    return with_id(
        Sample(
            trajectory_id=f"trajectory-{number}",
            task_id="task",
            repo="repo",
            domain="agentic_code",
            harness="mini-swe-agent",
            modality="native_tools",
            teacher="oracle",
            is_resolved=True,
            tokenizer_id="bench",
            token_ids=[(number * 31 + place * 7919) % 8192 for place in range(NUM_TOKENS)],
            train_spans=[10, NUM_TOKENS],
            num_tokens=NUM_TOKENS,
            num_assistant=NUM_TOKENS - 10,
            num_trainable=NUM_TOKENS - 10,
            num_reasoning=0,
            num_tool_call=0,
        )
    )


def keep(sample: Sample) -> Outcome:
    """Work that costs nothing: what is left is the store's own time."""
    return Outcome("ok", "", (sample,))


def sqlite_write(path: Path, items: list[Item]) -> None:
    """The peer's journal: every item is on disk before the next begins."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE journal (item TEXT PRIMARY KEY, input_hash TEXT, status TEXT, records TEXT)")
    for item in items:
        row = (item.id, item.input_hash, "ok", json.dumps(asdict(item.payload)))
        connection.execute("INSERT INTO journal VALUES (?, ?, ?, ?)", row)
    connection.close()


def sqlite_resume(path: Path, items: list[Item]) -> list[Item]:
    """The peer's question on a second run: which items are left to do?"""
    connection = sqlite3.connect(path)
    finished = dict(connection.execute("SELECT item, input_hash FROM journal WHERE status = 'ok'"))
    connection.close()
    return [item for item in items if finished.get(item.id) != item.input_hash]


def sqlite_records(path: Path) -> Iterable[Sample]:
    """All records of the peer, as records."""
    connection = sqlite3.connect(path)
    for (text,) in connection.execute("SELECT records FROM journal"):
        yield Sample(**json.loads(text))
    connection.close()
