"""The whole journey with real parts: killed, continued, run again, its report held against its lake."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.containers.engine import connect
from pipeline.containers.reaper import is_orphan
from pipeline.store import Lake
from pipeline.types import Checkpoint, Parity, Sample, Task

TREADLE = Path(sys.executable).with_name("treadle")
CONFIG = Path(__file__).with_name("journey.toml")
pytestmark = [pytest.mark.docker, pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(3600)]


def start(work: Path) -> subprocess.Popen[bytes]:
    log = (work.parent / "journey.log").open("ab")
    return subprocess.Popen(
        [TREADLE, "demo", "--config", CONFIG, "--work", work],
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def finished_rows(work: Path) -> dict[tuple[str, str], dict]:
    """Every finished item in any journal, finished stage or not."""
    rows = {}
    for journal in (work / "lake" / "stages").glob("*/*/journal.jsonl"):
        for line in journal.read_bytes().split(b"\n")[:-1]:
            row = json.loads(line)
            rows[journal.parts[-3], row["item"]] = row
    return rows


def num_finished(work: Path, stage: str) -> int:
    return sum(name == stage for name, _ in finished_rows(work))


def is_training(work: Path) -> bool:
    """Whether the learner has saved a state and is not done."""
    return any((work / "lake" / "checkpoints").glob("*.resume.pt"))


def wait_for(work: Path, process: subprocess.Popen[bytes], is_there: Callable[[], bool]) -> None:
    """Until the run has come so far."""
    deadline = time.monotonic() + 1500
    while not is_there():
        assert process.poll() is None, (work.parent / "journey.log").read_text()[-3000:]
        assert time.monotonic() < deadline, "the journey takes too long"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run killed twice, during rollouts and during training, then continued to its end."""
    work = tmp_path_factory.mktemp("journey") / "work"
    before: dict[tuple[str, str], dict] = {}
    for is_there in (lambda: num_finished(work, "oracle_rollouts") >= 1, lambda: is_training(work)):
        process = start(work)
        wait_for(work, process, is_there)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        before |= finished_rows(work)
    process = start(work)
    assert process.wait() == 0, (work.parent / "journey.log").read_text()[-3000:]
    after = finished_rows(work)
    told = ("attempt", "seconds", "input_hash")
    repeated = [key for key, row in before.items() if any(after[key][name] != row[name] for name in told)]
    assert repeated == [], "finished items are not repeated after kill -9"
    return work


def test_a_killed_journey_finishes_without_repeating_finished_items(work: Path) -> None:
    lake = Lake(work / "lake")
    assert {"sources", "tasks", "oracle_rollouts", "model_rollouts", "mix", "sft", "parity"} <= set(lake.stages())
    (parity,) = lake.records(Parity)
    assert parity.max_difference <= 1e-4
    (checkpoint,) = lake.records(Checkpoint)
    assert checkpoint.losses[-1] < checkpoint.losses[0]


def test_no_container_of_a_dead_driver_outlives_the_journey(work: Path) -> None:
    containers = connect().api.containers(all=True, filters={"label": "treadle=1"})
    assert [found["Id"] for found in containers if is_orphan(found["Labels"])] == []


def test_the_next_run_skips_everything_and_says_so(work: Path) -> None:
    started = time.monotonic()
    result = subprocess.run(
        [TREADLE, "demo", "--config", CONFIG, "--work", work], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr
    total, reused = re.findall(r"(\d+) items in \d+ s; (\d+) were already there", result.stdout)[0]
    assert total == reused != "0"
    assert time.monotonic() - started < 300
    assert "FAILED" not in result.stdout


def test_the_report_shows_the_lakes_own_numbers(work: Path) -> None:
    lake = Lake(work / "lake")
    page = (work / "report" / "index.html").read_text()
    (checkpoint,) = lake.records(Checkpoint)
    assert f"{checkpoint.num_parameters:,}" in page
    assert str(len(list(lake.records(Task)))) in page
    assert not re.search(r'(src|href)="(?!#)', page), "the page needs nothing from elsewhere"


def test_sql_and_why_answer_from_the_finished_lake(work: Path) -> None:
    query = "SELECT domain, sum(num_trainable) AS tokens FROM samples GROUP BY ALL ORDER BY domain"
    answer = subprocess.run(
        [TREADLE, "mix", "sql", query, "--format", "json", "--work", work], capture_output=True, text=True, check=True
    )
    samples = list(Lake(work / "lake").records(Sample))
    expected: Counter[str] = Counter()
    for sample in samples:
        expected[sample.domain] += sample.num_trainable
    assert {row["domain"]: row["tokens"] for row in json.loads(answer.stdout)} == dict(expected)
    agentic = next(sample for sample in samples if sample.domain == "agentic_code")
    walked = subprocess.run([TREADLE, "why", agentic.id, "--work", work], capture_output=True, text=True, check=True)
    for word in ("samples", "trajectories", "tasks", "images", "repos", "sha256"):
        assert word in walked.stdout


def test_a_missing_docker_engine_is_one_sentence_and_nothing_is_lost(work: Path, tmp_path: Path) -> None:
    environment = os.environ | {"DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    result = subprocess.run(
        [TREADLE, "demo", "--config", CONFIG, "--work", tmp_path / "new"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert result.returncode in (2, 3)
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("treadle: ")
    assert "Traceback" not in result.stderr
    assert "ocker" in last


def test_a_broken_sdist_is_one_sentence(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "downloads").mkdir(parents=True)
    (work / "downloads" / "inflection-0.5.1.tar.gz").write_bytes(b"not an archive")
    result = subprocess.run(
        [TREADLE, "demo", "--config", CONFIG, "--work", work], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 2
    assert "archive is broken" in result.stderr
    assert "Traceback" not in result.stderr
