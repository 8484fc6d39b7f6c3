"""Repository name -> Split, by a keyed hash: all versions and all tasks of a repository stay together."""

import hashlib

from pipeline.tasks.config import TaskConfig
from pipeline.types import Split


def split_of(repo_name: str, config: TaskConfig) -> Split:
    """Name -> sft, rlvr or held_out; the shares hold over many repositories."""
    digest = hashlib.sha256(f"{config.split_key}\n{repo_name.lower()}".encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    if place < config.sft_share:
        return "sft"
    return "rlvr" if place < config.sft_share + config.rlvr_share else "held_out"
