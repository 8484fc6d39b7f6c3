"""Texts -> byte-level BPE with the special tokens of Cohere's chat format, saved as a Hugging Face tokenizer folder."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic.dataclasses import dataclass as config_class
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from pipeline.config import STRICT
from pipeline.errors import UserError
from pipeline.store import write_atomic
from pipeline.types import content_id

PAD = "<PAD>"
BOS = "<BOS_TOKEN>"
START_OF_TURN = "<|START_OF_TURN_TOKEN|>"
END_OF_TURN = "<|END_OF_TURN_TOKEN|>"
SYSTEM = "<|SYSTEM_TOKEN|>"
USER = "<|USER_TOKEN|>"
CHATBOT = "<|CHATBOT_TOKEN|>"
START_THINKING = "<|START_THINKING|>"
END_THINKING = "<|END_THINKING|>"
START_TEXT = "<|START_TEXT|>"
END_TEXT = "<|END_TEXT|>"
START_ACTION = "<|START_ACTION|>"
END_ACTION = "<|END_ACTION|>"
START_TOOL_RESULT = "<|START_TOOL_RESULT|>"
END_TOOL_RESULT = "<|END_TOOL_RESULT|>"

SPECIAL_TOKENS = (
    PAD,
    "<UNK>",
    "<CLS>",
    "<SEP>",
    "<MASK_TOKEN>",
    BOS,
    "<EOS_TOKEN>",
    "<EOP_TOKEN>",
    START_OF_TURN,
    END_OF_TURN,
    SYSTEM,
    USER,
    CHATBOT,
    START_THINKING,
    END_THINKING,
    START_TEXT,
    END_TEXT,
    START_ACTION,
    END_ACTION,
    START_TOOL_RESULT,
    END_TOOL_RESULT,
    "<|START_RESPONSE|>",
    "<|END_RESPONSE|>",
)
"""In order of their ids, from 0; the first eight have the ids of Cohere's own tokenizers."""

TEMPLATE = Path(__file__).with_name("chat_template.jinja")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@config_class(frozen=True, kw_only=True, config=STRICT)
class TokenizerConfig:
    """How the student's tokenizer is trained."""

    vocab_size: int = 4096
    """Most tokens, special tokens included; little text may give fewer."""
    min_frequency: int = 2
    """Pairs seen less often are not merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTokenizer:
    """A tokenizer folder, open for rendering; needs neither torch nor transformers."""

    id: str
    """Hash of tokenizer files and chat template."""
    folder: Path
    vocab_size: int
    special_ids: dict[str, int]
    """Special token -> id."""
    model: Tokenizer

    def encode(self, text: str) -> list[int]:
        """Untrusted text -> ids; a special token's string in it stays ordinary text."""
        return self.model.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        """Ids -> text, special tokens written out."""
        return self.model.decode(ids, skip_special_tokens=False)


def train_tokenizer(texts: Iterable[str], folder: Path, config: TokenizerConfig) -> str:
    """Texts -> tokenizer folder that transformers and vLLM load; returns the tokenizer's id. Equal texts, equal id.

    Raises: UserError when the vocabulary has no room for the bytes and special tokens.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    smallest = len(alphabet) + len(SPECIAL_TOKENS)
    if config.vocab_size < smallest:
        raise UserError(f"tokenizer.vocab_size = {config.vocab_size} is too small: set at least {smallest}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": END_OF_TURN,
        "pad_token": PAD,
        "unk_token": "<UNK>",
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 500_000,
    }
    write_atomic(folder / "chat_template.jinja", TEMPLATE.read_bytes())
    write_atomic(folder / "tokenizer_config.json", json.dumps(settings, indent=2).encode())
    write_atomic(folder / "tokenizer.json", tokenizer.to_str(pretty=True).encode())
    return tokenizer_id(folder)


def tokenizer_id(folder: Path) -> str:
    """Tokenizer folder -> hash of its files and chat template.

    Raises: UserError when the folder holds no tokenizer.
    """
    for name in TOKENIZER_FILES:
        if not (folder / name).is_file():
            raise UserError(f"tokenizer folder {folder} has no {name}: train the tokenizer again")
    return content_id({name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in TOKENIZER_FILES})


def load_tokenizer(folder: Path) -> ChatTokenizer:
    """Tokenizer folder -> tokenizer.

    Raises: UserError when the folder holds no tokenizer, or one without the chat format's special tokens.
    """
    identity = tokenizer_id(folder)
    model = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model.encode_special_tokens = True
    special_ids = {}
    for token in SPECIAL_TOKENS:
        index = model.token_to_id(token)
        if index is None:
            raise UserError(f"tokenizer folder {folder} lacks the special token {token}: train the tokenizer again")
        special_ids[token] = index
    return ChatTokenizer(
        id=identity, folder=folder, vocab_size=model.get_vocab_size(), special_ids=special_ids, model=model
    )
