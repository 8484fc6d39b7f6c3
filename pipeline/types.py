"""The records that walk through the program: Repo -> Task -> Trajectory -> Verdict -> Sample.

Ids are the sha256 of canonical JSON; every derived record keeps its parent's id, so any trained token can be
followed back to the source it came from with joins alone. Text in records is UTF-8; times are seconds.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from typing import Any, Literal, TypeVar

SCHEMA_VERSION = 1

Json = Any
"""A value that `json.dumps` accepts."""

TaskKind = Literal["swe", "terminal", "single_turn"]
Domain = Literal["agentic_code", "single_turn_code", "reasoning"]
Split = Literal["sft", "rlvr", "held_out"]
R = TypeVar("R")


def canonical_json(payload: Json) -> bytes:
    """Value -> its one canonical JSON encoding (sorted keys, no spaces, UTF-8)."""
    return json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def content_id(payload: Json) -> str:
    """Value or record -> sha256 of its canonical JSON, as hex."""
    plain = asdict(payload) if is_dataclass(payload) and not isinstance(payload, type) else payload
    return hashlib.sha256(canonical_json(plain)).hexdigest()


def with_id(record: R) -> R:
    """Record with an empty `id` -> the same record, its id set to the hash of all other fields."""
    fields = asdict(record)  # type: ignore[call-overload]
    assert fields.pop("id") == "", "an id is set once"
    return replace(record, id=content_id(fields))  # type: ignore[type-var]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where code came from, exactly enough to fetch it again."""

    kind: str
    """sdist | local | generator | planted (contaminated on purpose, under another name)."""
    name: str
    """Name in its registry, or of the folder or generator."""
    version: str
    sha256: str
    """Of the archive; of the tree for a local folder."""
    licence: str
    """SPDX expression, or "unknown"."""
    url: str
    """Page of the project as its own metadata states it; empty if none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repo:
    """One version of one repository, its files stored in the lake."""

    id: str = ""
    source: Source
    name: str
    """Name that tasks are grouped and split by; equal for all versions of one repository."""
    tree: str
    """Blob id of the file tree."""
    num_files: int
    num_bytes: int
    python_requires: list[str]
    """Requirements to install beside the tests, e.g. ["pytest"]."""
    test_command: list[str]
    """Arguments after `python -m pytest`."""
    previous_version: str = ""
    """The release this one is paired with, or empty."""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """The benchmark sources that repositories are compared with, as hashes."""

    id: str
    """Blob id of the index."""
    sources: list[Source]
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Contamination:
    """What decontamination found for one repository: the evidence, never only the decision."""

    id: str = ""
    repo_id: str
    is_contaminated: bool
    rule: str
    """name | content | none."""
    benchmark: str
    """The benchmark matched (or nearest), empty if none."""
    benchmark_repo: str
    matched_files: list[str]
    """Files that match, each as "file ~ reference file: score"."""
    matched_share: float
    """Share of the repository's comparable files that match."""
    reason: str
    """One sentence for a person."""
    reference_id: str
    """Parent Benchmark."""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoImage:
    """The container image of one repository: its environment, never its code."""

    id: str = ""
    repo_id: str
    ref: str
    """Local tag."""
    digest: str
    recipe_hash: str
    """Hash of base image recipe, build steps and wheelhouse; equal hash, equal image."""
    wheelhouse_hash: str
    size_bytes: int
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """The instruction that the agent reads."""

    text: str
    origin: str
    """Who wrote it: failing_tests | generator | human."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One verifiable problem."""

    id: str = ""
    kind: TaskKind
    domain: Domain
    source: Source
    repo: str
    """Repository name; splits are disjoint by it."""
    repo_id: str
    """Parent Repo; empty for generated tasks without a repository."""
    image_id: str
    """Parent RepoImage; empty where no container is needed."""
    strategy: str
    """syntax_tree_bug | release_pair | function_completion | reasoning."""
    modifier: str
    """What exactly was done, e.g. the kind of bug."""
    entity: str
    """Function, file or data set that was changed or asked about."""
    seed: int
    base_tree: str
    """Blob id of the tree the agent starts from: hidden files are not in it."""
    hidden_tree: str
    """Blob id of the files that only the verifier may read."""
    gold_patch: str
    """Unified diff, base tree -> solved tree."""
    answer: Json = None
    """Expected answer of a task without tests, in its checker's own format."""
    fail_to_pass: list[str]
    pass_to_pass: list[str]
    flake: dict[str, list[int]]
    """Test id -> [runs, fails] over repeated runs of the solved tree; only tests that ever failed."""
    test_command: list[str]
    timeout_sec: int
    """Limit of one verification."""
    step_budget: int
    """Most model calls a rollout may make."""
    statement: Statement
    interface: str = ""
    """Signatures that hidden tests call, where the statement does not name them."""
    contamination_id: str
    """Evidence that the repository is clean; empty for generated tasks."""
    split: Split
    status: Literal["valid", "flaky", "rotted", "leaky"]
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One tool call as the model wrote it: the arguments stay the raw text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn, in the order and words of the wire."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    tool_call_id: str = ""
    """For role tool: the call answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """One request to the teacher, token-exact where the teacher returns tokens."""

    seq: int
    """Place among the episode's calls, from 0."""
    num_messages: int
    """Messages in the request; the first of the trajectory's messages unless history was rewritten."""
    prompt_token_ids: list[int]
    """Empty where the teacher returns no token ids (the oracle)."""
    sampled_token_ids: list[int]
    logprobs: list[float]
    """Natural log, one per sampled token."""
    text: str
    """The reply as the teacher wrote it, malformed output included."""
    finish_reason: str
    parse_status: Literal["ok", "no_tool_call", "invalid_json", "unknown_tool", "schema_violation"]
    policy_version: str
    http_status: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """Which agent program, which version, which variation of it."""

    name: str
    version: str
    variation: str
    """Hash of the settings; two trajectories with equal variation saw the same prompts and tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """Who answered."""

    name: str
    """oracle | vllm | openai."""
    model: str
    weights_hash: str
    """Hash of the weights; empty for the oracle."""
    sampling: dict[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierResult:
    """Outcome of the hidden tests, or of the answer checker, in a place the agent never touched."""

    reward: float
    """0.0 or 1.0."""
    fail_to_pass: dict[str, str]
    """Test id -> passed | failed | error | skipped | absent."""
    pass_to_pass: dict[str, str]
    """Only the tests that did not pass; an empty dict means nothing broke."""
    is_forged: bool
    """The canaries show that the result was tampered with; the reward is then 0."""
    reason: str
    """One sentence: resolved, or what failed."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One recorded agent run. Never edited: masks and verdicts are layers on top."""

    id: str = ""
    task_id: str
    harness: Harness
    teacher: Teacher
    seed: int
    tools: list[Json]
    """Tool schemas as offered on the wire; empty for plain text."""
    messages: list[Message]
    calls: list[ModelCall]
    patch: str
    """Unified diff, base tree -> the tree the agent left."""
    exit_status: str
    """submitted | step_limit | wall_limit | format_error | context_limit | error, normalised over harnesses."""
    native_exit: str
    """The harness's own word for it."""
    result: VerifierResult
    num_steps: int
    wall_sec: float
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One finding of one filter; a trajectory without findings has one row with action "keep"."""

    id: str = ""
    trajectory_id: str
    filter: str
    filter_version: int
    action: Literal["keep", "drop", "mask", "tag"]
    reason: str
    """Stable slug, e.g. unknown_tool."""
    message: int
    """Index of the message concerned, -1 for the whole trajectory."""
    span: list[int]
    """[start, end) characters in that message's text; empty if not a place."""
    evidence: str
    """At most 200 characters."""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A trajectory rendered for one student: token ids and which of them train."""

    id: str = ""
    trajectory_id: str
    task_id: str
    repo: str
    domain: Domain
    harness: str
    modality: Literal["native_tools", "plain_text"]
    teacher: str
    is_resolved: bool
    tokenizer_id: str
    """Hash of tokenizer files and chat template."""
    token_ids: list[int]
    train_spans: list[int]
    """Start, end pairs: tokens [start, end) are trainable labels; index 0 never is."""
    num_tokens: int
    num_assistant: int
    """Tokens the assistant wrote, before masks."""
    num_trainable: int
    num_reasoning: int
    num_tool_call: int
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """One locked mix; the lock file holds what was selected and proves it."""

    id: str
    """sha256 of the lock's canonical bytes, which is also the name of the lock file."""
    name: str
    stage: str
    context_tokens: int
    num_samples: int
    """Repeats counted."""
    num_tokens: int
    num_trainable: int
    tokenizer_id: str
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A trained model on disk, with its parents."""

    id: str = ""
    mix_id: str
    tokenizer_id: str
    parent: str
    """Checkpoint trained further, or empty."""
    path: str
    """Folder, relative to the lake."""
    weights_hash: str
    num_parameters: int
    num_steps: int
    num_trainable_tokens: int
    """Trainable tokens seen, repeats counted."""
    losses: list[float]
    """Mean loss per trainable token, in nats, one per optimizer step."""
    seconds: float
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """Proof that the server answers with the learner's weights."""

    id: str = ""
    checkpoint_id: str
    num_tokens: int
    max_difference: float
    """Largest absolute difference of a log-prob, in nats."""
    mean_difference: float
    tolerance: float
    is_equal: bool
    completion: str
    """What the served model said to the probe."""
    schema_version: int = SCHEMA_VERSION


RECORDS: dict[str, type] = {
    "repos": Repo,
    "benchmarks": Benchmark,
    "contamination": Contamination,
    "images": RepoImage,
    "tasks": Task,
    "trajectories": Trajectory,
    "verdicts": Verdict,
    "samples": Sample,
    "mixes": Mix,
    "checkpoints": Checkpoint,
    "parity": Parity,
}
"""Table of the lake -> its record."""
