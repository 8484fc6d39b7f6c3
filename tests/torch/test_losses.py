"""Chunked log-probs equal a float64 loop and the naive full logits, values and gradients."""

import math

import pytest
import torch

from trainer.losses import cross_entropy_sum, token_logprobs

NUM_TOKENS, NUM_CHANNELS, NUM_WORDS = 37, 8, 50
SCALE = 0.7


def inputs(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden_ND = torch.randn(NUM_TOKENS, NUM_CHANNELS, generator=generator, dtype=torch.float64)
    head_VD = torch.randn(NUM_WORDS, NUM_CHANNELS, generator=generator, dtype=torch.float64)
    labels_N = torch.randint(0, NUM_WORDS, (NUM_TOKENS,), generator=generator)
    return hidden_ND.to(dtype).requires_grad_(), head_VD.to(dtype).requires_grad_(), labels_N


def loop_logprobs(hidden_ND: torch.Tensor, head_VD: torch.Tensor, labels_N: torch.Tensor) -> list[float]:
    """The definition, one number at a time."""
    found = []
    for hidden_D, label in zip(hidden_ND.tolist(), labels_N.tolist(), strict=True):
        logits = [SCALE * sum(a * b for a, b in zip(hidden_D, row, strict=True)) for row in head_VD.tolist()]
        found.append(logits[label] - math.log(sum(math.exp(logit) for logit in logits)))
    return found


@pytest.mark.parametrize("chunk_tokens", [1, 5, 36, 37, 1000])
def test_logprobs_equal_a_loop_in_float64(chunk_tokens: int) -> None:
    hidden_ND, head_VD, labels_N = inputs()
    found = token_logprobs(hidden_ND, head_VD, labels_N, logit_scale=SCALE, chunk_tokens=chunk_tokens)
    assert found.tolist() == pytest.approx(loop_logprobs(hidden_ND, head_VD, labels_N), abs=1e-12)


@pytest.mark.parametrize("chunk_tokens", [5, 37])
def test_gradients_equal_those_of_full_logits(chunk_tokens: int) -> None:
    hidden_ND, head_VD, labels_N = inputs()
    weights_N = torch.linspace(-1, 2, NUM_TOKENS, dtype=torch.float64)
    ours = token_logprobs(hidden_ND, head_VD, labels_N, logit_scale=SCALE, chunk_tokens=chunk_tokens)
    (ours * weights_N).sum().backward()
    naive_hidden_ND, naive_head_VD, _ = inputs()
    logprobs_NV = torch.log_softmax(naive_hidden_ND @ naive_head_VD.T * SCALE, dim=1)
    (logprobs_NV[torch.arange(NUM_TOKENS), labels_N] * weights_N).sum().backward()
    assert hidden_ND.grad is not None and head_VD.grad is not None
    assert torch.allclose(hidden_ND.grad, naive_hidden_ND.grad, atol=1e-12)
    assert torch.allclose(head_VD.grad, naive_head_VD.grad, atol=1e-12)


def test_gradients_equal_finite_differences() -> None:
    hidden_ND, head_VD, labels_N = inputs()

    def loss(hidden: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        return cross_entropy_sum(hidden, head, labels_N[:4], logit_scale=SCALE, chunk_tokens=3)

    few = hidden_ND[:4].detach().requires_grad_()
    assert torch.autograd.gradcheck(loss, (few, head_VD))


def test_cross_entropy_of_even_odds_is_the_log_of_the_vocabulary_per_token() -> None:
    hidden_ND, head_VD, labels_N = inputs()
    loss = cross_entropy_sum(torch.zeros_like(hidden_ND), head_VD, labels_N, logit_scale=SCALE)
    assert loss.item() == pytest.approx(NUM_TOKENS * math.log(NUM_WORDS))


def test_bfloat16_is_scored_in_float32() -> None:
    hidden_ND, head_VD, labels_N = inputs(torch.bfloat16)
    found = token_logprobs(hidden_ND, head_VD, labels_N, logit_scale=SCALE)
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(loop_logprobs(hidden_ND, head_VD, labels_N), abs=0.05)


def test_no_tensor_of_tokens_by_vocabulary_is_kept_for_the_backward_pass() -> None:
    hidden_ND, head_VD, labels_N = inputs()
    shapes: list[torch.Size] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        shapes.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        token_logprobs(hidden_ND, head_VD, labels_N, logit_scale=SCALE, chunk_tokens=5).sum()
    assert head_VD.shape in shapes
    assert not [shape for shape in shapes if len(shape) == 2 and shape[1] == NUM_WORDS]
