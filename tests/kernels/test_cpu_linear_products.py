"""Every weight format on every instruction set against a float64 oracle."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels import cpu_linear_oracle as oracle
from tests.kernels.native_module import native_or_skip

native = native_or_skip()

ISAS = native.available_isas()
NUM_ROWS = (1, 2, 3, 5, 8, 13, 32, 100)
# (source format, quantization, what it must be packed as)
PACKINGS = [
    ("f32", "", "f32"),
    ("bf16", "", "bf16"),
    ("f16", "", "bf16"),
    ("bf16", "int8", "int8"),
    ("q6_k", "int8", "int8"),
    ("bf16", "int4", "int4"),
    *((format, "", format) for format in oracle.GGUF_FORMATS),
]


@pytest.fixture(scope="module")
def pool():
    return native.ThreadPool(2)


@pytest.fixture(scope="module")
def single():
    return native.ThreadPool(1)


def pack(source, quantization, isa, pool, bias=None):
    return native.pack_matrix([source.part], bias, quantization, isa, pool)


def close(actual, expected, size):
    """Within a few roundings of float32 of the terms that were added."""
    return np.abs(actual - expected) <= oracle.TOLERANCE * size + 1e-30


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("format", "quantization", "packed_format"), PACKINGS)
def test_products_agree_with_the_oracle_for_any_number_of_rows(format, quantization, packed_format, isa, pool):
    source = oracle.make_source(format, 160, 768)
    matrix = pack(source, quantization, isa, pool)
    assert matrix.format == packed_format
    weights = oracle.dequantize(matrix, pool)
    if not quantization and format != "f16":
        np.testing.assert_allclose(weights, source.values, rtol=3e-7, atol=1e-9)
    x = oracle.make_rows(max(NUM_ROWS), 768)
    expected, size = oracle.expected(x, weights, packed_format)
    for num_rows in NUM_ROWS:
        actual = oracle.apply(matrix, x[:num_rows], pool)
        assert close(actual, expected[:num_rows], size[:num_rows]).all(), num_rows


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (33, 96), (50, 608), (95, 1056)])
@pytest.mark.parametrize(("format", "quantization"), [("bf16", ""), ("bf16", "int8"), ("bf16", "int4"), ("q8_0", "")])
def test_odd_sizes_are_padded(format, quantization, rows, columns, isa, pool):
    source = oracle.make_source(format, rows, columns)
    matrix = pack(source, quantization, isa, pool)
    x = oracle.make_rows(7, columns)
    expected, size = oracle.expected(x, oracle.dequantize(matrix, pool), matrix.format)
    assert close(oracle.apply(matrix, x, pool), expected, size).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("quantization", ["", "int8", "int4"])
def test_columns_need_not_be_a_multiple_of_anything(quantization, isa, pool):
    for columns in (1, 7, 33, 65, 129):
        source = oracle.make_source("bf16", 40, columns)
        matrix = pack(source, quantization, isa, pool)
        x = oracle.make_rows(3, columns)
        expected, size = oracle.expected(x, oracle.dequantize(matrix, pool), matrix.format)
        assert close(oracle.apply(matrix, x, pool), expected, size).all(), columns


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("format", "quantization", "packed_format"), PACKINGS)
def test_a_row_has_the_same_bits_alone_and_in_any_batch_on_one_thread_or_two(
    format, quantization, packed_format, isa, pool, single
):
    matrix = pack(oracle.make_source(format, 96, 512), quantization, isa, pool)
    x = oracle.make_rows(140, 512)
    together = oracle.apply(matrix, x, pool)
    np.testing.assert_array_equal(together, oracle.apply(matrix, x, single))
    for row in (0, 1, 7, 64, 139):
        np.testing.assert_array_equal(together[row], oracle.apply(matrix, x[row : row + 1], single)[0])
    for begin, end in ((3, 16), (10, 21), (100, 140), (5, 7)):
        np.testing.assert_array_equal(together[begin:end], oracle.apply(matrix, x[begin:end], pool))


@pytest.mark.parametrize("quantization", ["int8"])
def test_int8_has_the_same_bits_on_every_instruction_set(quantization, pool):
    source = oracle.make_source("bf16", 96, 640)
    x = oracle.make_rows(9, 640)
    results = [oracle.apply(pack(source, quantization, isa, pool), x, pool) for isa in ISAS]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("isa", ISAS)
def test_extreme_codes_do_not_saturate(isa, pool):
    """All weights and activations at the ends of their ranges: the largest sums there can be."""
    for quantization in ("int8", "int4"):
        for sign in (1.0, -1.0):
            values = np.full((32, 4096), sign, np.float32)
            values[:, ::2] *= 0.999
            part = (values.view(np.uint8).reshape(-1), "f32", 32, 4096)
            matrix = native.pack_matrix([part], None, quantization, isa, pool)
            x = np.full((2, 4096), -3.0, np.float32)
            expected, size = oracle.expected(x, oracle.dequantize(matrix, pool), matrix.format)
            assert close(oracle.apply(matrix, x, pool), expected, size).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("columns_of_part", [(64, 32, 32), (50, 7, 90)])
def test_parts_of_different_formats_stack_along_the_outputs(columns_of_part, isa, pool):
    formats = ("q4_k", "q6_k", "bf16")
    sources = [oracle.make_source(f, n, 512, i) for i, (f, n) in enumerate(zip(formats, columns_of_part, strict=True))]
    bias = np.random.default_rng(5).standard_normal(sum(columns_of_part), dtype=np.float32)
    matrix = native.pack_matrix([s.part for s in sources], bias, "", isa, pool)
    assert matrix.format == "q4_k+q6_k+bf16"
    x = oracle.make_rows(13, 512)
    actual = oracle.apply(matrix, x, pool)
    begin = 0
    for source in sources:
        end = begin + source.values.shape[0]
        alone = native.pack_matrix([source.part], bias[begin:end].copy(), "", isa, pool)
        np.testing.assert_array_equal(actual[:, begin:end], oracle.apply(alone, x, pool))
        begin = end
    np.testing.assert_array_equal(
        oracle.dequantize(matrix, pool),
        np.concatenate([oracle.dequantize(pack(s, "", isa, pool), pool) for s in sources]),
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("quantization", ["", "int8", "int4"])
def test_bias_softcap_and_residual_are_separate_rounded_steps(quantization, isa, pool):
    rng = np.random.default_rng(7)
    source = oracle.make_source("bf16", 70, 320)
    bias = rng.standard_normal(70, dtype=np.float32)
    residual = rng.standard_normal((11, 70), dtype=np.float32)
    x = oracle.make_rows(11, 320)
    plain = oracle.apply(pack(source, quantization, isa, pool), x, pool)
    matrix = pack(source, quantization, isa, pool, bias)
    np.testing.assert_array_equal(oracle.apply(matrix, x, pool), plain + bias)
    np.testing.assert_array_equal(oracle.apply(matrix, x, pool, residual), (plain + bias) + residual)
    capped = oracle.apply(matrix, x, pool, softcap=5.0)
    np.testing.assert_allclose(capped, 5 * np.tanh((plain + bias) / 5), rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(oracle.apply(matrix, x, pool, residual, softcap=5.0), capped + residual)
    in_place = residual.copy()
    matrix.apply(x, in_place, in_place, 0.0, pool)
    np.testing.assert_array_equal(in_place, (plain + bias) + residual)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("format", "quantization", "packed_format"), PACKINGS)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_poisoned_activation_shows_in_its_row_and_nowhere_else(
    format, quantization, packed_format, poison, isa, pool
):
    matrix = pack(oracle.make_source(format, 64, 512), quantization, isa, pool)
    x = oracle.make_rows(4, 512)
    clean = oracle.apply(matrix, x, pool)
    x[2, 301] = poison
    poisoned = oracle.apply(matrix, x, pool)
    assert not np.isfinite(poisoned[2]).any()
    np.testing.assert_array_equal(np.delete(poisoned, 2, 0), np.delete(clean, 2, 0))
