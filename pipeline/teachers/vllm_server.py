"""Model folder -> a vLLM server on the loopback interface: a process group of its own, warmed up, never orphaned."""

import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx
from pydantic import Field
from pydantic.dataclasses import dataclass as config_class

from pipeline.config import STRICT
from pipeline.errors import InfrastructureError, UserError
from pipeline.teachers.processes import guarded, last_lines

log = logging.getLogger(__name__)

POLL_SEC = 0.5
PROGRESS_SEC = 15.0
LOG_LINES = 15
"""Of the server's log in an error."""
WARM_UP_TIMEOUT_SEC = 180.0

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "DO_NOT_TRACK": "1",
    # Even an eager vLLM compiles its norms with inductor, which on a CPU needs a C++ compiler.
    "TORCHDYNAMO_DISABLE": "1",
    "PYTHONUNBUFFERED": "1",
}


@config_class(frozen=True, config=STRICT, kw_only=True)
class ServerConfig:
    """How a model is served."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of weights and activations; float32 where log-probs are compared."""
    max_model_len: int = Field(default=8192, ge=16)
    """Tokens of prompt and reply together."""
    max_num_seqs: int = Field(default=16, ge=1)
    """Requests computed at the same time."""
    kv_cache_gb: int = Field(default=2, ge=1)
    """GiB of memory for keys and values (CPU only)."""
    max_logprobs: int = Field(default=30, ge=1)
    """Most alternatives a request may ask for per token."""
    num_threads: int = Field(default=0, ge=0)
    """Compute threads (CPU only); 0: one a physical core, one core left free."""
    arguments: tuple[str, ...] = ()
    """Further arguments of vLLM's server."""
    start_timeout_sec: int = Field(default=600, ge=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that answers."""

    url: str
    """Base URL, up to and with `/v1`."""
    name: str
    """Model name to ask for."""
    pid: int
    """Of its process group."""
    start_sec: float
    """From the start of the process to the end of the warm-up."""


@contextlib.contextmanager
def serve(
    config: ServerConfig,
    model_path: Path,
    name: str,
    log_path: Path,
    *,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Model folder -> running server, until the block ends; its output goes to `log_path`.

    Raises: UserError when there is no such folder; InfrastructureError, with the end of its log, when it dies or hangs.
    """
    if not (model_path / "config.json").is_file():
        raise UserError(f"{model_path} holds no model (config.json is missing): make or name a model folder")
    port = _free_port()
    command = [*_command(config, model_path, name, port), *config.arguments, *arguments]
    started = time.monotonic()
    settings = {**os.environ, **_environment(config), **(environment or {})}
    with guarded(command, log_path=log_path, environment=settings) as process:
        root = f"http://127.0.0.1:{port}"
        log.info("server starting name=%s model=%s log=%s", name, model_path, log_path)
        with httpx.Client(base_url=root, trust_env=False) as client:
            _wait_healthy(client, process, config, name, log_path)
            _warm_up(client, name, log_path)
        start_sec = time.monotonic() - started
        log.info("server ready name=%s seconds=%.1f url=%s", name, start_sec, root)
        yield Server(url=f"{root}/v1", name=name, pid=process.pid, start_sec=start_sec)
    log.info("server stopped name=%s", name)


def _command(config: ServerConfig, model_path: Path, name: str, port: int) -> list[str]:
    return [
        *[sys.executable, "-m", "vllm.entrypoints.openai.api_server"],
        *["--model", str(model_path), "--served-model-name", name],
        *["--host", "127.0.0.1", "--port", str(port)],
        *["--dtype", config.dtype, "--enforce-eager"],
        *["--max-model-len", str(config.max_model_len), "--max-num-seqs", str(config.max_num_seqs)],
        *["--max-logprobs", str(config.max_logprobs)],
    ]


def _environment(config: ServerConfig) -> dict[str, str]:
    settings = ENVIRONMENT | {"VLLM_CPU_KVCACHE_SPACE": str(config.kv_cache_gb)}
    if config.num_threads:
        settings |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(config.num_threads)}
    return settings


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _wait_healthy(
    client: httpx.Client, process: "subprocess.Popen[bytes]", config: ServerConfig, name: str, log_path: Path
) -> None:
    started = reported = time.monotonic()
    while True:
        time.sleep(POLL_SEC)
        if process.poll() is not None:
            raise InfrastructureError(f"the server of {name} died while starting: {_end_of(log_path)}")
        with contextlib.suppress(httpx.TransportError):
            if client.get("/health").status_code == 200:
                return
        now = time.monotonic()
        if now - started > config.start_timeout_sec:
            raise InfrastructureError(
                f"the server of {name} did not start within {config.start_timeout_sec} s: {_end_of(log_path)}"
            )
        if now - reported > PROGRESS_SEC:
            log.info("server starting name=%s seconds=%.0f", name, now - started)
            reported = now


def _warm_up(client: httpx.Client, name: str, log_path: Path) -> None:
    """First request, whose one-time costs must not fall on a rollout; it needs no chat template."""
    body = {"model": name, "prompt": "a", "max_tokens": 4, "logprobs": 1}
    try:
        response = client.post("/v1/completions", json=body, timeout=WARM_UP_TIMEOUT_SEC)
    except httpx.TransportError as error:
        raise InfrastructureError(
            f"the server of {name} failed its first request ({error}): {_end_of(log_path)}"
        ) from None
    if response.status_code != 200:
        raise InfrastructureError(
            f"the server of {name} failed its first request ({response.text[:300]}): {_end_of(log_path)}"
        )


def _end_of(log_path: Path) -> str:
    return f"the end of {log_path} is\n{last_lines(log_path, LOG_LINES)}"
