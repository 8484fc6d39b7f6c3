"""Hidden states at trainable positions -> log-probs and summed loss; no tokens x vocabulary tensor outlives a chunk.

Letters: N trainable tokens, D model, V vocabulary.
"""

import torch
from torch.utils.checkpoint import checkpoint

CHUNK_TOKENS = 1024
"""Rows of logits that exist at a time."""


def token_logprobs(
    hidden_ND: torch.Tensor,
    head_VD: torch.Tensor,
    labels_N: torch.Tensor,
    *,
    logit_scale: float,
    chunk_tokens: int = CHUNK_TOKENS,
) -> torch.Tensor:
    """Hidden states -> log-prob of each label [N], in nats; logits are computed again in the backward pass.

    Half-precision inputs are scored in float32.
    """
    parts = [
        checkpoint(_chunk_logprobs, hidden_MD, head_VD, labels_M, logit_scale, use_reentrant=False)
        for hidden_MD, labels_M in zip(hidden_ND.split(chunk_tokens), labels_N.split(chunk_tokens), strict=True)
    ]
    return torch.cat(parts)


def cross_entropy_sum(
    hidden_ND: torch.Tensor,
    head_VD: torch.Tensor,
    labels_N: torch.Tensor,
    *,
    logit_scale: float,
    chunk_tokens: int = CHUNK_TOKENS,
) -> torch.Tensor:
    """Hidden states -> negative log-probs, summed; caller divides by the step's count of trainable tokens."""
    return -token_logprobs(hidden_ND, head_VD, labels_N, logit_scale=logit_scale, chunk_tokens=chunk_tokens).sum()


def _chunk_logprobs(
    hidden_MD: torch.Tensor, head_VD: torch.Tensor, labels_M: torch.Tensor, logit_scale: float
) -> torch.Tensor:
    wide = torch.promote_types(hidden_MD.dtype, torch.float32)
    logits_MV = (hidden_MD @ head_VD.T).to(wide) * logit_scale
    return logits_MV.gather(1, labels_M[:, None])[:, 0] - torch.logsumexp(logits_MV, dim=1)
