"""Packed queries, keys, values -> attention that never crosses a document, in memory linear in the pack.

Global layers attend document by document; sliding layers attend in blocks of one window, each block to itself and the
block before it. No tokens x tokens mask exists, so long packs fit; transformers' own sdpa gives the same values.
Letters: B batch (1), T tokens, H heads, G kv heads, C channels of a head, N blocks, W window.
"""

from typing import Any

import torch
from torch.nn import functional
from transformers.modeling_utils import AttentionInterface

NAME = "document"
"""Name of this attention in transformers' registry."""


def register_attention() -> str:
    """-> name under which models find this attention; transformers makes no mask for it."""
    AttentionInterface.register(NAME, document_attention)
    return NAME


def document_attention(
    _module: torch.nn.Module,
    query_BHTC: torch.Tensor,
    key_BGTC: torch.Tensor,
    value_BGTC: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    position_ids: torch.Tensor,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """One packed row -> [B, T, H, C]; documents start where `position_ids` is 0."""
    assert query_BHTC.shape[0] == 1 and attention_mask is None, "packs are single rows without padding"
    starts = torch.nonzero(position_ids[0] == 0)[:, 0].tolist()
    if sliding_window is None:
        output_BHTC = _global_attention(query_BHTC, key_BGTC, value_BGTC, starts, scaling)
    else:
        output_BHTC = _sliding_attention(query_BHTC, key_BGTC, value_BGTC, position_ids[0], sliding_window, scaling)
    return output_BHTC.transpose(1, 2), None


def _global_attention(
    query_BHTC: torch.Tensor, key_BGTC: torch.Tensor, value_BGTC: torch.Tensor, starts: list[int], scaling: float
) -> torch.Tensor:
    ends = [*starts[1:], query_BHTC.shape[2]]
    parts = [
        functional.scaled_dot_product_attention(
            query_BHTC[:, :, start:end],
            key_BGTC[:, :, start:end],
            value_BGTC[:, :, start:end],
            is_causal=True,
            scale=scaling,
            enable_gqa=True,
        )
        for start, end in zip(starts, ends, strict=True)
    ]
    return torch.cat(parts, dim=2)


def _sliding_attention(
    query_BHTC: torch.Tensor,
    key_BGTC: torch.Tensor,
    value_BGTC: torch.Tensor,
    position_T: torch.Tensor,
    window: int,
    scaling: float,
) -> torch.Tensor:
    """Each token attends to itself and the `window - 1` tokens before it in its document."""
    num_tokens = query_BHTC.shape[2]
    query_NHWC = _blocks(query_BHTC, window)
    key_NGVC = _with_previous(_blocks(key_BGTC, window))
    value_NGVC = _with_previous(_blocks(value_BGTC, window))
    # How far back a token may look: its window, or the start of its document. Padding may look at itself alone.
    reach_T = functional.pad(position_T.clamp(max=window - 1), (0, -num_tokens % window))
    reach_NW1 = reach_T.view(-1, window, 1)
    distance_WV = torch.arange(window)[:, None] + window - torch.arange(2 * window)[None, :]
    mask_NWV = (distance_WV >= 0) & (distance_WV <= reach_NW1)
    output_NHWC = functional.scaled_dot_product_attention(
        query_NHWC, key_NGVC, value_NGVC, attn_mask=mask_NWV[:, None], scale=scaling, enable_gqa=True
    )
    return output_NHWC.transpose(0, 1).flatten(1, 2)[None, :, :num_tokens]


def _blocks(x_BHTC: torch.Tensor, window: int) -> torch.Tensor:
    """[1, H, T, C] -> [N, H, W, C], padded with zeros to whole windows."""
    padded_HTC = functional.pad(x_BHTC[0], (0, 0, 0, -x_BHTC.shape[2] % window))
    return padded_HTC.unflatten(1, (-1, window)).transpose(0, 1)


def _with_previous(x_NHWC: torch.Tensor) -> torch.Tensor:
    """Blocks -> each with the block before it in front: [N, H, 2 W, C]."""
    previous_NHWC = functional.pad(x_NHWC[:-1], (0, 0, 0, 0, 0, 0, 1, 0))
    return torch.cat([previous_NHWC, x_NHWC], dim=2)
