"""Packed rows: attention stays inside documents and equals transformers' own."""

import copy

import pytest
import torch
from transformers import Cohere2MoeForCausalLM

from pipeline.tokenizer import ChatTokenizer, TokenizerConfig, load_tokenizer, train_tokenizer
from tests.torch.builders import TINY
from trainer.data import Batch, Document, pack_documents
from trainer.model import build_model, hidden_states

LENGTHS = [40, 7, 64, 1, 33]
"""Shorter and longer than a window of 16, multiples of it and not."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(["a b c"], folder, TokenizerConfig(vocab_size=300))
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def model(tokenizer: ChatTokenizer) -> Cohere2MoeForCausalLM:
    return build_model(TINY, tokenizer)


def documents(seed: int = 0) -> list[Document]:
    generator = torch.Generator().manual_seed(seed)
    return [
        Document(torch.randint(0, 279, (length,), generator=generator).tolist(), [1, length] if length > 1 else [])
        for length in LENGTHS
    ]


def hidden(model: Cohere2MoeForCausalLM, batch: Batch) -> torch.Tensor:
    return hidden_states(model, batch.token_ids_BT, batch.position_ids_BT)[0]


def test_packed_hidden_states_equal_those_of_each_document_alone(model: Cohere2MoeForCausalLM) -> None:
    packed = hidden(model, pack_documents(documents()))
    alone = torch.cat([hidden(model, pack_documents([document])) for document in documents()])
    assert torch.allclose(packed, alone, atol=1e-5)


def test_packed_gradients_equal_those_of_each_document_alone(model: Cohere2MoeForCausalLM) -> None:
    weight = torch.linspace(-1, 1, TINY.hidden_size)

    def gradients(batches: list[Batch]) -> list[torch.Tensor]:
        model.zero_grad()
        for batch in batches:
            (hidden(model, batch) @ weight).sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    packed = gradients([pack_documents(documents())])
    alone = gradients([pack_documents([document]) for document in documents()])
    assert len(packed) == len(alone) == len(list(model.parameters()))
    for one, other in zip(packed, alone, strict=True):
        assert (one - other).abs().max() <= 1e-5 * max(1.0, one.abs().max().item())


def test_a_document_does_not_feel_its_neighbours(model: Cohere2MoeForCausalLM) -> None:
    others = documents(seed=1)
    others[2] = documents()[2]
    start, end = sum(LENGTHS[:2]), sum(LENGTHS[:3])
    before = hidden(model, pack_documents(documents()))[start:end]
    after = hidden(model, pack_documents(others))[start:end]
    assert torch.allclose(before, after, atol=1e-5)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 100])
def test_document_attention_equals_that_of_transformers(
    model: Cohere2MoeForCausalLM, implementation: str, length: int
) -> None:
    reference = Cohere2MoeForCausalLM._from_config(
        copy.deepcopy(model.config), attn_implementation=implementation, dtype=torch.float32
    )
    reference.load_state_dict(model.state_dict())
    ids_BT = torch.arange(length)[None] * 7 % 279
    ours = hidden_states(model, ids_BT, torch.arange(length)[None])
    theirs = reference.model(input_ids=ids_BT, use_cache=False).last_hidden_state
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_a_token_out_of_every_window_still_reaches_the_end_through_global_layers_only(
    tokenizer: ChatTokenizer, model: Cohere2MoeForCausalLM
) -> None:
    """The window is counted right: with sliding layers only, W tokens a layer can carry a change, not one more."""
    config = copy.deepcopy(model.config)
    config.layer_types = ["sliding_attention"] * TINY.num_layers
    sliding = Cohere2MoeForCausalLM._from_config(config, dtype=torch.float32)
    reach = (TINY.sliding_window - 1) * TINY.num_layers
    ids_BT = torch.arange(reach + 2)[None] % 279
    changed_BT = ids_BT.clone()
    changed_BT[0, 0] = 100
    position_ids_BT = torch.arange(reach + 2)[None]
    before = hidden_states(sliding, ids_BT, position_ids_BT)[0]
    after = hidden_states(sliding, changed_BT, position_ids_BT)[0]
    assert torch.equal(before[reach + 1], after[reach + 1])
    assert not torch.equal(before[reach], after[reach])
