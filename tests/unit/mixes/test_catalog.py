"""SQL over a lake and a lock answers, or says what is wrong."""

import json

import pytest

from mixes.catalog import answer, query
from mixes.report import composition
from mixes.solve import solve_and_lock
from pipeline.errors import UserError
from pipeline.store import Lake
from tests.unit.builders import sample
from tests.unit.mixes.lakes import add_records, intent, numbered


@pytest.fixture
def filled(lake: Lake) -> Lake:
    """Ten agentic samples, thirty of reasoning, one too long."""
    long = sample(trajectory_id="long", num_tokens=2000, num_trainable=10)
    add_records(lake, "render", [*numbered(10), *numbered(30, domain="reasoning"), long])
    return lake


def test_the_mix_view_holds_exactly_what_was_selected(filled: Lake) -> None:
    manifest = solve_and_lock(filled, intent())
    found = query(filled, "SELECT domain, count(*), sum(num_trainable) FROM mix GROUP BY 1 ORDER BY 1", manifest)
    assert found.rows == [("agentic_code", 10, 500), ("reasoning", 10, 500)]
    places = query(filled, "SELECT sample_id, bin FROM mix ORDER BY position", manifest).rows
    assert [name for name, _ in places] == manifest.sample_ids
    assert all(place in manifest.packing.bins[bin_] for place, (_, bin_) in enumerate(places))


def test_repeats_are_rows_of_the_mix_view(filled: Lake) -> None:
    manifest = solve_and_lock(filled, intent(repeat_cap=2))
    found = query(filled, "SELECT count(*), count(DISTINCT sample_id) FROM mix WHERE domain = 'agentic_code'", manifest)
    assert found.rows == [(20, 10)]


def test_targets_and_exclusions_are_tables(filled: Lake) -> None:
    manifest = solve_and_lock(filled, intent())
    targets = query(filled, "SELECT name, share, trainable_share FROM targets ORDER BY name", manifest)
    assert targets.rows == [("agentic", 0.5, 0.5), ("reasoning", 0.5, 0.5)]
    excluded = query(filled, "SELECT reason, num_samples FROM excluded ORDER BY reason", manifest)
    assert excluded.rows == [("over_context", 1), ("surplus", 20)]


def test_a_query_without_a_lock_sees_the_lake(filled: Lake) -> None:
    assert query(filled, "SELECT count(*) FROM samples").rows == [(41,)]


@pytest.mark.parametrize("sql", ["SELEC 1", "SELECT * FROM mixture", "SELECT nothing FROM samples"])
def test_a_wrong_query_is_one_sentence_with_the_tables(filled: Lake, sql: str) -> None:
    with pytest.raises(UserError, match=r"^the query failed \(.*\): the tables are .*samples") as failure:
        query(filled, sql)
    assert "\n" not in str(failure.value)


def test_a_query_reads_no_file_outside_the_lake(filled: Lake) -> None:
    with pytest.raises(UserError, match="the query failed"):
        query(filled, "SELECT * FROM read_csv('/etc/passwd')")


def test_answers_come_as_table_csv_and_json(filled: Lake) -> None:
    manifest = solve_and_lock(filled, intent())
    sql = "SELECT domain, count(*) AS num, 0.5::DOUBLE AS half FROM mix GROUP BY 1 ORDER BY 1"
    ask = {name: answer(filled, sql, lock=manifest.id[:8], output=name) for name in ("table", "csv", "json")}  # type: ignore[arg-type]
    assert ask["table"].splitlines() == [
        "domain        num  half",
        "------------  ---  ----",
        "agentic_code  10   0.5",
        "reasoning     10   0.5",
    ]
    assert ask["csv"] == "domain,num,half\nagentic_code,10,0.5\nreasoning,10,0.5"
    assert json.loads(ask["json"])[1] == {"domain": "reasoning", "num": 10, "half": 0.5}


def test_a_statement_without_result_answers_nothing(filled: Lake) -> None:
    assert answer(filled, "SELECT domain FROM samples WHERE false", output="table").splitlines()[0] == "domain"


def test_the_report_puts_asked_beside_reached(filled: Lake) -> None:
    rows = composition(solve_and_lock(filled, intent()))
    assert [row.slice for row in rows] == ["agentic", "reasoning", "the whole"]
    assert rows[0].asked == "= 50.0% of the whole (trainable tokens)"
    assert (rows[0].trainable_share, rows[0].num_samples, rows[0].is_met) == (0.5, 10, True)
    assert (rows[2].num_samples, rows[2].num_tokens) == (20, 2000)
