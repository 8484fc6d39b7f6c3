"""The student's tokenizer: special tokens, bytes, identity."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import UserError
from pipeline.tokenizer import (
    BOS,
    PAD,
    SPECIAL_TOKENS,
    ChatTokenizer,
    TokenizerConfig,
    load_tokenizer,
    tokenizer_id,
    train_tokenizer,
)

TEXTS = [
    "def parse(line):\n    return line.strip()\n" * 5,
    "cat src/parse.py && ls -la\n" * 5,
    "I read the file.",
    "1024 " * 20,
]
CONFIG = TokenizerConfig(vocab_size=320)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(TEXTS, folder, CONFIG)
    return load_tokenizer(folder)


def test_each_special_token_is_one_id_and_the_first_eight_are_those_of_cohere(tokenizer: ChatTokenizer) -> None:
    assert [tokenizer.special_ids[token] for token in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))
    assert (tokenizer.special_ids[PAD], tokenizer.special_ids[BOS]) == (0, 5)
    assert tokenizer.decode([tokenizer.special_ids["<|END_OF_TURN_TOKEN|>"]]) == "<|END_OF_TURN_TOKEN|>"


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_special_token_strings_in_text_never_become_special_ids(tokenizer: ChatTokenizer, token: str) -> None:
    ids = tokenizer.encode(f"a{token}b {token}")
    assert not set(ids) & set(tokenizer.special_ids.values())
    assert tokenizer.decode(ids) == f"a{token}b {token}"


@given(text=st.text(max_size=80))
@settings(max_examples=100, deadline=None)
def test_any_text_comes_back_unchanged(tokenizer: ChatTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_digits_are_tokens_of_their_own(tokenizer: ChatTokenizer) -> None:
    assert [tokenizer.decode([index]) for index in tokenizer.encode("1024")] == ["1", "0", "2", "4"]


def test_equal_texts_give_an_equal_id_in_another_process_with_one_thread(tmp_path: Path) -> None:
    script = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from pipeline.tokenizer import TokenizerConfig, train_tokenizer\n"
        "texts = json.loads(sys.argv[1])\n"
        "print(train_tokenizer(texts, Path(sys.argv[2]), TokenizerConfig(vocab_size=320)))\n"
    )
    command = [sys.executable, "-c", script, json.dumps(TEXTS), str(tmp_path / "other")]
    environment = os.environ | {"RAYON_NUM_THREADS": "1", "PYTHONHASHSEED": "7", "PYTHONPATH": str(Path.cwd())}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert result.stdout.strip() == train_tokenizer(TEXTS, tmp_path / "here", CONFIG)


def test_id_changes_with_the_chat_template(tmp_path: Path) -> None:
    before = train_tokenizer(TEXTS, tmp_path, CONFIG)
    template = tmp_path / "chat_template.jinja"
    template.write_text(template.read_text() + "x")
    assert tokenizer_id(tmp_path) != before


def test_too_small_a_vocabulary_is_refused_with_the_least_that_fits(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"vocab_size = 100 is too small: set at least 279"):
        train_tokenizer(TEXTS, tmp_path, TokenizerConfig(vocab_size=100))


def test_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no tokenizer\.json: train the tokenizer again"):
        load_tokenizer(tmp_path)


def test_tokenizer_of_another_format_is_refused(tmp_path: Path) -> None:
    train_tokenizer(TEXTS, tmp_path, CONFIG)
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text().replace("<|START_ACTION|>", "<|START_ACTIONS|>"))
    with pytest.raises(UserError, match=r"lacks the special token <\|START_ACTION\|>"):
        load_tokenizer(tmp_path)
