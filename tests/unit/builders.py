"""Keyword overrides -> small valid records for tests."""

from typing import Any

from pipeline.types import (
    Harness,
    Message,
    ModelCall,
    Sample,
    Source,
    Statement,
    Task,
    Teacher,
    Trajectory,
    VerifierResult,
    with_id,
)


def source(**overrides: Any) -> Source:
    fields = {"kind": "sdist", "name": "demo", "version": "1.0", "sha256": "00", "licence": "MIT", "url": ""}
    return Source(**(fields | overrides))


def result(**overrides: Any) -> VerifierResult:
    fields: dict[str, Any] = {
        "reward": 1.0,
        "fail_to_pass": {"tests/test_a.py::test_a": "passed"},
        "pass_to_pass": {},
        "is_forged": False,
        "reason": "resolved",
        "seconds": 1.0,
    }
    return VerifierResult(**(fields | overrides))


def model_call(**overrides: Any) -> ModelCall:
    fields: dict[str, Any] = {
        "seq": 0,
        "num_messages": 1,
        "prompt_token_ids": [],
        "sampled_token_ids": [],
        "logprobs": [],
        "text": "",
        "finish_reason": "stop",
        "parse_status": "ok",
        "policy_version": "",
        "http_status": 200,
        "seconds": 0.1,
    }
    return ModelCall(**(fields | overrides))


def task(**overrides: Any) -> Task:
    fields: dict[str, Any] = {
        "kind": "swe",
        "domain": "agentic_code",
        "source": source(),
        "repo": "demo",
        "repo_id": "",
        "image_id": "",
        "strategy": "syntax_tree_bug",
        "modifier": "flip_comparison",
        "entity": "demo.f",
        "seed": 0,
        "base_tree": "",
        "hidden_tree": "",
        "gold_patch": "",
        "fail_to_pass": ["tests/test_a.py::test_a"],
        "pass_to_pass": [],
        "flake": {},
        "test_command": ["tests"],
        "timeout_sec": 60,
        "step_budget": 10,
        "statement": Statement(text="It fails.", origin="human"),
        "contamination_id": "",
        "split": "sft",
        "status": "valid",
    }
    return with_id(Task(**(fields | overrides)))


def trajectory(**overrides: Any) -> Trajectory:
    fields: dict[str, Any] = {
        "task_id": "t",
        "harness": Harness(name="mini-swe-agent", version="2.4.6", variation="v"),
        "teacher": Teacher(name="oracle", model="oracle", weights_hash="", sampling={}),
        "seed": 0,
        "tools": [],
        "messages": [Message(role="user", content="hello"), Message(role="assistant", content="done")],
        "calls": [],
        "patch": "",
        "exit_status": "submitted",
        "native_exit": "Submitted",
        "result": result(),
        "num_steps": 1,
        "wall_sec": 1.0,
    }
    return with_id(Trajectory(**(fields | overrides)))


def sample(**overrides: Any) -> Sample:
    fields: dict[str, Any] = {
        "trajectory_id": "j",
        "task_id": "t",
        "repo": "demo",
        "domain": "agentic_code",
        "harness": "mini-swe-agent",
        "modality": "native_tools",
        "teacher": "oracle",
        "is_resolved": True,
        "tokenizer_id": "k",
        "token_ids": [1, 2, 3, 4],
        "train_spans": [2, 4],
        "num_tokens": 4,
        "num_assistant": 2,
        "num_trainable": 2,
        "num_reasoning": 0,
        "num_tool_call": 0,
    }
    return with_id(Sample(**(fields | overrides)))
