"""Mix files say what the public recipe says, and nothing unknown."""

from pathlib import Path

import pytest

from mixes.intent import describe, override, plain, read_intent
from pipeline.errors import UserError

MIXES = Path(__file__).parents[3] / "mixes"


def test_stage_1_asks_for_the_shares_of_the_recipe_in_trainable_tokens() -> None:
    intent = read_intent(MIXES / "stage1.toml")
    assert {share.name: share.share for share in intent.shares} == {
        "code": 0.70,
        "agentic_code": 0.43,
        "single_turn_code": 0.27,
        "reasoning": 0.30,
    }
    assert {(share.unit, share.op, describe(share.base)) for share in intent.shares} == {
        ("trainable", "=", "the whole")
    }
    assert (intent.context_tokens, intent.budget.value, intent.requirements.is_resolved) == (65536, "largest", True)


def test_stage_2_asks_for_the_shares_of_the_recipe() -> None:
    intent = read_intent(MIXES / "stage2.toml")
    asked = {share.name: (share.op, share.share) for share in intent.shares}
    assert asked["code"] == ("=", 0.61)
    assert asked["main_harness"] == ("=", 0.50)
    assert asked["other_harnesses"] == ("=", 0.06)
    assert asked["plain_text"] == ("<=", 0.20)
    assert (intent.context_tokens, intent.budget.value, intent.repeat_cap) == (131072, 4_500_000_000, 2)


def test_budget_and_context_can_be_overridden_and_the_shares_stay() -> None:
    intent = read_intent(MIXES / "stage2.toml")
    small = override(intent, budget="largest", context=4096)
    assert (small.budget.value, small.budget.unit, small.context_tokens) == ("largest", "total", 4096)
    assert small.shares == intent.shares
    assert override(intent) == intent
    assert plain(small)["budget"] == {"unit": "total", "value": "largest"}


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("repeat_cap = 1", "repeat_cop = 1", "unknown key `repeat_cop`: did you mean `repeat_cap`?"),
        ('name = "code"', 'name = "reasoning"', "share name `reasoning` occurs twice: give every share"),
        ("share = 0.70", "share = 70", "`shares.0.share` = 70 does not fit"),
        ('["reasoning"]', '["reasonning"]', "does not fit: input should be 'agentic_code', 'single_turn_code' or"),
        ('on_dry = "fail"', 'on_dry = "repeat"', "`on_dry` = 'repeat' does not fit"),
        ('value = "largest"', "value = 0", "does not fit"),
    ],
    ids=["unknown-key", "name-twice", "share-over-1", "unknown-domain", "silent-dry", "empty-budget"],
)
def test_a_wrong_mix_file_is_refused_in_one_sentence(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    text = (MIXES / "stage1.toml").read_text()
    assert old in text
    (tmp_path / "mix.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(UserError) as failure:
        read_intent(tmp_path / "mix.toml")
    assert sentence in str(failure.value)
