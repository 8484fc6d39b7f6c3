"""The real mini-swe-agent at work in a real sandbox; its teachers are the oracle or scripted servers."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipeline.containers.base_image import BaseImageConfig, ensure_base_image
from pipeline.containers.engine import Client, connect
from pipeline.containers.images import build_image
from pipeline.containers.reaper import owner_labels
from pipeline.errors import InfrastructureError
from pipeline.gateway.server import Gateway
from pipeline.gateway.serving import serving
from pipeline.harnesses.mini_swe_agent import MiniConfig
from pipeline.rollout import RolloutConfig, rollout
from pipeline.store import Lake
from pipeline.teachers.oracle import oracle_app
from pipeline.teachers.oracle_plan import SUBMIT_COMMAND
from pipeline.teachers.registry import TeacherHandle, openai_teacher, oracle_teacher
from pipeline.trees import Tree, diff_trees, pack_tree
from pipeline.types import Repo, RepoImage, Task, Trajectory, with_id
from tests.unit import builders

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

BUILD = Path(__file__).parents[2] / "build" / "test"
BASE: Tree = {
    "pyproject.toml": b"""[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "demo"
version = "1.0"

[tool.setuptools]
packages = ["demo"]
""",
    "demo/__init__.py": b"",
    "demo/core.py": b'def add(a, b):\n    """Sum of a and b."""\n    total = a - b\n    return total\n',
    ".gitignore": b"kept.txt\n",
    "kept.txt": b"part of the tree although ignored\n",
}
FIXED: Tree = BASE | {"demo/core.py": BASE["demo/core.py"].replace(b"a - b", b"a + b")}
HIDDEN: Tree = {
    "tests/test_core.py": b"from demo.core import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n\n\n"
    b"def test_zero():\n    assert add(0, 0) == 0\n"
}
Turn = Callable[[int], dict[str, Any]]


@pytest.fixture(scope="module")
def client() -> Client:
    return connect()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(tmp_path_factory.mktemp("lake"))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("calls"), pause_sec=0) as running:
        yield running


@pytest.fixture(scope="module")
def image(client: Client, lake: Lake) -> RepoImage:
    repo = Repo(
        source=builders.source(),
        name="demo",
        tree=lake.put_blob(pack_tree(FIXED | HIDDEN)),
        num_files=len(FIXED | HIDDEN),
        num_bytes=sum(map(len, (FIXED | HIDDEN).values())),
        python_requires=[],
        test_command=["tests"],
    )
    base = ensure_base_image(client, BaseImageConfig())
    return build_image(lake, client, with_id(repo), base, BUILD / "wheelhouses")


@pytest.fixture(scope="module")
def task(lake: Lake) -> Task:
    return builders.task(
        base_tree=lake.put_blob(pack_tree(BASE)),
        hidden_tree=lake.put_blob(pack_tree(HIDDEN)),
        gold_patch=diff_trees(BASE, FIXED),
        entity="demo/core.py::add",
        fail_to_pass=["tests/test_core.py::test_add"],
        pass_to_pass=["tests/test_core.py::test_zero"],
        test_command=["tests"],
    )


def scripted(turn: Turn) -> Starlette:
    """Stands in for a remote model server: its reply depends on the number of its replies so far alone."""

    async def chat(request: Request) -> Response:
        body = await request.json()
        num_done = sum(wire["role"] == "assistant" for wire in body["messages"])
        choice = {"index": 0, "message": {"role": "assistant", **turn(num_done)}, "finish_reason": "stop"}
        return JSONResponse({"choices": [choice], "usage": {"completion_tokens": 1}})

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])


def bash(command: str) -> dict[str, Any]:
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    return {"content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}]}


@pytest.fixture
def run(client: Client, lake: Lake, gateway: Gateway, task: Task, image: RepoImage) -> Callable[..., Trajectory]:
    def roll(teacher: TeacherHandle, **config: Any) -> Trajectory:
        return rollout(lake, client, task, image, "mini_swe_agent", teacher, gateway, 1, RolloutConfig(**config))

    return roll


@pytest.fixture
def run_script(run: Callable[..., Trajectory]) -> Callable[..., Trajectory]:
    def roll(turn: Turn, **config: Any) -> Trajectory:
        with serving(scripted(turn)) as url:
            return run(openai_teacher(f"{url}/v1", "scripted", ""), **config)

    return roll


@pytest.mark.parametrize("variation", ["native", "text"])
def test_oracle_solves_a_task_through_the_real_harness(variation, run, lake, task) -> None:
    with serving(oracle_app(lake, [task])) as url:
        trajectory = run(oracle_teacher(url), mini=MiniConfig(variation=variation))
    assert trajectory.result.reward == 1.0, trajectory.result.reason
    assert trajectory.exit_status == "submitted" and trajectory.native_exit == "Submitted"
    assert trajectory.patch == task.gold_patch, "patch.txt and caches are no part of it"
    assert trajectory.messages[0].role == "system" and task.statement.text in trajectory.messages[1].content
    assert trajectory.num_steps == len(trajectory.calls) <= task.step_budget
    assert all(call.parse_status == "ok" for call in trajectory.calls)
    assert [tool["function"]["name"] for tool in trajectory.tools] == (["bash"] if variation == "native" else [])
    last = trajectory.messages[-1]
    assert SUBMIT_COMMAND in (last.tool_calls[0].arguments if variation == "native" else last.content)


def test_submitting_nothing_earns_nothing(run_script) -> None:
    trajectory = run_script(lambda _: bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"))
    assert trajectory.exit_status == "submitted"
    assert trajectory.result.reward == 0.0 and trajectory.result.reason == "nothing was changed"
    assert trajectory.patch == ""


def test_agent_sees_one_commit_that_is_the_same_every_time_and_holds_ignored_files(run_script) -> None:
    look = "git log --format='%an %ad' | sort | uniq -c; git rev-parse HEAD; git status --short; git ls-files; id -un"
    seen = {
        run_script(lambda n: bash(look) if n == 0 else bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"))
        .messages[3]
        .content
        for _ in range(2)
    }
    (output,) = seen
    assert "1 treadle Mon Jan 1 00:00:00 2024" in output
    assert "kept.txt\n" in output and "agent\n" in output


def test_step_limit_is_the_rollouts_own_end(run_script) -> None:
    trajectory = run_script(lambda n: bash(f"echo step {n}"), step_budget=3)
    assert trajectory.exit_status == "step_limit" and trajectory.native_exit == "LimitsExceeded"
    assert trajectory.num_steps == 3
    assert [message.role for message in trajectory.messages[2:]] == [
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]


def test_token_budget_is_the_rollouts_own_end(run_script) -> None:
    trajectory = run_script(lambda n: bash(f"echo step {n}"), max_episode_tokens=2)
    assert trajectory.exit_status == "context_limit" and trajectory.native_exit == "ContextWindowExceededError"
    assert trajectory.num_steps == 2


def test_turns_in_a_wrong_format_stay_in_the_trajectory(run_script) -> None:
    trajectory = run_script(lambda _: {"content": "I think it is fine."})
    assert trajectory.exit_status == "format_error" and trajectory.native_exit == "RepeatedFormatError"
    assert [message.role for message in trajectory.messages] == [
        *["system", "user", "assistant", "user", "assistant", "user", "assistant"]
    ]
    assert all(message.content == "I think it is fine." for message in trajectory.messages[2::2])
    assert [call.parse_status for call in trajectory.calls] == ["no_tool_call"] * 3


def test_endless_command_is_killed_and_the_agent_is_told(run_script) -> None:
    trajectory = run_script(
        lambda n: bash("sleep 200" if n == 0 else "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"), command_timeout_sec=2
    )
    assert trajectory.exit_status == "submitted"
    assert "did not end within 2 seconds and was killed" in trajectory.messages[3].content


def test_command_that_is_no_text_is_refused_and_the_agent_is_told(run_script) -> None:
    odd = bash("")
    odd["tool_calls"][0]["function"]["arguments"] = '{"command": 5}'
    trajectory = run_script(lambda n: odd if n == 0 else bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"))
    assert trajectory.exit_status == "submitted"
    assert "it is not a string" in trajectory.messages[3].content
    assert [call.parse_status for call in trajectory.calls] == ["schema_violation", "ok"]


def test_wall_limit_ends_harness_and_sandbox(run_script, client: Client) -> None:
    trajectory = run_script(lambda _: bash("sleep 50"), wall_limit_sec=20)
    assert trajectory.exit_status == "wall_limit"
    assert trajectory.wall_sec < 90, "one command alone would have taken 50 s, and twenty were allowed"
    run = f"treadle.run={owner_labels()['treadle.run']}"
    assert client.api.containers(all=True, filters={"label": run}) == []


def test_removed_container_is_an_infrastructure_error(run_script, client: Client) -> None:
    def sabotage(_: int) -> dict[str, Any]:
        run = f"treadle.run={owner_labels()['treadle.run']}"
        for container in client.api.containers(filters={"label": run}):
            client.api.remove_container(container["Id"], force=True)
        return bash("ls")

    with pytest.raises(InfrastructureError, match="mini-swe-agent broke"):
        run_script(sabotage)


def test_completion_task_is_verified_in_a_container(client, lake, gateway, image) -> None:
    stub = FIXED | {"demo/core.py": b'def add(a, b):\n    """Sum of a and b."""\n    raise NotImplementedError\n'}
    task = builders.task(
        kind="single_turn",
        domain="single_turn_code",
        base_tree=lake.put_blob(pack_tree(stub)),
        hidden_tree=lake.put_blob(pack_tree(HIDDEN)),
        gold_patch=diff_trees(stub, FIXED),
        entity="demo/core.py::add",
        fail_to_pass=["tests/test_core.py::test_add", "tests/test_core.py::test_zero"],
        test_command=["tests"],
    )
    with serving(oracle_app(lake, [task])) as url:
        trajectory = rollout(lake, client, task, image, "completion", oracle_teacher(url), gateway, 1, RolloutConfig())
    assert trajectory.result.reward == 1.0, trajectory.result.reason
    assert trajectory.patch == task.gold_patch
    assert trajectory.harness.name == "completion"
