"""What the compiled passes promise beyond VocabularyOps (whose tests they share in test_vocabulary.py)."""

from __future__ import annotations

import numpy as np
import pytest

from pellucid.kernels.cpu.native import load_native
from pellucid.sampling.masks import apply_bitmask
from pellucid.sampling.vocabulary import Draw, NumpyVocabularyOps

native, reason = load_native()
if native is None:
    pytest.skip(reason, allow_module_level=True)

from pellucid.kernels.cpu.kernels import CpuKernels  # noqa: E402
from pellucid.kernels.torch_kernels import TorchKernels  # noqa: E402
from pellucid.sampling.native_vocabulary import NativeVocabularyOps, vocabulary_ops  # noqa: E402

every_isa = pytest.mark.parametrize("isa", native.available_isas())


def logits_of(num_rows: int, vocab_size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((num_rows, vocab_size), np.float32) * 3


def test_the_kernels_decide_which_passes_there_are() -> None:
    assert isinstance(vocabulary_ops(CpuKernels(num_threads=1), 10), NativeVocabularyOps)
    assert isinstance(vocabulary_ops(TorchKernels(), 10), NumpyVocabularyOps)


@every_isa
@pytest.mark.parametrize("vocab_size", [1, 5, 255, 256, 257, 49152])
def test_a_nan_is_the_largest_and_the_first_of_equals_wins(isa: str, vocab_size: int) -> None:
    ops, plain = NativeVocabularyOps(CpuKernels(num_threads=2, isa=isa)), NumpyVocabularyOps(vocab_size)
    logits = np.round(logits_of(7, vocab_size))
    for row, place in ((1, 0), (2, vocab_size // 2), (3, vocab_size - 1)):
        logits[row, place] = np.nan
    logits[4] = -np.inf
    logits[5, vocab_size // 3] = np.inf
    logits[6, :] = logits[6, 0]
    for got, expected in zip(ops.argmax(logits), plain.argmax(logits), strict=True):
        np.testing.assert_array_equal(got, expected)


@every_isa
@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 1000, 49152])
def test_a_grammar_mask_is_the_plain_one(isa: str, vocab_size: int) -> None:
    ops = NativeVocabularyOps(CpuKernels(num_threads=1, isa=isa))
    words = -(-vocab_size // 32)
    for mask in (
        np.random.default_rng(1).integers(-(2**31), 2**31, words).astype(np.int32),
        np.zeros(words, np.int32),
        np.full(words, -1, np.int32),
    ):
        got, expected = logits_of(2, vocab_size)
        expected[:] = got
        ops.apply_bitmask(got, mask)
        apply_bitmask(expected, mask)
        np.testing.assert_array_equal(got, expected)
    with pytest.raises(ValueError, match="fewer bits"):
        ops.apply_bitmask(got, np.zeros(max(0, words - 1), np.int32))


@every_isa
def test_threads_do_not_change_what_is_drawn(isa: str) -> None:
    logits = logits_of(9, 49157)
    draws = [Draw(i, 0.7, (0, 40, 0)[i % 3], (1.0, 0.9, 0.95)[i % 3], 0.0, i / 9) for i in range(9)]
    one, three = (NativeVocabularyOps(CpuKernels(num_threads=n, isa=isa)) for n in (1, 3))
    assert one.draw(logits, draws) == three.draw(logits, draws)
    assert one.log_normalizers(logits, range(9)) == three.log_normalizers(logits, range(9))


def test_wrong_rows_and_tokens_are_refused() -> None:
    ops = NativeVocabularyOps(CpuKernels(num_threads=1))
    logits = logits_of(2, 100)
    with pytest.raises(ValueError, match="row"):
        ops.log_normalizers(logits, [2])
    with pytest.raises(ValueError, match="token"):
        ops.ranks(logits, [0], [100])
    with pytest.raises(ValueError, match="temperature"):
        ops.draw(logits, [Draw(0, 0.0, 0, 1.0, 0.0, 0.5)])
    with pytest.raises(TypeError):
        ops.argmax(logits.astype(np.float64))
