"""A mix has the shares it was asked for, in trainable tokens, and does not depend on how the lake is laid out."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixes.intent import Budget, MixIntent, Requirements, Share, Slice, override, read_intent
from mixes.manifest import MixManifest, Reached, load
from mixes.pool import Pool
from mixes.solve import Solution, solve, solve_and_lock
from pipeline.errors import UserError
from pipeline.store import Lake
from tests.unit.builders import sample, source, task
from tests.unit.mixes.lakes import add_records, intent, numbered

AGENTIC, REASONING, SINGLE = "agentic_code", "reasoning", "single_turn_code"
STAGE_1 = Path(__file__).parents[3] / "mixes" / "stage1.toml"


def pool(sizes: dict[str, list[tuple[int, int]]], **columns: Any) -> Pool:
    """Domain -> (total, trainable) tokens of its samples."""
    rows = sorted(
        (f"{domain}-{number:06d}", domain, *tokens)
        for domain, samples in sizes.items()
        for number, tokens in enumerate(samples)
    )
    count = len(rows)
    constant = {"harness": "h", "modality": "native_tools", "teacher": "oracle", "repo": "r", "licence": "MIT"}
    text = {name: np.full(count, value) for name, value in constant.items()}
    names = {"id": [row[0] for row in rows], "task_id": [row[0] for row in rows], "domain": [row[1] for row in rows]}
    return Pool(
        columns=text | {name: np.array(values, np.str_) for name, values in (names | columns).items()},
        num_tokens=np.array([row[2] for row in rows], np.int64),
        num_trainable=np.array([row[3] for row in rows], np.int64),
        is_resolved=np.ones(count, bool),
        tokenizer_id="k",
    )


def by_name(constraints: list[Reached]) -> dict[str, Reached]:
    return {one.name: one for one in constraints}


def taken(solution: Solution, domain: str) -> int:
    return int(solution.counts[solution.pool.columns["domain"] == domain].sum())


def test_shares_are_of_trainable_tokens_not_of_samples_or_of_all_tokens() -> None:
    solution = solve(pool({AGENTIC: [(1000, 50)] * 40, REASONING: [(40, 10)] * 400}), intent())
    assert (taken(solution, AGENTIC), taken(solution, REASONING)) == (40, 200)
    agentic = by_name(solution.constraints)["agentic"]
    assert (agentic.trainable_share, agentic.num_trainable) == (0.5, 2000)
    assert agentic.total_share == 40_000 / 48_000


def test_a_share_of_total_tokens_counts_all_tokens() -> None:
    shares = tuple(replace(share, unit="total") for share in intent().shares)
    solution = solve(pool({AGENTIC: [(1000, 50)] * 40, REASONING: [(40, 10)] * 500}), intent(shares=shares))
    assert (taken(solution, AGENTIC), taken(solution, REASONING)) == (20, 500)
    assert by_name(solution.constraints)["agentic"].total_share == 0.5


def test_stage_1_is_met_exactly_on_a_synthetic_pool_of_long_tailed_lengths() -> None:
    draw = np.random.default_rng(3)
    sizes = {}
    for domain, count, median, share in (
        (AGENTIC, 900, 12_000, 0.2),
        (SINGLE, 900, 3_000, 0.85),
        (REASONING, 900, 2e3, 0.6),
    ):
        total = np.exp(draw.normal(np.log(median), 1, count)).astype(int) + 8
        sizes[domain] = [(int(size), int(size * share)) for size in total]
    solution = solve(pool(sizes), read_intent(STAGE_1))
    for one in solution.constraints:
        assert abs(one.trainable_share - one.share) < 1e-4
    assert solution.excluded["over_context"].num_samples > 0
    assert solution.budget.reached >= 0.9999 * solution.budget.largest


def test_a_bound_of_a_slice_within_a_slice_holds_and_leaves_the_rest_free() -> None:
    plenty = pool({AGENTIC: [(100, 50)] * 100, REASONING: [(100, 50)] * 100})
    plenty.columns["harness"][:60] = "x"
    shares = (
        Share(name="reasoning", slice=Slice(domain=(REASONING,)), share=0.4, op=">="),
        Share(name="x", slice=Slice(harness=("x",)), base=Slice(domain=(AGENTIC,)), share=0.2, op="<=", tolerance=0),
    )
    solution = solve(plenty, intent(shares=shares))
    found = by_name(solution.constraints)
    assert found["x"].trainable_share == pytest.approx(0.2)
    assert found["x"].num_samples == 10
    assert found["reasoning"].num_samples == 100
    assert solution.budget.largest == pytest.approx(7500, abs=1)
    assert found["reasoning"].trainable_share == pytest.approx(2 / 3)


def test_a_stated_budget_is_reached_in_its_unit() -> None:
    sizes = {AGENTIC: [(100, 50)] * 100, REASONING: [(100, 10)] * 600}
    solution = solve(pool(sizes), intent(budget=Budget(unit="total", value=30_000)))
    assert solution.budget.reached == 30_000
    assert (taken(solution, AGENTIC), taken(solution, REASONING)) == (50, 250)
    assert solution.excluded["surplus"].num_samples == 400


def test_cells_that_no_share_tells_apart_are_used_at_one_rate() -> None:
    mixed = pool({AGENTIC: [(100, 50)] * 300, REASONING: [(100, 50)] * 100})
    mixed.columns["harness"][:100] = "x"
    solution = solve(mixed, intent())
    used = solution.counts[solution.pool.columns["harness"] == "x"].sum()
    assert (used, taken(solution, AGENTIC)) == (33, 100)


def test_repeats_fill_a_budget_up_to_their_cap_and_only_when_needed() -> None:
    sizes = {AGENTIC: [(100, 50)] * 10, REASONING: [(100, 50)] * 100}
    wanted = intent(budget=Budget(value=1500), repeat_cap=2)
    solution = solve(pool(sizes), wanted)
    is_agentic = solution.pool.columns["domain"] == AGENTIC
    assert sorted(solution.counts[is_agentic].tolist()) == [1] * 5 + [2] * 5
    assert solution.counts[~is_agentic].max() == 1
    with pytest.raises(UserError, match=r"at most 2 times\): the largest feasible budget is 2,000 trainable tokens"):
        solve(pool(sizes), replace(wanted, budget=Budget(value=2100)))


def test_a_slice_that_can_do_without_repeats_has_none_beside_one_that_cannot() -> None:
    sizes = pool({AGENTIC: [(100, 50)] * 100, REASONING: [(100, 50)] * 40})
    sizes.columns["harness"][100:110] = "x"
    shares = (
        Share(name="agentic", slice=Slice(domain=(AGENTIC,)), share=0.8),
        Share(name="x", slice=Slice(harness=("x",)), share=0.9, op="<="),
    )
    solution = solve(sizes, intent(shares=shares, budget=Budget(value=9000), repeat_cap=2))
    is_agentic = solution.pool.columns["domain"] == AGENTIC
    assert (solution.counts[is_agentic].sum(), solution.counts[~is_agentic].sum()) == (144, 36)
    assert solution.counts[~is_agentic].max() == 1


def test_shares_of_total_tokens_are_met_though_every_sample_has_a_ratio_of_its_own() -> None:
    draw = np.random.default_rng(5)
    sizes = {
        domain: [
            (int(total), int(total * share)) for total, share in zip(draw.integers(50, 900, 300), shares, strict=True)
        ]
        for domain, shares in ((AGENTIC, draw.uniform(0.1, 0.9, 300)), (REASONING, draw.uniform(0.1, 0.9, 300)))
    }
    shares = tuple(replace(share, unit="total") for share in intent().shares)
    solution = solve(pool(sizes), intent(shares=shares, budget=Budget(value=20_000)))
    assert all(abs(one.error) <= one.tolerance == 0.001 for one in solution.constraints)


def test_a_few_coarse_samples_are_combined_to_the_exact_share_where_they_can_be() -> None:
    solution = solve(pool({AGENTIC: [(10, 5), (100, 60)], REASONING: [(100, 60), (100, 30)]}), intent())
    assert [one.trainable_share for one in solution.constraints] == [0.5, 0.5]
    assert solution.budget.reached == 120


def test_the_largest_budget_is_given_up_in_steps_where_whole_samples_cannot_reach_it() -> None:
    sizes = {AGENTIC: [(100, 7), (100, 60), (100, 20)], REASONING: [(200, 100), (100, 60)]}
    solution = solve(pool(sizes), intent())
    assert [one.error for one in solution.constraints] == [0, 0]
    assert (solution.budget.reached, solution.budget.largest) == (120, 174)
    assert len(solution.budgets_tried) > 1


def test_half_the_smallest_sample_is_accepted_and_reported_as_the_tolerance() -> None:
    solution = solve(pool({AGENTIC: [(200, 100)], REASONING: [(100, 70)]}), intent())
    agentic = by_name(solution.constraints)["agentic"]
    assert agentic.trainable_share == 100 / 170
    assert agentic.tolerance == 50 / 170


def test_an_infeasible_budget_names_slice_need_supply_and_the_largest_budget_which_then_works() -> None:
    scarce = pool({AGENTIC: [(100, 50)] * 100, REASONING: [(100, 50)] * 20})
    with pytest.raises(UserError) as failure:
        solve(scarce, intent(budget=Budget(value=5000)))
    assert str(failure.value) == (
        "mix stage1 cannot have 5,000 trainable tokens: slice reasoning needs 2,500 trainable tokens and has 1,000 "
        "(each sample at most 1 times): the largest feasible budget is 2,000 trainable tokens; "
        "lower budget.value, raise repeat_cap or add samples"
    )
    assert solve(scarce, intent(budget=Budget(value=2000))).budget.reached == 2000


def test_a_slice_without_samples_is_named() -> None:
    with pytest.raises(UserError, match=r"slice reasoning \(domain=reasoning\) needs 50.0% of the whole and has 0"):
        solve(pool({AGENTIC: [(100, 50)] * 10}), intent())
    with pytest.raises(UserError, match="needs 450 trainable tokens"):
        solve(pool({AGENTIC: [(100, 50)] * 10}), intent(budget=Budget(value=900)))


def test_shares_that_contradict_each_other_are_named_without_the_innocent() -> None:
    shares = (
        Share(name="innocent", slice=Slice(harness=("h",)), share=0.5, op=">="),
        Share(name="most", slice=Slice(domain=(AGENTIC,)), share=0.7, op=">="),
        Share(name="other_most", slice=Slice(domain=(REASONING,)), share=0.6),
    )
    with pytest.raises(UserError, match="shares most, other_most contradict each other"):
        solve(pool({AGENTIC: [(100, 50)] * 10, REASONING: [(100, 50)] * 10}), intent(shares=shares))


def test_samples_too_coarse_for_a_share_are_an_error_that_says_so() -> None:
    few = pool({AGENTIC: [(1000, 100)] * 2 + [(1000, 1)], REASONING: [(1000, 71)] * 2 + [(1000, 1)]})
    shares = tuple(replace(share, tolerance=0.0) for share in intent().shares)
    with pytest.raises(UserError, match=r"slice agentic reaches .* samples are too few and too large"):
        solve(few, intent(shares=shares, budget=Budget(value=200)))


def test_what_cannot_be_used_is_excluded_and_listed(lake: Lake) -> None:
    normal = [*numbered(10), *numbered(10, domain=REASONING)]
    long = sample(trajectory_id="long", num_tokens=1001, num_trainable=900)
    fits = sample(trajectory_id="fits", task_id="fits", num_tokens=1000, num_trainable=50)
    silent = sample(trajectory_id="silent", num_tokens=100, num_trainable=0)
    failed = sample(trajectory_id="failed", num_tokens=100, num_trainable=50, is_resolved=False)
    add_records(lake, "render", [*normal, long, fits, silent, failed])
    manifest = solve_and_lock(lake, intent())
    assert manifest.excluded["over_context"].sample_ids == [long.id]
    assert manifest.excluded["over_context"].num_tokens == 1001
    assert manifest.excluded["zero_trainable"].sample_ids == [silent.id]
    assert manifest.excluded["unresolved"].sample_ids == [failed.id]
    assert fits.id in manifest.sample_ids or manifest.excluded["surplus"].num_samples == 1
    assert not {long.id, silent.id, failed.id} & set(manifest.sample_ids)
    relaxed = solve_and_lock(lake, intent(requirements=Requirements(is_resolved=False)))
    assert "unresolved" not in relaxed.excluded


def test_no_task_gives_more_samples_than_its_cap(lake: Lake) -> None:
    same_task = [sample(trajectory_id=f"s{number}", num_tokens=100, num_trainable=50) for number in range(9)]
    add_records(lake, "render", [*same_task, *numbered(3), *numbered(10, domain=REASONING)])
    manifest = solve_and_lock(lake, intent(task_cap=2))
    assert manifest.excluded["task_cap"].num_samples == 7
    assert by_name(manifest.constraints)["agentic"].num_samples == 5


def many(seed: int) -> list[Any]:
    draw = random.Random(seed)
    samples = [
        sample(
            trajectory_id=str(number),
            task_id=str(number),
            domain=draw.choice([AGENTIC, REASONING]),
            harness=draw.choice(["a", "b"]),
            num_tokens=draw.randint(100, 1000),
            num_trainable=draw.randint(10, 90),
        )
        for number in range(300)
    ]
    return samples


def test_the_lock_id_does_not_depend_on_row_order_or_shard_layout(tmp_path: Path) -> None:
    samples = many(1)
    shuffled = random.Random(2).sample(samples, len(samples))
    first, second = Lake(tmp_path / "first"), Lake(tmp_path / "second")
    add_records(first, "render", samples, shard_size=200)
    add_records(second, "render_a", shuffled[:77], shard_size=20)
    add_records(second, "render_b", shuffled[77:], shard_size=50)
    one, two = (solve_and_lock(lake, intent()) for lake in (first, second))
    assert one.id == two.id
    assert one.sample_ids == two.sample_ids
    assert len(one.shards) < len(two.shards)
    assert solve_and_lock(first, intent()).id == one.id
    assert load(second, one.id[:8]) == two


def test_another_seed_or_sample_gives_another_lock_with_the_same_shares(lake: Lake) -> None:
    add_records(lake, "render", many(1))
    one, two = (solve_and_lock(lake, intent(seed=seed)) for seed in (1, 2))
    assert one.id != two.id
    assert set(one.sample_ids) != set(two.sample_ids)
    add_records(lake, "more", numbered(1))
    assert solve_and_lock(lake, intent(seed=1)).id not in (one.id, two.id)
    for manifest in (one, two):
        assert all(abs(entry.trainable_share - 0.5) < 0.001 for entry in manifest.constraints)


def test_samples_stand_in_an_order_that_follows_the_seed_and_not_their_ids(lake: Lake) -> None:
    add_records(lake, "render", [*numbered(20), *numbered(20, domain=REASONING)])
    one, two = (solve_and_lock(lake, intent(seed=seed)) for seed in (1, 2))
    assert sorted(one.sample_ids) == sorted(two.sample_ids)
    assert len({tuple(one.sample_ids), tuple(two.sample_ids), tuple(sorted(one.sample_ids))}) == 3


def test_samples_of_two_tokenizers_are_refused(lake: Lake) -> None:
    add_records(lake, "render", [*numbered(2), *numbered(2, domain=REASONING, tokenizer_id="other")])
    with pytest.raises(UserError, match=r"rendered with 2 tokenizers \(k, other\)"):
        solve_and_lock(lake, intent())


def test_an_empty_lake_is_an_error_with_a_remedy(lake: Lake) -> None:
    with pytest.raises(UserError, match="has no sample to choose from: render samples first"):
        solve_and_lock(lake, intent())


def test_the_manifest_holds_bins_composition_and_the_policy_that_made_it(lake: Lake) -> None:
    mit, gpl = task(seed=1), task(seed=2, source=source(licence="GPL-3.0-only"))
    add_records(lake, "tasks", [mit, gpl])
    add_records(
        lake,
        "render",
        [
            sample(trajectory_id="a", task_id=mit.id, num_tokens=300, num_trainable=50),
            sample(trajectory_id="b", task_id=gpl.id, num_tokens=500, num_trainable=50, harness="opencode"),
            *numbered(2, domain=REASONING, num_tokens=150),
        ],
    )
    manifest = solve_and_lock(lake, intent())
    assert sorted(place for members in manifest.packing.bins for place in members) == [0, 1, 2, 3]
    assert len(manifest.packing.bins) == 2
    assert manifest.packing.waste_share == pytest.approx(1 - 1100 / 2000)
    parts = {(part.dimension, part.value): part for part in manifest.composition}
    assert parts["licence", "GPL-3.0-only"].num_tokens == 500
    assert parts["licence", "unknown"].trainable_share == 0.5
    assert parts["harness", "opencode"].total_share == pytest.approx(500 / 1100)
    assert manifest.mask_policy["filters"]["invalid_tool_call"] >= 1
    assert manifest.mask_policy["settings"]["repetition"] == "drop"
    assert manifest.loss_normalisation == "global_token_mean"
    assert manifest.record().num_trainable == manifest.num_trainable == 200


def recount(manifest: MixManifest, samples: list[Any]) -> dict[str, float]:
    """Shares of the manifest, counted again from its list of sample ids alone."""
    known = {one.id: one for one in samples}
    uses = [known[name] for name in manifest.sample_ids]
    whole = sum(one.num_trainable for one in uses)
    return {
        entry.name: sum(one.num_trainable for one in uses if f"domain={one.domain}" == entry.slice) / whole
        for entry in manifest.constraints
    }


def test_a_recount_of_the_selected_samples_gives_the_shares_of_the_manifest(lake: Lake) -> None:
    samples = many(5)
    add_records(lake, "render", samples)
    manifest = solve_and_lock(lake, override(intent(repeat_cap=3), budget=20_000))
    assert max(manifest.sample_ids.count(name) for name in manifest.sample_ids) > 1
    found = recount(manifest, samples)
    assert found == {entry.name: pytest.approx(entry.trainable_share) for entry in manifest.constraints}
    assert all(abs(share - 0.5) <= 0.001 for share in found.values())


TOKENS = st.integers(1, 400).map(lambda trainable: (trainable * 2, trainable))


@settings(max_examples=40, deadline=None)
@given(
    agentic=st.lists(TOKENS, min_size=1, max_size=40),
    reasoning=st.lists(TOKENS, min_size=1, max_size=40),
    share=st.sampled_from([0.1, 0.43, 0.5, 0.8]),
    cap=st.integers(1, 3),
)
def test_a_mix_that_is_solved_is_within_tolerance_and_one_that_is_not_says_why(
    agentic: list[tuple[int, int]], reasoning: list[tuple[int, int]], share: float, cap: int
) -> None:
    wanted = intent(shares=(Share(name="agentic", slice=Slice(domain=(AGENTIC,)), share=share),), repeat_cap=cap)
    try:
        solution = solve(pool({AGENTIC: agentic, REASONING: reasoning}), wanted)
    except UserError as error:
        assert "add samples" in str(error)
        return
    trainable = solution.counts * solution.pool.num_trainable
    inside = solution.pool.columns["domain"] == AGENTIC
    reached = trainable[inside].sum() / trainable.sum()
    granule = min(tokens for _, tokens in agentic) / 2 / trainable.sum()
    assert abs(reached - share) <= max(0.001, granule) + 1e-9
    assert 0 <= solution.counts.min() <= solution.counts.max() <= cap


def test_the_intent_is_part_of_the_lock(lake: Lake) -> None:
    add_records(lake, "render", many(1))
    manifest = solve_and_lock(lake, override(intent(), context=900))
    assert isinstance(manifest, MixManifest)
    assert manifest.intent["context_tokens"] == manifest.packing.context_tokens == 900
    assert manifest.intent["shares"][0]["slice"]["domain"] == [AGENTIC]
    assert MixIntent(**manifest.intent) == override(intent(), context=900)
