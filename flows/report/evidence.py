"""Lake, mix, tokenizer and stage reports -> answers to the sections' questions."""

from typing import Any, TypeVar

from mixes.catalog import connect
from mixes.manifest import MixManifest
from pipeline.codec import record_from_row
from pipeline.store import TABLES, Lake, StageReport
from pipeline.tokenizer import ChatTokenizer
from pipeline.types import Checkpoint

R = TypeVar("R")


class Evidence:
    """Everything that the report may draw on, opened once.

    Queries see the lake's tables and the view `mix`: one row per use of a sample.
    """

    def __init__(self, lake: Lake, mix: MixManifest, tokenizer: ChatTokenizer, stages: list[StageReport]) -> None:
        self.lake = lake
        self.mix = mix
        self.tokenizer = tokenizer
        self.stages = stages
        self._connection = connect(lake, mix)

    def close(self) -> None:
        """Ends the queries."""
        self._connection.close()

    def rows(self, sql: str, **parameters: Any) -> list[dict[str, Any]]:
        """Query -> rows by column name."""
        cursor = self._connection.execute(sql, parameters or None)
        names = [column[0] for column in cursor.description or []]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def records(self, record_type: type[R], clause: str, **parameters: Any) -> list[R]:
        """Record class and what follows WHERE -> the records it fits."""
        rows = self.rows(f"SELECT * FROM {TABLES[record_type]} WHERE {clause}", **parameters)
        return [record_from_row(record_type, row) for row in rows]

    def record(self, record_type: type[R], identity: str) -> R | None:
        """Id -> its record, or None if the lake has none."""
        found = self.records(record_type, "id = $identity LIMIT 1", identity=identity)
        return found[0] if found else None

    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint trained longest on the mix; None before training."""
        found = self.records(Checkpoint, "mix_id = $mix ORDER BY num_steps DESC, id LIMIT 1", mix=self.mix.id)
        return found[0] if found else None
