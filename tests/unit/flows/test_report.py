"""The report shows the lake's own figures, trusts none of its text, and needs nothing but itself."""

import base64
import functools
import hashlib
import itertools
import math
import re
import tempfile
from contextlib import closing
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flows.report import write_report
from flows.report.charts import MAX_POINTS, line_chart, nice_ticks
from flows.report.composition import Composition, composition
from flows.report.evidence import Evidence
from flows.report.figures import visible
from flows.report.mask import pieces, turns
from mixes.intent import MixIntent, Share, Slice
from mixes.manifest import MixManifest
from mixes.solve import solve_and_lock
from pipeline.errors import UserError
from pipeline.store import Lake
from pipeline.tokenizer import START_TOOL_RESULT, ChatTokenizer, TokenizerConfig, load_tokenizer, train_tokenizer
from tests.unit.builders import sample
from tests.unit.flows.report_lake import ARCHIVE_SHA256, HOSTILE, LOSSES, Made, make_until_samples, stage, train

LONG_OUTPUT = "FAILED tests/test_a.py::test_a - assert 1 < 1\n" * 60
VOID = {"meta", "link", "img", "br", "input", "path", "rect", "line", "circle"}


class Page(HTMLParser):
    """Tags with attributes, and the text inside each element."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[list[tuple[str, dict[str, str]]], str]] = []
        self.feed(html)
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.tags.append((tag, attributes))
        if tag not in VOID:
            self.open.append((tag, attributes))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag, f"</{tag}> closes what is open"

    def handle_data(self, data: str) -> None:
        self.texts.append((list(self.open), data))

    def nodes(self, tag: str, **attributes: str) -> list[str]:
        """Texts inside the elements with this tag and these attributes."""
        return [
            text
            for parents, text in self.texts
            if any(name == tag and attributes.items() <= found.items() for name, found in parents)
        ]

    def words(self, section: str) -> str:
        """Text of one section, any white space as one blank."""
        return " ".join(" ".join(self.nodes("section", id=section)).split())


def lock_mix(made: Made) -> MixManifest:
    shares = (
        Share(name="agentic", slice=Slice(domain=("agentic_code",)), share=0.6, tolerance=0.2),
        Share(name="reasoning", slice=Slice(domain=("reasoning",)), share=0.4, tolerance=0.2),
    )
    return solve_and_lock(made.lake, MixIntent(name="demo", stage="stage1", context_tokens=4096, seed=1, shares=shares))


def report(made: Made, mix: MixManifest, path: Path, title: str = "demo") -> str:
    stages = made.stages + train(made.lake, mix.id, made.samples)
    written = write_report(
        made.lake, path, mix_id=mix.id, tokenizer_folder=made.tokenizer_folder, stages=stages, title=title
    )
    return written.read_text()


def composed(made: Made, mix: MixManifest) -> Composition:
    with closing(Evidence(made.lake, mix, load_tokenizer(made.tokenizer_folder), [])) as evidence:
        return composition(evidence)


@functools.cache
def bytes_tokenizer() -> ChatTokenizer:
    """A tokenizer that merges nothing: a character of several bytes is always several tokens."""
    with tempfile.TemporaryDirectory() as folder:
        train_tokenizer([], Path(folder), TokenizerConfig(vocab_size=300))
        return load_tokenizer(Path(folder))


@pytest.fixture(scope="module")
def journey(tmp_path_factory: pytest.TempPathFactory) -> tuple[Made, MixManifest]:
    made = make_until_samples(tmp_path_factory.mktemp("journey"), output=LONG_OUTPUT)
    return made, lock_mix(made)


@pytest.fixture(scope="module")
def html(journey: tuple[Made, MixManifest], tmp_path_factory: pytest.TempPathFactory) -> str:
    return report(*journey, tmp_path_factory.mktemp("report") / "index.html")


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_headline_counts_what_the_lake_holds(journey: tuple[Made, MixManifest], page: Page) -> None:
    _, mix = journey
    words = page.words("headline")
    assert "Repositories 2 1 refused by decontamination" in words
    assert "Valid tasks 9 of 9 recorded Trajectories 12 by 2 teachers Samples 9 " in words
    assert f"Trainable tokens {mix.num_trainable} of {mix.num_tokens:,} in the mix" in words
    assert "Parameters 1,234,567 in checkpoint" in words
    assert "7.250 \u2192 3.375 nats per trainable token, 8 steps" in words
    assert "largest log-prob difference 2.5e-05 nats over 64 tokens, allowed 1.0e-04" in words
    assert "oracle 9 9 1.00 1.0 9 vllm small-model 3 0 0.00 1.0 0" in words
    assert "reasoning reasoning 6 syntax_tree_bug agentic_code 3" in words


def test_journey_is_drawn_with_a_count_at_every_station(journey: tuple[Made, MixManifest], page: Page) -> None:
    _, mix = journey
    drawn = "".join(page.nodes("text", **{"class": "station-number"}))
    names = page.nodes("text", **{"class": "station-name"})
    assert names == ["Repository", "Task", "Trajectory", "Verdict", "Sample", "MixManifest", "Batch", "Checkpoint"]
    assert drawn == f"29121591{len(mix.packing.bins)}1"


def test_stage_table_says_what_was_dropped_and_why(page: Page) -> None:
    words = page.words("stages")
    assert re.search(r"tasks 14 9 0 4 no_test_fails 1 does_not_parse", words)
    assert "No item had been finished before" in words


def test_stage_table_of_a_second_run_says_what_was_reused(journey: tuple[Made, MixManifest], tmp_path: Path) -> None:
    made, mix = journey
    again = [replace(one, num_reused=one.num_in) for one in made.stages]
    write_report(
        made.lake,
        tmp_path / "again.html",
        mix_id=mix.id,
        tokenizer_folder=made.tokenizer_folder,
        stages=again,
        title="again",
    )
    items = sum(one.num_in for one in again)
    assert f"{items} items of {items} had been finished before" in Page((tmp_path / "again.html").read_text()).words(
        "stages"
    )


def test_refused_repository_is_marked_with_its_matched_files(page: Page) -> None:
    refused = " ".join(" ".join(page.nodes("tr", **{"class": "refused"})).split())
    assert refused.startswith("planted-copy 1.0 refused content swe-bench psf/requests 91.0 %")
    assert "planted/api.py ~ requests/api.py: 0.98 planted/auth.py ~ requests/auth.py: 1.00" in refused
    assert "alpha" not in refused
    assert "1 version of 2 was refused" in page.words("decontamination")


def test_mix_section_shows_trainable_and_total_share_beside_the_target(
    journey: tuple[Made, MixManifest], page: Page
) -> None:
    _, mix = journey
    agentic = mix.constraints[0]
    assert agentic.trainable_share != pytest.approx(agentic.total_share, abs=0.05)
    words = page.words("composition").replace("\u00a0", " ")
    assert f"agentic {agentic.trainable_share:.1%}".replace("%", " %") in words
    assert (
        f"= 60.0 % {agentic.trainable_share * 100:.1f} % {agentic.total_share * 100:.1f} % {agentic.error * 100:+.2f}"
        in words
    )
    assert "every part adds up to what the lock says" in words
    share, total_share = f"{agentic.trainable_share * 100:.1f} %", f"{agentic.total_share * 100:.1f} %"
    assert f"agentic_code {agentic.num_samples} {agentic.num_trainable} {share} {total_share}" in words


def test_width_of_a_bar_is_its_share_of_the_axis(journey: tuple[Made, MixManifest]) -> None:
    made, mix = journey
    drawn = composed(made, mix)
    bar, other = drawn.bars
    assert bar.trainable / other.trainable == pytest.approx(bar.reached.trainable_share / other.reached.trainable_share)
    by_label = {tick.label.replace("\u00a0", " "): tick.position for tick in drawn.ticks}
    assert by_label["60 %"] == pytest.approx(bar.target)


def test_mix_that_does_not_add_up_is_called_out(journey: tuple[Made, MixManifest]) -> None:
    made, mix = journey
    wrong = [replace(mix.composition[0], num_trainable=mix.composition[0].num_trainable + 1), *mix.composition[1:]]
    assert composed(made, mix).is_recounted
    assert not composed(made, replace(mix, composition=wrong)).is_recounted


def test_marked_text_is_exactly_the_trainable_tokens(journey: tuple[Made, MixManifest], page: Page) -> None:
    made, mix = journey
    tokenizer = load_tokenizer(made.tokenizer_folder)
    (shown,) = [one for one in made.samples if f"Sample {one.id[:12]} from" in page.words("trained")]
    assert shown.id in mix.sample_ids and shown.domain == "agentic_code"
    spans = zip(shown.train_spans[::2], shown.train_spans[1::2], strict=True)
    trainable = "".join(tokenizer.decode(shown.token_ids[start:end]) for start, end in spans)
    in_tokens = [
        (parents, text) for parents, text in page.texts if any(found.get("class") == "tokens" for _, found in parents)
    ]
    marked = "".join(text for parents, text in in_tokens if any(name == "mark" for name, _ in parents))
    assert marked == trainable
    assert "".join(text for _, text in in_tokens) == tokenizer.decode(shown.token_ids)
    chips = [text for parents, text in in_tokens if parents[-1][1].get("class") == "chip"]
    special = [token for token in shown.token_ids if token in tokenizer.special_ids.values()]
    assert [tokenizer.special_ids[chip] for chip in chips] == special


def test_only_long_turns_without_loss_start_folded(journey: tuple[Made, MixManifest]) -> None:
    made, _ = journey
    tokenizer = load_tokenizer(made.tokenizer_folder)
    found = turns(made.samples[0], tokenizer)
    assert [turn.speaker for turn in found] == [
        "start",
        "system",
        "system",
        "user",
        "assistant",
        "tool result",
        "assistant",
    ]
    assert [turn.speaker for turn in found if turn.is_folded] == ["tool result"]
    assert sum(turn.num_tokens for turn in found) == made.samples[0].num_tokens
    assert sum(turn.num_trainable for turn in found) == made.samples[0].num_trainable
    assert tokenizer.special_ids[START_TOOL_RESULT] in made.samples[0].token_ids


@given(st.text(max_size=30))
def test_no_character_is_torn_between_pieces(text: str) -> None:
    tokenizer = bytes_tokenizer()
    token_ids = tokenizer.encode(text)
    found = list(pieces(token_ids, [False] * len(token_ids), range(len(token_ids)), tokenizer))
    assert "".join(piece.text for piece in found) == text


def test_dropped_trajectory_stands_beside_the_verdicts_that_dropped_it(page: Page) -> None:
    words = page.words("dropped")
    assert "by vllm (small-model) on alpha" in words
    assert "It ended with step_limit after 1 step, reward 0.00: 1 test still fails" in words
    assert "drop unresolved: unresolved 1 test still fails" in words
    assert "drop invalid_tool_call: unknown_tool fly" in words


def test_filters_are_counted_by_reason_and_teacher(page: Page) -> None:
    words = page.words("filtering")
    assert "looked at 12 trajectories and dropped 3" in words
    assert "invalid_tool_call v1 unknown_tool drop - 3 3 fly" in words
    assert "Trajectories dropped 0 3 3 Trajectories seen 9 3 12" in words


def test_lineage_ends_at_the_hash_of_the_archive(page: Page) -> None:
    steps = [
        text
        for parents, text in page.texts
        if parents and parents[-1][0] == "b" and ("ol", {"class": "chain"}) in parents
    ]
    assert steps == [
        "Checkpoint",
        "Mix",
        "Sample",
        "Trajectory",
        "Task",
        "Container image",
        "Decontamination",
        "Repository",
        "Source",
    ]
    assert page.words("ancestry").endswith(f"alpha 1.0 (sdist) sha256 {ARCHIVE_SHA256}")


def test_text_of_the_lake_stays_text(tmp_path: Path) -> None:
    made = make_until_samples(tmp_path, statement=HOSTILE, output=HOSTILE)
    hostile_stage = stage(made.lake, "odd", [], {HOSTILE: 1})
    made = made._replace(stages=[*made.stages, hostile_stage])
    found = Page(report(made, lock_mix(made), tmp_path / "index.html", title=HOSTILE))
    names = {tag for tag, _ in found.tags}
    assert "img" not in names
    assert len([tag for tag, _ in found.tags if tag == "script"]) == 1
    attributes = {name for _, found_attributes in found.tags for name in found_attributes}
    assert not {name for name in attributes if name.startswith("on") or name in ("style", "src", "action")}
    for section in ("headline", "stages", "trained", "dropped", "filtering"):
        assert HOSTILE in found.words(section), section


def test_page_refers_to_nothing_outside_itself(html: str, page: Page) -> None:
    assert "://" not in html and "@import" not in html and "url(" not in html
    links = [attributes["href"] for _, attributes in page.tags if "href" in attributes]
    anchors = {attributes.get("id") for _, attributes in page.tags}
    assert links and all(link.startswith("#") and link[1:] in anchors for link in links)


def test_policy_allows_only_the_style_and_script_of_the_page(html: str, page: Page) -> None:
    (policy,) = [found["content"] for _, found in page.tags if found.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    for tag in ("style", "script"):
        content = html.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_every_drawing_has_a_title_and_every_column_a_heading(page: Page) -> None:
    drawings = [found for tag, found in page.tags if tag == "svg" and found.get("role") == "img"]
    assert len(drawings) >= 3 + len(LOSSES)
    assert all("aria-labelledby" in found or "aria-label" in found for found in drawings)
    assert all(found.get("scope") in ("col", "row") for tag, found in page.tags if tag == "th")


def test_equal_lakes_give_equal_bytes(journey: tuple[Made, MixManifest], html: str, tmp_path: Path) -> None:
    made, mix = journey
    stages = [replace(one, seconds=1.0) for one in made.stages]
    written = [
        write_report(
            made.lake, tmp_path / name, mix_id=mix.id, tokenizer_folder=made.tokenizer_folder, stages=stages, title="t"
        ).read_bytes()
        for name in ("a.html", "b.html")
    ]
    assert written[0] == written[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html"]


def test_lake_with_nothing_but_samples_says_why_each_part_is_empty(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    train_tokenizer(["a b"], tmp_path / "tokenizer", TokenizerConfig(vocab_size=300))
    stage(lake, "samples", [sample()])
    shares = (Share(name="agentic", slice=Slice(domain=("agentic_code",)), share=1.0),)
    mix = solve_and_lock(lake, MixIntent(name="bare", stage="stage1", context_tokens=64, seed=1, shares=shares))
    path = write_report(
        lake, tmp_path / "bare.html", mix_id=mix.id, tokenizer_folder=tmp_path / "tokenizer", stages=[], title="bare"
    )
    found = Page(path.read_text())
    expected = {
        "headline": ("There are no trajectories: ", "There are no valid tasks: ", "Checkpoint none", "not checked"),
        "stages": ("There is no stage to show: ",),
        "decontamination": ("No repository was compared yet: ",),
        "composition": ("Nothing was left out",),
        "losses": ("There is no loss to draw: ",),
        "trained": ("The task of this sample is not in the lake.", "The trajectory of this sample is not in the lake."),
        "dropped": ("No trajectory was dropped: ",),
        "filtering": ("There are no verdicts: ",),
        "ancestry": ("Mix",),
    }
    for section, sentences in expected.items():
        for sentence in sentences:
            assert sentence in found.words(section), section
    assert "rendered with another tokenizer" in found.words("trained")


def test_report_on_an_unknown_mix_is_refused_and_leaves_nothing(
    journey: tuple[Made, MixManifest], tmp_path: Path
) -> None:
    made, _ = journey
    with pytest.raises(UserError, match="there is no lock"):
        write_report(
            made.lake,
            tmp_path / "no.html",
            mix_id="0" * 64,
            tokenizer_folder=made.tokenizer_folder,
            stages=[],
            title="no",
        )
    assert list(tmp_path.iterdir()) == []


def test_invisible_characters_are_spelled_out() -> None:
    assert visible("a\x1b[31m\u202eb\u200bc\td\n") == "a\\u001b[31m\\u202eb\\u200bc\td\n"
    assert visible(3) == 3


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 12))
def test_ticks_are_even_and_inside_the_range(low: float, width: float, most: int) -> None:
    high = low + width
    assume(high > low)
    ticks = nice_ticks(low, high, most)
    assert len(ticks) <= most + 1
    assert all(low - width * 1e-6 <= tick <= high + width * 1e-6 for tick in ticks)
    gaps = [second - first for first, second in itertools.pairwise(ticks)]
    assert all(math.isclose(gap, gaps[0], rel_tol=1e-6, abs_tol=1e-9) for gap in gaps)


def test_curve_runs_from_the_first_step_to_the_last_and_falls_with_the_loss() -> None:
    chart = line_chart([4.0, 2.0, 1.0], reference=3.0)
    assert [point.x for point in chart.points] == [chart.left, (chart.left + chart.right) / 2, chart.right]
    heights = [chart.bottom - point.y for point in chart.points]
    assert heights[0] == pytest.approx(2 * heights[1]) == pytest.approx(4 * heights[2])
    assert chart.reference is not None and chart.points[0].y < chart.reference < chart.points[1].y
    assert [tick.label for tick in chart.x_ticks] == ["1", "2", "3"]
    assert line_chart([4.0, 2.0, 1.0], reference=9.0).reference is None


@pytest.mark.parametrize("num_steps", [1, 2, MAX_POINTS, 10 * MAX_POINTS + 1])
def test_curve_of_any_length_stays_inside_its_axes(num_steps: int) -> None:
    chart = line_chart([1.0] * num_steps)
    assert len(chart.points) <= MAX_POINTS
    assert all(chart.left <= point.x <= chart.right for point in chart.points)
    assert chart.window == math.ceil(num_steps / MAX_POINTS)
