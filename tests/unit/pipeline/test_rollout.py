"""Rollouts that need no container: single turns, judged by their checker."""

from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipeline.errors import InfrastructureError, UserError
from pipeline.gateway.server import Gateway
from pipeline.gateway.serving import serving
from pipeline.rollout import RolloutConfig, final_tree, rollout
from pipeline.store import Lake
from pipeline.tasks.reasoning import make_reasoning_task
from pipeline.teachers.oracle import oracle_app
from pipeline.teachers.registry import TeacherHandle, openai_teacher, oracle_teacher
from pipeline.trees import pack_tree
from pipeline.types import Task, Trajectory
from tests.unit import builders


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("calls"), pause_sec=0) as running:
        yield running


def talker(content: str, status: int = 200) -> Starlette:
    """Stands in for a remote model server that always says the same."""

    async def chat(request: Request) -> Response:
        choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        return JSONResponse({"choices": [choice], "usage": {"completion_tokens": 3}}, status)

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])


def run(lake: Lake, task: Task, teacher: TeacherHandle, gateway: Gateway) -> Trajectory:
    return rollout(lake, None, task, None, "completion", teacher, gateway, 3, RolloutConfig())


def test_oracle_answers_a_reasoning_task_and_earns_the_reward(lake: Lake, gateway: Gateway) -> None:
    task = make_reasoning_task(lake, 11)
    with serving(oracle_app(lake, [task])) as url:
        trajectory = run(lake, task, oracle_teacher(url), gateway)
        again = run(lake, task, oracle_teacher(url), gateway)
    assert trajectory.result.reward == 1.0 and trajectory.exit_status == "submitted"
    assert [message.role for message in trajectory.messages] == ["user", "assistant"]
    assert trajectory.messages[0].content == task.statement.text
    assert trajectory.task_id == task.id and trajectory.teacher.name == "oracle" and trajectory.patch == ""
    assert trajectory.teacher.sampling == {"temperature": 1.0, "top_p": 1.0, "max_tokens": 1024}
    assert trajectory.messages == again.messages


def test_wrong_answer_is_a_trajectory_without_reward(lake: Lake, gateway: Gateway) -> None:
    task = make_reasoning_task(lake, 11)
    with serving(talker("Answer: forty-two")) as url:
        trajectory = run(lake, task, openai_teacher(f"{url}/v1", "m", ""), gateway)
    assert trajectory.result.reward == 0.0 and trajectory.result.reason == "the answer is wrong"
    assert trajectory.num_steps == 1


def test_reply_without_a_function_earns_nothing_and_needs_no_container(lake: Lake, gateway: Gateway) -> None:
    stub = {"a.py": b"def f():\n    raise NotImplementedError\n"}
    task = builders.task(
        kind="single_turn", domain="single_turn_code", entity="a.py::f", base_tree=lake.put_blob(pack_tree(stub))
    )
    with serving(talker("I would rather not.")) as url:
        trajectory = run(lake, task, openai_teacher(f"{url}/v1", "m", ""), gateway)
    assert trajectory.result.reward == 0.0
    assert trajectory.result.reason == "the reply could not be used: no_function_in_reply"
    assert trajectory.patch == ""


def test_dead_teacher_is_an_infrastructure_error_and_no_trajectory(lake: Lake, gateway: Gateway) -> None:
    task = make_reasoning_task(lake, 11)
    with serving(talker("", 500)) as url, pytest.raises(InfrastructureError, match="completion lost its teacher"):
        run(lake, task, openai_teacher(f"{url}/v1", "m", ""), gateway)


def test_refused_key_is_a_user_error_with_the_remedy(lake: Lake, gateway: Gateway) -> None:
    task = make_reasoning_task(lake, 11)
    with (
        serving(talker("", 401)) as url,
        pytest.raises(UserError, match=r"answered 401.*check its URL, model name and key"),
    ):
        run(lake, task, openai_teacher(f"{url}/v1", "m", "wrong"), gateway)


def test_final_tree_holds_the_agents_changes_and_nothing_else() -> None:
    base = {"a.py": b"1", "gone.py": b"2", ".venv/unreadable.py": b"3", "same.py": b"4"}
    before = {path: content for path, content in base.items() if not path.startswith(".venv")}
    after = {"a.py": b"1+", "same.py": b"4", "new.py": b"5", "patch.txt": b"diff"}
    expected = {"a.py": b"1+", ".venv/unreadable.py": b"3", "same.py": b"4", "new.py": b"5"}
    assert final_tree(base, before, after, frozenset({"patch.txt"})) == expected
    own = base | {"patch.txt": b"of the project"}
    assert final_tree(own, before | {"patch.txt": b"of the project"}, after, frozenset({"patch.txt"})) == expected | {
        "patch.txt": b"diff"
    }


def test_task_that_needs_a_container_says_so(lake: Lake, gateway: Gateway) -> None:
    task = builders.task(base_tree=lake.put_blob(pack_tree({"a.py": b"x = 1\n"})))
    with pytest.raises(UserError, match="runs in a container"):
        rollout(
            lake, None, task, None, "mini_swe_agent", oracle_teacher("http://127.0.0.1:9"), gateway, 0, RolloutConfig()
        )
