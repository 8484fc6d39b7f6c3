"""Any id leads back to the source it came from."""

import pytest

from flows.screen import lineage_lines
from flows.why import FACTS, PARENTS, lineage
from pipeline.codec import schema_of
from pipeline.errors import UserError
from pipeline.store import Item, Lake, Outcome, run_stage
from pipeline.types import RECORDS, Checkpoint, Contamination, Mix, Repo, RepoImage, with_id
from tests.unit.builders import sample, source, task, trajectory

REPO = with_id(
    Repo(
        source=source(sha256="a" * 64),
        name="demo",
        tree="",
        num_files=1,
        num_bytes=2,
        python_requires=[],
        test_command=[],
    )
)
IMAGE = with_id(
    RepoImage(repo_id=REPO.id, ref="treadle-repo:1", digest="d", recipe_hash="r", wheelhouse_hash="w", size_bytes=3)
)
CLEAN = with_id(
    Contamination(
        repo_id=REPO.id,
        is_contaminated=False,
        rule="none",
        benchmark="",
        benchmark_repo="",
        matched_files=[],
        matched_share=0.0,
        reason="nothing matches",
        reference_id="x",
    )
)
TASK = task(repo_id=REPO.id, image_id=IMAGE.id, contamination_id=CLEAN.id)
RUN = trajectory(task_id=TASK.id)
SAMPLE = sample(trajectory_id=RUN.id, task_id=TASK.id)


@pytest.fixture
def filled(lake: Lake) -> Lake:
    mix = Mix(
        id="e" * 64,
        name="m",
        stage="1",
        context_tokens=9,
        num_samples=1,
        num_tokens=4,
        num_trainable=2,
        tokenizer_id="k",
    )
    checkpoint = with_id(
        Checkpoint(
            mix_id=mix.id,
            tokenizer_id="k",
            parent="",
            path="checkpoints/a",
            weights_hash="w",
            num_parameters=1,
            num_steps=1,
            num_trainable_tokens=1,
            losses=[1.0],
            seconds=1.0,
        )
    )
    records = (REPO, IMAGE, CLEAN, TASK, RUN, SAMPLE, mix, checkpoint)
    run_stage(lake, "all", [Item("all", "v", None)], lambda _: Outcome("ok", records=records))
    return lake


def test_a_sample_leads_to_the_archive_it_came_from(filled: Lake) -> None:
    steps = lineage(filled, SAMPLE.id[:12])
    assert [step.table for step in steps] == ["samples", "trajectories", "tasks", "images", "repos", "contamination"]
    assert steps[4].facts["sha256"] == "a" * 64
    assert steps[1].facts["reward"] == "1.0"
    text = "\n".join(lineage_lines(steps))
    assert SAMPLE.id[:12] in text
    assert "verifier: resolved" in text


def test_a_checkpoint_leads_to_its_mix(filled: Lake) -> None:
    checkpoint = next(iter(filled.records(Checkpoint)))
    assert [step.table for step in lineage(filled, checkpoint.id)] == ["checkpoints", "mixes"]


@pytest.mark.parametrize(
    ("prefix", "sentence"),
    [("abc", "too short"), ("f" * 64, "no record has an id"), ("zzzzzzzz", "list ids with")],
)
def test_an_unknown_id_is_answered_with_the_remedy(filled: Lake, prefix: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        lineage(filled, prefix)


def test_an_ambiguous_id_asks_for_more_digits(lake: Lake) -> None:
    mixes = [
        Mix(
            id="abcdef" + digit * 58,
            name="m",
            stage="1",
            context_tokens=1,
            num_samples=1,
            num_tokens=1,
            num_trainable=1,
            tokenizer_id="",
        )
        for digit in "12"
    ]
    run_stage(lake, "mix", [Item("all", "v", None)], lambda _: Outcome("ok", records=tuple(mixes)))
    with pytest.raises(UserError, match="fits 2 records \\(mixes\\): give more digits"):
        lineage(lake, "abcdef")


def test_every_table_is_known_and_every_parent_column_exists() -> None:
    assert set(FACTS) == set(RECORDS)
    for table, parents in PARENTS.items():
        assert set(parents.values()) <= set(schema_of(RECORDS[table]).names)
