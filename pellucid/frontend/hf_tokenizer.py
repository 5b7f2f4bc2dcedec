"""The tokenizer of a Hugging Face directory: tokenizer.json, with what tokenizer_config.json adds to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from pellucid.loader.errors import ModelError, ModelNotFoundError
from pellucid.loader.model_files import read_json

MAX_TOKENIZER_BYTES = 256 << 20
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
SLOW_FILES = ("tokenizer.model", "vocab.json", "spiece.model")


@dataclass(frozen=True)
class HFTokenizerFiles:
    """special_tokens: "bos_token", "eos_token", ... -> text, for those that the files name."""

    tokenizer: tokenizers.Tokenizer
    special_tokens: dict[str, str]


def read_hf_tokenizer(directory: Path) -> HFTokenizerFiles:
    """What is put around a text is tokenizer.json's affair, whatever add_bos_token says, as in transformers 5.

    Raises ModelNotFoundError where the directory has no tokenizer, ModelError where it can't be read.
    """
    config = _object(directory / "tokenizer_config.json")
    special = {**_object(directory / "special_tokens_map.json"), **{k: v for k, v in config.items() if v is not None}}
    path = directory / "tokenizer.json"
    tokenizer = _from_json(path) if path.is_file() else _converted(directory)
    # limits for training batches that some files carry; a prompt is never cut or filled up here
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _add_listed_tokens(tokenizer, config, directory)
    named = {name: text for name in SPECIAL_TOKENS if (text := _text(special.get(name))) is not None}
    return HFTokenizerFiles(tokenizer, named)


def _object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = read_json(path)
    if not isinstance(content, dict):
        raise ModelError(f"{path}: expected an object, found {type(content).__name__}")
    return content


def _text(token: Any) -> str | None:
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) and content else None


def _from_json(path: Path) -> tokenizers.Tokenizer:
    if path.stat().st_size > MAX_TOKENIZER_BYTES:
        raise ModelError(f"{path}: larger than {MAX_TOKENIZER_BYTES} bytes")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception, whatever is wrong
        raise ModelError(f"{path}: not a tokenizer of the tokenizers library: {error}") from error


def _converted(directory: Path) -> tokenizers.Tokenizer:
    """A directory with only a SentencePiece model or bare vocabulary files: transformers knows how to convert it."""
    found = [name for name in SLOW_FILES if (directory / name).is_file()]
    if not found:
        raise ModelNotFoundError(f"{directory}: has no tokenizer.json, and no other tokenizer file either")
    advice = "convert it once with transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ModelError(f"{directory}: has {found[0]} but no tokenizer.json; {advice}") from error
    try:
        converted = AutoTokenizer.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
        return tokenizers.Tokenizer.from_str(converted.backend_tokenizer.to_str())
    except Exception as error:  # whatever transformers stumbles over
        raise ModelError(f"{directory}: {found[0]} can't be converted ({error}); {advice}") from error


def _add_listed_tokens(tokenizer: tokenizers.Tokenizer, config: Mapping[str, Any], directory: Path) -> None:
    """Tokens that only tokenizer_config.json lists, at the ids it states."""
    listed = config.get("added_tokens_decoder")
    if not isinstance(listed, dict):
        return
    try:
        by_id = {int(token_id): entry for token_id, entry in listed.items() if isinstance(entry, dict)}
    except (ValueError, TypeError) as error:
        raise ModelError(
            f"{directory}: tokenizer_config.json: added_tokens_decoder has an id that is no number"
        ) from error
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    for token_id, entry in sorted(by_id.items(), key=lambda item: item[0]):
        content = _text(entry)
        if content is None or tokenizer.token_to_id(content) is not None:
            continue
        tokenizer.add_tokens([AddedToken(content, **{flag: entry[flag] is True for flag in flags if flag in entry})])
        if tokenizer.token_to_id(content) != token_id:
            raise ModelError(
                f"{directory}: tokenizer_config.json gives {content!r} the id {token_id}, the next free one "
                f"in tokenizer.json is {tokenizer.token_to_id(content)}"
            )
