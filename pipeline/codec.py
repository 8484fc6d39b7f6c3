"""Record <-> row of a parquet table, by the record's own annotations."""

import dataclasses
import functools
import json
import types
import typing
from typing import Any, TypeVar

import pyarrow as pa

R = TypeVar("R")

NATIVE = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    list[str]: pa.list_(pa.string()),
    list[int]: pa.list_(pa.int64()),
    list[float]: pa.list_(pa.float64()),
}
"""Annotation -> column type; every other annotation is stored as JSON text."""


@functools.cache
def _hints(record_type: type) -> dict[str, Any]:
    return typing.get_type_hints(record_type)


def column_types(record_type: type) -> dict[str, pa.DataType]:
    """Record class -> column name -> arrow type."""
    hints = _hints(record_type)
    columns = {}
    for field in dataclasses.fields(record_type):
        hint = hints[field.name]
        if typing.get_origin(hint) is typing.Literal:
            hint = str
        columns[field.name] = NATIVE.get(hint, pa.string())
    return columns


def schema_of(record_type: type) -> pa.Schema:
    """Record class -> arrow schema of its table."""
    return pa.schema(list(column_types(record_type).items()))


@functools.cache
def is_json_column(record_type: type, name: str) -> bool:
    """Whether a field is stored as JSON text rather than natively."""
    hint = _hints(record_type)[name]
    return hint not in NATIVE and typing.get_origin(hint) is not typing.Literal


def row_of(record: Any) -> dict[str, Any]:
    """Record -> row; nested records, dicts and lists of records become JSON text."""
    plain = dataclasses.asdict(record)
    for name in plain:
        if is_json_column(type(record), name):  # type: ignore[arg-type]
            plain[name] = json.dumps(plain[name], ensure_ascii=False)
    return plain


def record_from_row(record_type: type[R], row: dict[str, Any]) -> R:
    """Row -> record; the reverse of `row_of`."""
    values = {}
    for field in dataclasses.fields(record_type):  # type: ignore[arg-type]
        value = row[field.name]
        if is_json_column(record_type, field.name):  # type: ignore[arg-type]
            value = json.loads(value)
        values[field.name] = value
    return record_from_plain(record_type, values)


def record_from_plain(record_type: type[R], plain: dict[str, Any]) -> R:
    """Plain dict (from JSON) -> record, nested records rebuilt."""
    hints = _hints(record_type)  # type: ignore[arg-type]
    names = {field.name for field in dataclasses.fields(record_type)}  # type: ignore[arg-type]
    return record_type(**{name: _rebuild(hints[name], value) for name, value in plain.items() if name in names})


def _rebuild(hint: Any, value: Any) -> Any:
    if value is None or hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        return record_from_plain(hint, value)  # type: ignore[arg-type]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is list:
        if arguments[0] in (str, int, float):
            return list(value)
        return [_rebuild(arguments[0], item) for item in value]
    if origin is dict:
        return {key: _rebuild(arguments[1], item) for key, item in value.items()}
    if origin in (types.UnionType, typing.Union):
        return _rebuild(next(a for a in arguments if a is not type(None)), value)
    return value
