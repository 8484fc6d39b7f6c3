"""Task, harness and teacher -> Trajectory: the run is recorded, its result verified where the agent never was."""

import logging
import time

from pydantic import Field
from pydantic.dataclasses import dataclass as config_class

from pipeline.config import STRICT
from pipeline.containers.engine import Client
from pipeline.containers.sandbox import AGENT_UID, TESTBED, Sandbox, SandboxLimits
from pipeline.errors import InfrastructureError, UserError
from pipeline.gateway.episode import Budget, EpisodeRecord, Limit
from pipeline.gateway.server import Gateway
from pipeline.gateway.wire import Sampling
from pipeline.harnesses.contract import EndState, Harness, RunLimits
from pipeline.harnesses.mini_swe_agent import MiniConfig
from pipeline.harnesses.registry import find_harness
from pipeline.store import Lake
from pipeline.tasks.completions import insert_function
from pipeline.tasks.reasoning import check_answer
from pipeline.teachers.registry import TeacherHandle
from pipeline.trees import Tree, diff_trees, unpack_tree
from pipeline.types import RepoImage, Task, Trajectory, VerifierResult, with_id
from pipeline.verify import verify_tree

log = logging.getLogger(__name__)

SETUP_TIMEOUT_SEC = 60
GIT_DATE = "2024-01-01T00:00:00+0000"
GIT_ENVIRONMENT = {
    "GIT_AUTHOR_NAME": "treadle",
    "GIT_AUTHOR_EMAIL": "treadle@localhost",
    "GIT_AUTHOR_DATE": GIT_DATE,
    "GIT_COMMITTER_NAME": "treadle",
    "GIT_COMMITTER_EMAIL": "treadle@localhost",
    "GIT_COMMITTER_DATE": GIT_DATE,
}
GIT_SCRIPT = """set -e
git init -q -b main
git config user.name agent
git config user.email agent@localhost
printf '__pycache__/\\n*.pyc\\n.pytest_cache/\\n' >> .git/info/exclude
git add -A -f
git commit -q --allow-empty -m base
"""
"""One commit holds the whole base tree, ignored files included, so that `git diff` shows the agent's work alone."""

REFUSALS = frozenset({401, 403, 404})
"""Answers of a teacher that repeating cannot change."""
LIMIT_STATUS: dict[Limit, str] = {"calls": "step_limit", "tokens": "context_limit", "context": "context_limit"}


@config_class(frozen=True, config=STRICT, kw_only=True)
class RolloutConfig:
    """How trajectories are produced."""

    mini: MiniConfig = Field(default_factory=MiniConfig)
    step_budget: int = Field(default=0, ge=0)
    """Most model calls; 0: as the task says."""
    wall_limit_sec: int = Field(default=600, ge=1)
    """Of one run of the harness, the verification not counted."""
    command_timeout_sec: int = Field(default=60, ge=1)
    """Of one command of the agent."""
    max_tokens: int = Field(default=1024, ge=1)
    """Of one reply."""
    max_episode_tokens: int = Field(default=32_768, ge=1)
    """Sampled tokens of all replies of one rollout."""
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    sandbox: SandboxLimits = Field(default_factory=SandboxLimits)


def rollout(
    lake: Lake,
    client: Client | None,
    task: Task,
    image: RepoImage | None,
    harness: str,
    teacher: TeacherHandle,
    gateway: Gateway,
    seed: int,
    config: RolloutConfig,
) -> Trajectory:
    """Task, names of harness and teacher, seed -> trajectory with its reward; a failed run is a trajectory, too.

    Raises: InfrastructureError when anything but the model failed: nothing is recorded then.
    """
    started = time.monotonic()
    program = find_harness(harness, config.mini)
    limits = RunLimits(
        step_budget=config.step_budget or task.step_budget,
        wall_limit_sec=config.wall_limit_sec,
        command_timeout_sec=config.command_timeout_sec,
        sandbox=config.sandbox,
    )
    sampling = Sampling(temperature=config.temperature, top_p=config.top_p, max_tokens=config.max_tokens, seed=seed)
    base = unpack_tree(lake.get_blob(task.base_tree)) if task.base_tree else {}
    episode = gateway.open_episode(
        teacher.upstream(task), sampling, Budget(max_calls=limits.step_budget, max_tokens=config.max_episode_tokens)
    )
    try:
        end, final = _run(program, client, task, image, base, episode.url, limits)
    finally:
        record = gateway.close_episode(episode)
    if record.fault_status in REFUSALS:
        raise UserError(f"teacher {teacher.name}: {record.fault}: check its URL, model name and key")
    if record.fault:
        raise InfrastructureError(f"{harness} lost its teacher {teacher.name}: {record.fault}")
    end = _explained(end, record)
    seconds = time.monotonic() - started
    final, result = _verify(lake, client, task, image, base, final, record, config.sandbox)
    trajectory = with_id(
        Trajectory(
            task_id=task.id,
            harness=program.record(limits),
            teacher=teacher.record(sampling),
            seed=seed,
            tools=record.tools,
            messages=record.messages,
            calls=record.calls,
            patch=diff_trees(base, final),
            exit_status=end.exit_status,
            native_exit=end.native_exit,
            result=result,
            num_steps=len(record.calls),
            wall_sec=seconds,
        )
    )
    log.info(
        "rollout done id=%s task=%s harness=%s teacher=%s exit=%s reward=%.0f steps=%d seconds=%.1f verify=%.1f",
        *(trajectory.id[:12], task.id[:12], harness, teacher.name, end.exit_status),
        *(result.reward, trajectory.num_steps, seconds, result.seconds),
    )
    return trajectory


def _run(
    program: Harness,
    client: Client | None,
    task: Task,
    image: RepoImage | None,
    base: Tree,
    episode_url: str,
    limits: RunLimits,
) -> tuple[EndState, Tree]:
    """Harness at work -> how it ended and the tree it left; without a sandbox that is the base tree."""
    if not program.needs_sandbox:
        return program.run(episode_url, task, None, limits), base
    engine, ref = _container(task, client, image)
    with Sandbox.start(engine, ref, limits=limits.sandbox) as sandbox:
        prepare_testbed(sandbox, base)
        before = sandbox.read_tree(TESTBED)
        end = program.run(episode_url, task, sandbox, limits)
        after = sandbox.read_tree(TESTBED)
    return end, final_tree(base, before, after, program.leftovers)


def final_tree(base: Tree, before: Tree, after: Tree, leftovers: frozenset[str]) -> Tree:
    """Base tree and what could be read back before and after a run -> base tree with the agent's changes.

    A file that cannot be read back, such as one in a folder taken for a cache, counts as unchanged.
    """
    kept = {path: content for path, content in base.items() if path in after or path not in before}
    changed = {path: content for path, content in after.items() if before.get(path) != content}
    return kept | {path: content for path, content in changed.items() if path in base or path not in leftovers}


def _container(task: Task, client: Client | None, image: RepoImage | None) -> tuple[Client, str]:
    if client is None or image is None:
        raise UserError(f"task {task.id[:12]} runs in a container: pass a Docker client and its repository's image")
    return client, image.ref


def prepare_testbed(sandbox: Sandbox, base: Tree) -> None:
    """Fresh sandbox and base tree -> a git repository in the working folder with one commit, the same every time."""
    sandbox.write_tree(base, TESTBED, uid=AGENT_UID)
    result = sandbox.execute(GIT_SCRIPT, timeout_sec=SETUP_TIMEOUT_SEC, environment=GIT_ENVIRONMENT)
    if result.exit_code != 0:
        raise InfrastructureError(f"git could not be set up in the sandbox: {result.output[-300:]}")


def _explained(end: EndState, record: EpisodeRecord) -> EndState:
    """An end the harness could only call an error -> the budget that caused it."""
    if record.limit and end.exit_status in ("error", "context_limit"):
        return EndState(LIMIT_STATUS[record.limit], end.native_exit)
    return end


def _verify(
    lake: Lake,
    client: Client | None,
    task: Task,
    image: RepoImage | None,
    base: Tree,
    final: Tree,
    record: EpisodeRecord,
    limits: SandboxLimits,
) -> tuple[Tree, VerifierResult]:
    """What the run left -> the tree that was judged, and the judgement."""
    answers = [message.content for message in record.messages if message.role == "assistant"]
    reply = answers[-1] if answers else ""
    if task.domain == "reasoning":
        is_right = check_answer(task, reply)
        return final, _judged(task, float(is_right), "the answer is right" if is_right else "the answer is wrong")
    if task.kind == "single_turn":
        final, problem = insert_function(base, task.entity, reply)
        if problem:
            return base, _judged(task, 0.0, f"the reply could not be used: {problem}")
    if final == base:
        return base, _judged(task, 0.0, "nothing was changed")
    engine, ref = _container(task, client, image)
    return final, verify_tree(lake, engine, task, ref, final, limits=limits)


def _judged(task: Task, reward: float, reason: str) -> VerifierResult:
    """A result that needs no run of the tests; none of them was seen."""
    tests = dict.fromkeys(task.fail_to_pass, "absent")
    return VerifierResult(
        reward=reward, fail_to_pass=tests, pass_to_pass={}, is_forged=False, reason=reason, seconds=0.0
    )
