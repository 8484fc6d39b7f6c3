"""Area mix: packing against TRL, solving against `datasets.interleave_datasets`, composition against pyarrow."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import datasets
import numpy as np
import pyarrow.dataset as ds

from mixes.catalog import query
from mixes.intent import MixIntent, override, read_intent
from mixes.manifest import MixManifest
from mixes.pack import pack
from mixes.pool import Pool, read_pool
from mixes.solve import solve, solve_and_lock
from pipeline.store import Item, Lake, Outcome, finish_stage, run_shard
from pipeline.types import Sample, with_id
from tests.bench.figure import Figure, compare, timed

ROOT = Path(__file__).parents[2]
NUM_PACKED = 1_000_000
NUM_SAMPLES = 100_000
CONTEXT = 65_536
NUM_PEER_PACKED = 200_000
"""The peer of packing works on 1,000 rows at a time: its seconds for these are multiplied to a million."""
SCALE = 16
"""The peer of packing copies tokens: for it, lengths and context are divided by this."""
SAMPLES_PER_SHARD = 5_000
DOMAINS = ("agentic_code", "single_turn_code", "reasoning")
SUPPLY = (0.5, 0.3, 0.2)
"""Share of samples by domain."""
MEDIAN_TOKENS = (12_000, 3_000, 2_000)
TRAINABLE = (0.2, 0.85, 0.6)
"""Share of trainable tokens by domain, on average."""
COMPOSITION = (
    "SELECT domain, harness, count(*) AS samples, sum(num_tokens) AS tokens, sum(num_trainable) AS trainable "
    "FROM samples GROUP BY domain, harness ORDER BY domain, harness"
)


def measure(folder: Path) -> list[Figure]:
    """Working folder -> figures."""
    return [*packing_figures(folder), *mix_figures(folder)]


def lognormal(count: int, context: int, seed: int) -> np.ndarray:
    """Lengths like those of agent trajectories, none over the context; median 12,000 tokens, sigma 1."""
    lengths = np.exp(np.random.default_rng(seed).normal(np.log(12_000), 1, 2 * count)).astype(np.int64)
    return lengths[(lengths <= context) & (lengths >= 2 * SCALE)][:count]


def packing_figures(folder: Path) -> list[Figure]:
    """A million lengths, ours and TRL's; and the same lengths at full size, which no copying peer can hold."""
    full = lognormal(NUM_PACKED, CONTEXT, 0)
    seconds_full, packed_full = timed(lambda: pack(full, CONTEXT, 1), repeats=3)
    small = full // SCALE
    seconds, packed = timed(lambda: pack(small, CONTEXT // SCALE, 1), repeats=3)
    peer, reason = trl_packing(folder, small[:NUM_PEER_PACKED])
    peer_seconds, peer_waste, name, scaled = None, None, "trl pack_dataset", "trl pack_dataset"
    if peer:
        name = f"trl {peer['version']} pack_dataset(bfd)"
        scaled = f"{name}, copies tokens; {NUM_PEER_PACKED:,} rows x {NUM_PACKED // NUM_PEER_PACKED}"
        peer_seconds = peer["seconds"] * NUM_PACKED / NUM_PEER_PACKED
        peer_waste = 1 - peer["tokens"] / (peer["bins"] * CONTEXT // SCALE)
    too_much = f"a peer that copies tokens would need {full.sum() / 1e9:.0f}G of them"
    wasted = "mix_pack_waste_share"
    return [
        compare("mix_pack_1m_seconds", "s", seconds, scaled, peer_seconds, more_is_better=False, reason=reason),
        compare(wasted, "share", packed.waste_share, name, peer_waste, more_is_better=False, reason=reason),
        compare("mix_pack_1m_64k_seconds", "s", seconds_full, "", None, more_is_better=False, reason=too_much),
        compare(
            "mix_pack_64k_waste_share",
            "share",
            packed_full.waste_share,
            "",
            None,
            more_is_better=False,
            reason=too_much,
        ),
    ]


def trl_packing(folder: Path, lengths: np.ndarray) -> tuple[dict[str, float] | None, str]:
    """Lengths -> what TRL made of them, or None and the reason. TRL is installed beside, not into, the environment."""
    peers = folder / "peers"
    if not (peers / "trl").exists():
        install = ["pip", "install", "--quiet", "--no-deps", "--target", str(peers), "trl"]
        uv = Path(sys.executable).with_name("uv")
        command = [str(uv), *install, "--python", sys.executable] if uv.exists() else [sys.executable, "-m", *install]
        if subprocess.run(command, check=False).returncode:
            return None, "trl could not be installed"
    np.save(folder / "lengths.npy", lengths)
    done = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).with_name("trl_pack.py")),
            str(folder / "lengths.npy"),
            str(CONTEXT // SCALE),
        ],
        env={**os.environ, "PYTHONPATH": str(peers), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return None, f"trl failed: {done.stderr.strip().splitlines()[-1][:120]}"
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found, ""


def mix_figures(folder: Path) -> list[Figure]:
    """A lake of 100,000 samples: solve, lock, ask."""
    root = folder / "mix_lake"
    shutil.rmtree(root, ignore_errors=True)
    lake = synthetic_lake(root)
    intent = override(read_intent(ROOT / "mixes" / "stage1.toml"), context=CONTEXT)
    pool = read_pool(lake)
    solve_seconds, solution = timed(lambda: solve(pool, intent), repeats=3)
    error = max(abs(one.error) for one in solution.constraints)
    lock_seconds, manifest = timed(lambda: solve_and_lock(lake, intent))
    peer = interleaved(pool, intent)
    query_seconds, _ = timed(lambda: query(lake, COMPOSITION), repeats=3)
    arrow_seconds, _ = timed(lambda: arrow_composition(lake), repeats=3)
    view_seconds, _ = timed(lambda: query(lake, COMPOSITION.replace("samples GROUP", "mix GROUP"), manifest))
    name = f"datasets {datasets.__version__} interleave_datasets"
    none = "no peer locks a mix"
    recounted = recount(lake, manifest)
    shutil.rmtree(root)
    return [
        compare("mix_solve_100k_seconds", "s", solve_seconds, name, peer.seconds, more_is_better=False),
        compare("mix_share_error", "share", error, name, peer.error, more_is_better=False),
        compare(
            "mix_budget_used_share",
            "share",
            solution.budget.reached / solution.budget.largest,
            name,
            peer.trainable / solution.budget.largest,
            more_is_better=True,
        ),
        compare("mix_recount_error", "share", recounted, "", None, more_is_better=False, reason="certificate of ours"),
        compare("mix_lock_100k_seconds", "s", lock_seconds, "", None, more_is_better=False, reason=none),
        compare(
            "mix_query_composition_seconds",
            "s",
            query_seconds,
            "pyarrow.dataset group_by",
            arrow_seconds,
            more_is_better=False,
        ),
        compare("mix_query_view_seconds", "s", view_seconds, "", None, more_is_better=False, reason=none),
    ]


def synthetic_lake(root: Path) -> Lake:
    """100,000 samples with long-tailed lengths, in shards of 5,000."""
    draw = np.random.default_rng(7)
    domain = draw.choice(3, NUM_SAMPLES, p=SUPPLY)
    tokens = np.exp(draw.normal(np.log(np.array(MEDIAN_TOKENS)[domain]), 1)).astype(int) + 8
    trainable = np.clip(draw.normal(np.array(TRAINABLE)[domain], 0.05), 0.02, 1)
    agents = draw.choice(["swe-agent", "mini-swe-agent", "opencode", "terminus-2"], NUM_SAMPLES)
    lake = Lake(root)
    names = []
    for start in range(0, NUM_SAMPLES, SAMPLES_PER_SHARD):
        records = tuple(
            synthetic_sample(place, DOMAINS[domain[place]], str(agents[place]), int(tokens[place]), trainable[place])
            for place in range(start, start + SAMPLES_PER_SHARD)
        )
        names.append(f"{start:06d}")
        run_shard(lake, "render", names[-1], [Item(names[-1], "", records)], lambda made: Outcome("ok", "", made))
    finish_stage(lake, "render", names)
    return lake


def synthetic_sample(place: int, domain: str, agent: str, num_tokens: int, share: float) -> Sample:
    """One sample; its token ids play no part in solving and are left out."""
    is_agent = domain == "agentic_code"
    return with_id(
        Sample(
            trajectory_id=f"trajectory-{place}",
            task_id=f"task-{place // 3}",
            repo=f"repo-{place % 997}",
            domain=domain,  # type: ignore[arg-type]
            harness=agent if is_agent else "single-turn",
            modality="native_tools" if is_agent and agent != "terminus-2" else "plain_text",
            teacher="oracle",
            is_resolved=True,
            tokenizer_id="bench",
            token_ids=[],
            train_spans=[],
            num_tokens=num_tokens,
            num_assistant=max(1, int(num_tokens * share)),
            num_trainable=max(1, int(num_tokens * share)),
            num_reasoning=0,
            num_tool_call=0,
        )
    )


class Interleaved(NamedTuple):
    """What the peer came to."""

    seconds: float
    error: float
    """Largest error of a share of trainable tokens."""
    trainable: int


def interleaved(pool: Pool, intent: MixIntent) -> Interleaved:
    """Pool -> the peer's mix: sources drawn at random, with probabilities corrected by their mean trainable tokens."""
    fits = pool.num_tokens <= intent.context_tokens
    asked = {share.name: share.share for share in intent.shares if share.name in DOMAINS}
    columns = [pool.num_trainable[fits & (pool.columns["domain"] == name)] for name in asked]
    sources = [
        datasets.Dataset.from_dict({"trainable": column, "domain": np.full(len(column), place)})
        for place, column in enumerate(columns)
    ]
    rates = np.array([share / column.mean() for share, column in zip(asked.values(), columns, strict=True)])
    seconds, mixed = timed(
        lambda: datasets.interleave_datasets(
            sources, probabilities=(rates / rates.sum()).tolist(), seed=1, stopping_strategy="first_exhausted"
        ).with_format("numpy")[:],
        repeats=3,
    )
    reached = np.bincount(mixed["domain"], mixed["trainable"], len(asked)) / mixed["trainable"].sum()
    error = float(np.abs(reached - np.array(list(asked.values()))).max())
    return Interleaved(seconds, error, int(mixed["trainable"].sum()))


def arrow_composition(lake: Lake) -> int:
    """The composition query in pyarrow's own engine, over the same files."""
    columns = ["domain", "harness", "num_tokens", "num_trainable"]
    table = ds.dataset([str(path) for path in lake.files("samples")]).to_table(columns=columns)
    sums = [("num_tokens", "count"), ("num_tokens", "sum"), ("num_trainable", "sum")]
    return len(table.group_by(["domain", "harness"]).aggregate(sums).sort_by("domain"))


def recount(lake: Lake, manifest: MixManifest) -> float:
    """Manifest -> largest difference between its shares and those counted by SQL over the selected samples."""
    sql = "SELECT domain, sum(num_trainable) / (SELECT sum(num_trainable) FROM mix) FROM mix GROUP BY domain"
    counted = {f"domain={domain}": share for domain, share in query(lake, sql, manifest).rows}
    return max(abs(counted[one.slice] - one.trainable_share) for one in manifest.constraints if one.slice in counted)
