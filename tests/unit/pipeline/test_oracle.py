"""The oracle's plans, run for real in a shell, and its answers on the wire."""

import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import unidiff

from pipeline.gateway.serving import serving
from pipeline.gateway.tool_calls import parse_status
from pipeline.store import Lake
from pipeline.tasks.completions import insert_function
from pipeline.tasks.reasoning import check_answer, make_reasoning_task
from pipeline.teachers.oracle import oracle_app
from pipeline.teachers.oracle_plan import SUBMIT_COMMAND, edit_commands, find_edits, make_plan
from pipeline.trees import Tree, diff_trees, pack_tree, read_folder
from pipeline.types import Task
from tests.unit import builders

BASE: Tree = {
    "demo/core.py": b"import os\n\n\ndef add(a, b):\n    return a - b\n\n\ndef sub(a, b):\n    return a + b\n",
    "README.md": b"demo\n",
}
FIXED: Tree = BASE | {
    "demo/core.py": b"import os\n\n\ndef add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n"
}
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
FENCE = re.compile(r"```mswea_bash_command\s*\n(.*?)\n```", re.DOTALL)
"""As mini-swe-agent reads commands out of text."""

CASES: dict[str, tuple[Tree, Tree]] = {
    "two functions": (BASE, FIXED),
    "backslashes and quotes": ({"a.py": b"x = '\\\\n'\n"}, {"a.py": b"x = '''\\\\t'''\n"}),
    "fence in the file": ({"a.md": b"a\n```\nb\n```\n"}, {"a.md": b"a\n```py\nb\n```\n"}),
    "delimiter in the file": ({"a.txt": b"EOF\nx\n"}, {"a.txt": b"EOF\ny\nEOF\n"}),
    "equal lines": ({"a.py": b"x = 1\n" * 20}, {"a.py": b"x = 1\n" * 9 + b"x = 2\n" + b"x = 1\n" * 10}),
    "no newline at the end": ({"a.py": b"x = 1\ny = 2"}, {"a.py": b"x = 1\ny = 3"}),
    "newline added at the end": ({"a.py": b"x = 1\ny = 2"}, {"a.py": b"x = 1\ny = 2\n"}),
    "windows line ends": ({"a.py": b"x = 1\r\ny = 2\r\n"}, {"a.py": b"x = 1\r\ny = 3\r\n"}),
    "other letters": ({"a.py": "# é\nx = 1\n".encode()}, {"a.py": "# é\nx = 'ü'\n".encode()}),
    "file added": ({"a.py": b"x = 1\n"}, {"a.py": b"x = 1\n", "b/c.py": b"y = 1\n"}),
    "file removed": ({"a.py": b"x = 1\n", "b.py": b"y = 1\n"}, {"a.py": b"x = 1\n"}),
    "several files": ({f"{n}.py": b"x = 1\n" for n in "abc"}, {f"{n}.py": b"x = 2\n" for n in "abc"}),
}


def patch_task(base: Tree, fixed: Tree, **overrides: object) -> Task:
    return builders.task(gold_patch=diff_trees(base, fixed), entity="demo/core.py::add", **overrides)


def shell(command: str, folder: Path) -> str:
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout!r}{done.stderr!r}"
    return done.stdout.decode()


def repository(tree: Tree, folder: Path) -> None:
    for path, content in tree.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    shell("git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -qm base", folder)


@pytest.mark.parametrize("case", CASES)
def test_plan_run_in_a_shell_gives_the_solved_tree_and_submits_the_patch(case: str, tmp_path: Path) -> None:
    base, fixed = CASES[case]
    repository(base, tmp_path)
    plan = make_plan(patch_task(base, fixed), base, 3)
    shell("set -e\n" + "\n".join(f"({command}\n)" for turn in plan[:-1] for command in turn.commands), tmp_path)
    output = shell(plan[-1].commands[0], tmp_path)
    final = read_folder(tmp_path)
    submitted = final.pop("patch.txt").decode()
    assert final == fixed
    assert output == f"COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n{submitted}"
    assert submitted.count("diff --git") == len(unidiff.PatchSet.from_string(patch_task(base, fixed).gold_patch))


@pytest.mark.parametrize("case", CASES)
def test_command_survives_the_way_through_a_text_fence(case: str) -> None:
    base, fixed = CASES[case]
    for seed in range(6):
        for turn in make_plan(patch_task(base, fixed), base, seed):
            command = " && ".join(turn.commands)
            assert FENCE.findall(f"THOUGHT: x\n\n```mswea_bash_command\n{command}\n```") == [command]


def test_both_ways_of_editing_occur_and_each_solves(tmp_path: Path) -> None:
    patch = list(unidiff.PatchSet.from_string(diff_trees(BASE, FIXED)))
    seen = set()
    for seed in range(4):
        (command,) = edit_commands(patch, BASE, random.Random(seed))
        folder = tmp_path / str(seed)
        folder.mkdir()
        repository(BASE, folder)
        shell(command, folder)
        assert read_folder(folder) == FIXED
        seen.add(command.split(" ", 1)[0])
    assert seen == {"python3", "git"}


def test_replacement_by_script_is_used_only_where_it_must_give_the_same_file() -> None:
    usable = {
        case
        for case, (base, fixed) in CASES.items()
        for file in unidiff.PatchSet.from_string(diff_trees(base, fixed))
        if find_edits(file, base.get(file.path, b""))
    }
    assert usable == {"two functions", "delimiter in the file", "several files"}
    ((file,), (base, _)) = unidiff.PatchSet.from_string(diff_trees(BASE, FIXED)), CASES["two functions"]
    assert find_edits(file, base["demo/core.py"])[0].old.startswith("    return a - b\n"), "no more context than needed"


def test_large_patch_is_split_into_commands_a_shell_accepts() -> None:
    base = {f"{n}.txt": b"" for n in range(6)}
    fixed = {path: b"line of text\n" * 2500 for path in base}
    patch = list(unidiff.PatchSet.from_string(diff_trees({}, fixed)))
    commands = edit_commands(patch, {}, random.Random(0))
    assert len(commands) > 1 and all(len(command) < 100_000 for command in commands)


def test_wording_depends_on_the_seed_and_on_nothing_else() -> None:
    task = patch_task(BASE, FIXED)
    assert make_plan(task, BASE, 1) == make_plan(task, BASE, 1)
    assert len({tuple(turn.thought for turn in make_plan(task, BASE, seed)) for seed in range(8)}) > 3
    assert make_plan(task, BASE, 1)[-1].commands == [SUBMIT_COMMAND]


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False) as client:
        yield client


def test_native_step_follows_from_the_messages_and_is_a_valid_call(lake: Lake, client: httpx.Client) -> None:
    task = patch_task(BASE, FIXED, base_tree=lake.put_blob(pack_tree(BASE)))
    messages: list[dict] = [{"role": "user", "content": "mend it"}]
    plan = make_plan(task, BASE, 4)
    with serving(oracle_app(lake, [task])) as url:
        for turn in plan:
            body = {"messages": messages, "tools": [BASH], "seed": 4}
            reply = client.post(f"{url}/t/{task.id}/v1/chat/completions", json=body).json()
            message = reply["choices"][0]["message"]
            assert parse_status(message, [BASH]) == "ok"
            assert len(message["tool_calls"]) == len(turn.commands)
            assert message["content"] == turn.thought and message["reasoning_content"] == turn.reasoning
            assert reply["choices"][0]["finish_reason"] == "tool_calls"
            messages += [message, {"role": "tool", "content": "ok", "tool_call_id": message["tool_calls"][0]["id"]}]
        assert client.post(f"{url}/t/unknown/v1/chat/completions", json=body).status_code == 404
    ids = [call["id"] for wire in messages for call in wire.get("tool_calls", [])]
    assert len(set(ids)) == len(ids)


def test_prompt_that_asks_for_fenced_commands_gets_exactly_one(lake: Lake, client: httpx.Client) -> None:
    task = patch_task(BASE, FIXED, base_tree=lake.put_blob(pack_tree(BASE)))
    body = {"messages": [{"role": "system", "content": "Answer with one ```mswea_bash_command block"}], "seed": 0}
    with serving(oracle_app(lake, [task])) as url:
        reply = client.post(f"{url}/t/{task.id}/v1/chat/completions", json=body).json()
    message = reply["choices"][0]["message"]
    assert "tool_calls" not in message and len(FENCE.findall(message["content"])) == 1
    assert message["content"].startswith("THOUGHT: ")


def test_completion_task_is_answered_with_the_gold_function(lake: Lake, client: httpx.Client) -> None:
    stub = {"demo/core.py": b'def add(a, b):\n    """Sum."""\n    raise NotImplementedError\n'}
    solved = {"demo/core.py": b'def add(a, b):\n    """Sum."""\n    total = a + b\n    return total\n'}
    task = patch_task(
        stub,
        solved,
        base_tree=lake.put_blob(pack_tree(stub)),
        kind="single_turn",
        domain="single_turn_code",
        strategy="function_completion",
    )
    body = {"messages": [{"role": "user", "content": "write it"}], "seed": 1}
    with serving(oracle_app(lake, [task])) as url:
        reply = client.post(f"{url}/t/{task.id}/v1/chat/completions", json=body).json()
    content = reply["choices"][0]["message"]["content"]
    tree, problem = insert_function(stub, task.entity, content)
    assert not problem and tree == solved
    assert not content.startswith("```"), "a sentence comes first"


def test_reasoning_task_is_answered_right(lake: Lake, client: httpx.Client) -> None:
    task = make_reasoning_task(lake, 7)
    with serving(oracle_app(lake, [task])) as url:
        body = {"messages": [{"role": "user", "content": task.statement.text}]}
        reply = client.post(f"{url}/t/{task.id}/v1/chat/completions", json=body).json()
    assert check_answer(task, reply["choices"][0]["message"]["content"])
