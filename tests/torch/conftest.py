"""One compute thread: tiny tensors gain nothing from more, and lose much on a busy machine."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)
