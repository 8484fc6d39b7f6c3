"""Lock id -> Checkpoint: the loss falls, does not depend on packing, and survives kill -9."""

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from pipeline.errors import UserError
from pipeline.store import Lake
from pipeline.tokenizer import TokenizerConfig, load_tokenizer, train_tokenizer
from tests.torch.builders import TINY, filled_lake, trajectory
from trainer.data import open_mix
from trainer.model import build_model, load_model
from trainer.sft import SftConfig, accumulate_gradients, plan_steps, rate_share, train

NAMES = ("parse", "split", "join", "strip", "find", "count")
CONFIG = SftConfig(num_epochs=4, bins_per_step=1, save_every_steps=3, learning_rate=5e-3)


def corpus(root: Path, bins: list[list[int]] | None = None) -> tuple[Lake, str, Path]:
    return filled_lake(root, [trajectory(name) for name in NAMES], bins=bins)


def test_loss_falls_and_the_checkpoint_names_its_parents(tmp_path: Path) -> None:
    lake, lock_id, folder = corpus(tmp_path)
    seen: list[tuple[int, int, float, float]] = []
    config = replace(CONFIG, num_epochs=8)
    checkpoint = train(lake, lock_id, config, TINY, folder, lambda *step: seen.append(step))
    assert checkpoint.losses[0] == pytest.approx(math.log(load_tokenizer(folder).vocab_size), rel=0.15)
    assert sum(checkpoint.losses[-3:]) < 0.6 * sum(checkpoint.losses[:3])
    assert (checkpoint.mix_id, checkpoint.tokenizer_id) == (lock_id, load_tokenizer(folder).id)
    assert [(step, total) for step, total, _, _ in seen] == [(step, 24) for step in range(1, 25)]
    assert [loss for _, _, loss, _ in seen] == checkpoint.losses
    mix = open_mix(lake, lock_id)
    assert checkpoint.num_trainable_tokens == 8 * sum(len(mix.batch(index).labels_N) for index in range(len(mix)))
    assert checkpoint.num_parameters == sum(p.numel() for p in load_model(lake.root / checkpoint.path).parameters())


def test_finished_training_is_returned_without_a_step(tmp_path: Path) -> None:
    lake, lock_id, folder = corpus(tmp_path)
    steps: list[int] = []
    first = train(lake, lock_id, CONFIG, TINY, folder)
    again = train(lake, lock_id, replace(CONFIG, save_every_steps=5), TINY, folder, lambda step, *_: steps.append(step))
    assert (again, steps) == (first, [])
    other = train(lake, lock_id, replace(CONFIG, num_steps=1), TINY, folder)
    assert other.path != first.path


def test_altered_weights_of_a_finished_checkpoint_are_noticed(tmp_path: Path) -> None:
    lake, lock_id, folder = corpus(tmp_path)
    config = replace(CONFIG, num_steps=1)
    path = lake.root / train(lake, lock_id, config, TINY, folder).path / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(UserError, match="were altered: remove that folder"):
        train(lake, lock_id, config, TINY, folder)


def test_kill_and_the_same_command_give_the_losses_of_an_undisturbed_run(tmp_path: Path) -> None:
    lake, lock_id, folder = corpus(tmp_path)
    script = (
        "import json, os, signal, sys\n"
        "from pathlib import Path\n"
        "from pipeline.store import Lake\n"
        "from trainer.model import ModelConfig\n"
        "from trainer.sft import SftConfig, train\n"
        "root, lock_id, config, model = sys.argv[1:]\n"
        "def on_step(step, total, loss, rate):\n"
        "    print(step, flush=True)\n"
        "    if step == 8:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "train(Lake(Path(root)), lock_id, SftConfig(**json.loads(config)), ModelConfig(**json.loads(model)),\n"
        "      Path(root) / 'tokenizer', on_step)\n"
    )
    arguments = [str(lake.root), lock_id, json.dumps(asdict(CONFIG)), json.dumps(asdict(TINY))]
    command = [sys.executable, "-c", script, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    killed = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert killed.returncode == -signal.SIGKILL
    assert killed.stdout.split() == [str(step) for step in range(1, 9)]
    assert not list((lake.root / "checkpoints").glob("*/checkpoint.json"))

    steps: list[int] = []
    resumed = train(lake, lock_id, CONFIG, TINY, folder, lambda step, *_: steps.append(step))
    other, other_lock, other_folder = corpus(tmp_path / "undisturbed")
    undisturbed = train(other, other_lock, CONFIG, TINY, other_folder)
    assert steps == list(range(7, 13))
    assert resumed.losses == undisturbed.losses
    assert resumed.weights_hash == undisturbed.weights_hash
    assert resumed.num_trainable_tokens == undisturbed.num_trainable_tokens
    assert not list((lake.root / "checkpoints").glob("*.resume.pt"))


def test_loss_and_gradients_do_not_depend_on_packing_or_number_of_bins(tmp_path: Path) -> None:
    layouts = [[[0, 1, 2, 3, 4, 5]], [[0], [1], [2], [3], [4], [5]], [[5, 0], [4, 1, 3], [2]]]
    found = []
    for number, bins in enumerate(layouts):
        lake, lock_id, folder = corpus(tmp_path / str(number), bins)
        mix, model = open_mix(lake, lock_id), build_model(TINY, load_tokenizer(folder))
        loss, num_trainable = accumulate_gradients(model, [mix.batch(index) for index in range(len(mix))])
        found.append((loss, num_trainable, [p.grad for p in model.parameters() if p.grad is not None]))
    for loss, num_trainable, gradients in found[1:]:
        assert loss == pytest.approx(found[0][0], abs=1e-5)
        assert num_trainable == found[0][1]
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(gradients, found[0][2], strict=True))


def test_loss_is_a_mean_over_tokens_not_over_bins(tmp_path: Path) -> None:
    runs = [trajectory("parse", num_turns=1), trajectory("split", num_turns=5)]
    lake, lock_id, folder = filled_lake(tmp_path, runs, bins=[[0], [1]])
    mix, model = open_mix(lake, lock_id), build_model(TINY, load_tokenizer(folder))
    short, long = (accumulate_gradients(model, [mix.batch(index)]) for index in (0, 1))
    both, num_trainable = accumulate_gradients(model, [mix.batch(0), mix.batch(1)])
    assert num_trainable == short[1] + long[1]
    assert both == pytest.approx((short[0] * short[1] + long[0] * long[1]) / num_trainable, abs=1e-6)
    assert abs(both - (short[0] + long[0]) / 2) > 1e-4


def test_tokenizer_that_did_not_render_the_mix_is_refused(tmp_path: Path) -> None:
    lake, lock_id, _ = corpus(tmp_path)
    train_tokenizer(["other text"], tmp_path / "other", TokenizerConfig(vocab_size=300))
    with pytest.raises(UserError, match="was rendered with tokenizer"):
        train(lake, lock_id, CONFIG, TINY, tmp_path / "other")


def test_context_beyond_the_positions_is_refused(tmp_path: Path) -> None:
    lake, lock_id, folder = corpus(tmp_path)
    with pytest.raises(UserError, match=r"model\.max_positions = 64 is below the mix's context"):
        train(lake, lock_id, CONFIG, replace(TINY, max_positions=64), folder)


def test_bfloat16_trains_on_float32_masters(tmp_path: Path) -> None:
    lake, lock_id, folder = corpus(tmp_path)
    checkpoint = train(lake, lock_id, replace(CONFIG, precision="bfloat16"), TINY, folder)
    assert sum(checkpoint.losses[-3:]) < 0.7 * sum(checkpoint.losses[:3])
    weight = load_model(lake.root / checkpoint.path).lm_head.weight
    assert weight.dtype == torch.float32
    assert not torch.equal(weight, weight.bfloat16().float())


def test_steps_walk_the_bins_in_order_epoch_after_epoch() -> None:
    config = SftConfig(num_epochs=2, bins_per_step=2)
    assert plan_steps(5, config) == [[0, 1], [2, 3], [4], [0, 1], [2, 3], [4]]
    assert plan_steps(5, replace(config, num_steps=4)) == [[0, 1], [2, 3], [4], [0, 1]]


def test_rate_rises_then_follows_the_cosine() -> None:
    config = SftConfig(warmup_share=0.2, final_share=0.1)
    rates = [rate_share(step, 10, config) for step in range(10)]
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert rates[6] == pytest.approx(0.55)
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[9] == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi * 7 / 8)) / 2)
