"""Records survive the table unchanged."""

from dataclasses import asdict

from pipeline.codec import record_from_row, row_of, schema_of
from pipeline.types import RECORDS, Message, Source, ToolCall, Trajectory, canonical_json, content_id, with_id
from tests.unit.builders import trajectory


def test_a_trajectory_with_tool_calls_survives_the_table() -> None:
    record = trajectory(
        messages=[
            Message(role="user", content="fix it \u2603"),
            Message(
                role="assistant", content="", tool_calls=[ToolCall(id="1", name="bash", arguments='{"command": "ls"')]
            ),
        ]
    )
    assert record_from_row(Trajectory, row_of(record)) == record


def test_every_table_has_a_schema_and_every_record_an_id_and_schema_version() -> None:
    for record_type in RECORDS.values():
        names = schema_of(record_type).names
        assert names[0] == "id"
        assert names[-1] == "schema_version"


def test_ids_depend_on_content_and_not_on_key_order() -> None:
    assert canonical_json({"b": 1, "a": [1.5, None]}) == b'{"a":[1.5,null],"b":1}'
    assert content_id({"b": 1, "a": 2}) == content_id({"a": 2, "b": 1})
    record = trajectory(seed=1)
    assert record.id == content_id({name: value for name, value in asdict(record).items() if name != "id"})
    assert record.id != trajectory(seed=2).id


def test_a_source_without_id_field_hashes_as_its_fields() -> None:
    source = Source(kind="sdist", name="a", version="1", sha256="0", licence="MIT", url="")
    assert content_id(source) == content_id(asdict(source))


def test_with_id_refuses_a_second_id() -> None:
    record = trajectory()
    try:
        with_id(record)
    except AssertionError as error:
        assert "once" in str(error)
    else:
        raise AssertionError("a record got two ids")
