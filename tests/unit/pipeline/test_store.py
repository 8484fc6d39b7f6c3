"""The lake loses nothing, repeats only what was in flight, and shows only whole shards."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import InfrastructureError, UserError
from pipeline.store import Item, Lake, Outcome, run_shard, run_stage
from pipeline.types import Verdict, with_id


def verdict(name: str) -> Verdict:
    return with_id(
        Verdict(
            trajectory_id=name,
            filter="length",
            filter_version=1,
            action="keep",
            reason="",
            message=-1,
            span=[1, 2],
            evidence="e",
        )
    )


def items(names: str, input_hash: str = "v1") -> list[Item]:
    return [Item(name, input_hash, name) for name in names]


def keep(name: str) -> Outcome:
    return Outcome("ok", records=(verdict(name),))


def stored(lake: Lake) -> list[str]:
    return sorted(record.trajectory_id for record in lake.records(Verdict))


def test_finished_items_are_not_run_again(lake: Lake) -> None:
    run_stage(lake, "filters", items("abc"), keep)
    ran: list[str] = []
    report = run_stage(lake, "filters", items("abc"), lambda name: ran.append(name) or keep(name))  # type: ignore[func-returns-value]
    assert ran == []
    assert (report.num_in, report.num_ok, report.num_reused) == (3, 3, 3)
    assert stored(lake) == ["a", "b", "c"]


def test_only_changed_and_added_items_run_and_removed_ones_leave(lake: Lake) -> None:
    run_stage(lake, "filters", items("abc"), keep)
    ran: list[str] = []

    def work(name: str) -> Outcome:
        ran.append(name)
        return keep(name)

    run_stage(lake, "filters", [*items("a"), *items("b", "v2"), *items("d")], work)
    assert ran == ["b", "d"]
    assert stored(lake) == ["a", "b", "d"]


def test_rejected_items_keep_their_reason_and_are_not_repeated(lake: Lake) -> None:
    run_stage(lake, "filters", items("ab"), lambda name: Outcome("rejected", "too_short"))
    report = run_stage(lake, "filters", items("ab"), keep)
    assert report.reasons == {"too_short": 2}
    assert lake.connect().sql("SELECT item, reason FROM ledger ORDER BY item").fetchall() == [
        ("a", "too_short"),
        ("b", "too_short"),
    ]


def test_infrastructure_faults_are_retried_then_recorded_and_run_again(lake: Lake) -> None:
    attempts = []

    def broken(name: str) -> Outcome:
        attempts.append(name)
        raise InfrastructureError("docker went away")

    report = run_shard(lake, "filters", "00000", items("a"), broken)
    assert len(attempts) == 3
    assert report.reasons == {"infrastructure: docker went away": 1}
    assert not (lake.shard_folder("filters", "00000") / "done.json").exists()
    assert run_stage(lake, "filters", items("a"), keep).num_ok == 1
    assert lake.ledger()[0][2].attempt == 2


def test_one_items_defect_does_not_end_the_others(lake: Lake) -> None:
    def work(name: str) -> Outcome:
        if name == "a":
            raise ValueError("bad input")
        return keep(name)

    report = run_shard(lake, "filters", "00000", items("ab"), work, workers=2)
    assert report.num_ok == 1
    assert report.reasons == {"defect: ValueError: bad input": 1}


def test_a_user_error_ends_the_run_and_finished_items_stay(lake: Lake) -> None:
    def work(name: str) -> Outcome:
        if name == "b":
            raise UserError("mend it")
        return keep(name)

    with pytest.raises(UserError, match="mend it"):
        run_stage(lake, "filters", items("ab"), work)
    assert run_stage(lake, "filters", items("ab"), keep).num_reused == 1


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(min_value=1, max_value=400))
def test_a_torn_journal_loses_only_the_last_item(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    lake = Lake(tmp_path_factory.mktemp("lake"))
    names = "abcde"

    def stop_at_e(name: str) -> Outcome:
        if name == "e":
            raise UserError("stop")
        return keep(name)

    with pytest.raises(UserError):
        run_stage(lake, "filters", items(names), stop_at_e)
    journal = lake.shard_folder("filters", "00000") / "journal.jsonl"
    data = journal.read_bytes()
    journal.write_bytes(data[: max(0, len(data) - cut)])
    whole = journal.read_bytes().count(b"\n")
    report = run_stage(lake, "filters", items(names), keep)
    assert report.num_reused == whole
    assert stored(lake) == list(names)


def test_a_crash_between_marker_and_slim_journal_doubles_nothing(lake: Lake) -> None:
    with_records = []

    def work(name: str) -> Outcome:
        return keep(name)

    folder = lake.shard_folder("filters", "00000")
    run_shard(lake, "filters", "00000", items("ab"), lambda name: keep(name) if name == "a" else _refuse())
    with_records = (folder / "journal.jsonl").read_bytes()
    run_stage(lake, "filters", items("ab"), work)
    slim = (folder / "journal.jsonl").read_bytes()
    (folder / "journal.jsonl").write_bytes(with_records + slim.splitlines(keepends=True)[1])
    run_stage(lake, "filters", items("abc"), work)
    assert stored(lake) == ["a", "b", "c"]


def _refuse() -> Outcome:
    raise ValueError("not yet")


def test_readers_see_nothing_of_an_unfinished_stage(lake: Lake) -> None:
    run_shard(lake, "filters", "00000", items("ab"), keep)
    assert stored(lake) == []
    assert lake.connect().sql("SELECT count(*) FROM verdicts").fetchall() == [(0,)]


def test_sql_can_read_the_lake_and_nothing_else(lake: Lake, tmp_path: Path) -> None:
    run_stage(lake, "filters", items("ab"), keep)
    secret = tmp_path / "secret.txt"
    secret.write_text("x")
    connection = lake.connect()
    assert connection.sql("SELECT count(*) FROM verdicts WHERE span = [1, 2]").fetchall() == [(2,)]
    with pytest.raises(duckdb.PermissionException):
        connection.sql(f"SELECT * FROM read_text('{secret}')").fetchall()
    with pytest.raises(duckdb.Error):
        connection.sql("SET enable_external_access = true")


def test_a_damaged_blob_is_refused_with_the_remedy(lake: Lake) -> None:
    blob = lake.put_blob(b"content" * 100)
    assert lake.get_blob(blob) == b"content" * 100
    path = next(lake.root.glob("blobs/*/*"))
    path.write_bytes(b"damage")
    with pytest.raises(UserError, match="damaged: remove that file"):
        lake.get_blob(blob)


DRIVER = """
import sys, time
from pathlib import Path
from pipeline.store import Item, Lake, Outcome, run_stage
def work(name):
    time.sleep(0.02)
    with open(sys.argv[2], "a") as file:
        file.write(name + "\\n")
    return Outcome("ok")
items = [Item(f"{n:03}", "v", f"{n:03}") for n in range(60)]
run_stage(Lake(Path(sys.argv[1])), "work", items, work, shard_size=25, workers=2)
"""


def test_kill_9_repeats_only_items_in_flight(tmp_path: Path) -> None:
    log, root = tmp_path / "ran.txt", tmp_path / "lake"
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", DRIVER, str(root), str(log)])
        time.sleep(1.2)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run([sys.executable, "-c", DRIVER, str(root), str(log)], check=True)
    ran = log.read_text().split()
    assert set(ran) == {f"{n:03}" for n in range(60)}
    repeated = len(ran) - len(set(ran))
    assert repeated <= 3 * 2, "at most the two items in flight at each kill run twice"
    rows = [json.loads(line) for line in root.glob("stages/work/*/journal.jsonl").__next__().read_text().splitlines()]
    assert {row["status"] for row in rows} == {"ok"}
