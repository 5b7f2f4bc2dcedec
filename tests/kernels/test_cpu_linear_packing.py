"""What packing promises: exact numbers where it keeps a format, small errors where it quantises, clear refusals."""

from __future__ import annotations

import numpy as np
import pytest

from pellucid.kernels.int4 import Int4Rows, num_supers
from tests.kernels import cpu_linear_oracle as oracle
from tests.kernels.native_module import native_or_skip

native = native_or_skip()

ISA = native.available_isas()[-1]


@pytest.fixture(scope="module")
def pool():
    return native.ThreadPool(2)


def pack(source, quantization, pool):
    return native.pack_matrix([source.part], None, quantization, ISA, pool)


@pytest.mark.parametrize("format", ["f32", "bf16", *oracle.GGUF_FORMATS])
def test_a_kept_format_keeps_its_numbers(format, pool):
    source = oracle.make_source(format, 45, 1280)
    matrix = pack(source, "", pool)
    # k-quants: gguf's own arithmetic rounds in another order
    np.testing.assert_allclose(oracle.dequantize(matrix, pool), source.values, rtol=3e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("format", "bits"), [("q4_0", 4.5), ("q4_1", 5), ("q5_0", 5.5), ("q8_0", 8.5), ("q4_k", 4.625), ("q6_k", 6.5625)]
)
def test_a_kept_format_takes_no_more_room_than_in_the_file(format, bits, pool):
    matrix = pack(oracle.make_source(format, 512, 1024), "", pool)
    assert matrix.num_bytes * 8 / (512 * 1024) <= bits * 1.015


@pytest.mark.parametrize(("quantization", "bits"), [("int8", 8.07), ("int4", 4.63)])
def test_a_quantised_matrix_takes_little_more_than_its_codes(quantization, bits, pool):
    matrix = pack(oracle.make_source("bf16", 512, 1024), quantization, pool)
    assert matrix.num_bytes * 8 / (512 * 1024) <= bits


def test_int8_errors_are_within_half_a_step(pool):
    source = oracle.make_source("bf16", 64, 576)
    error = oracle.rotate(oracle.dequantize(pack(source, "int8", pool), pool).astype(np.float64))
    error -= oracle.rotate(source.values.astype(np.float64))
    step = np.abs(oracle.rotate(source.values)).max(1, keepdims=True) / 127
    assert (np.abs(error) <= step * 0.501).all()


def test_int4_is_better_than_plain_rounding_to_the_range(pool):
    source = oracle.make_source("bf16", 128, 1024)
    ours = ((oracle.dequantize(pack(source, "int4", pool), pool) - source.values) ** 2).mean()
    groups = source.values.reshape(128, -1, 32)
    low = groups.min(-1, keepdims=True)
    step = (groups.max(-1, keepdims=True) - low) / 15
    plain = (((np.rint((groups - low) / step) * step + low) - groups) ** 2).mean()
    assert ours < 0.9 * plain


def test_int4_finds_weights_that_were_4_bit_before(pool):
    """A checkpoint dequantised to bf16 from a 4-bit format loses next to nothing when it is quantised again."""
    source = oracle.make_source("q4_1", 64, 1024)
    rounded = oracle.to_bf16(source.values)
    part = (rounded.view(np.uint8).reshape(-1), "f32", 64, 1024)
    again = oracle.dequantize(native.pack_matrix([part], None, "int4", ISA, pool), pool)
    assert np.abs(again - source.values).max() < 0.006 * np.abs(source.values).max()


@pytest.mark.parametrize("columns", [32, 256, 576])
def test_what_was_rounded_before_keeps_its_numbers(columns, pool):
    """And beside rows that packing rounds itself."""
    rng = np.random.default_rng(columns)
    groups = columns // 32
    rounded = Int4Rows(
        rng.uniform(1e-4, 4e-4, (40, num_supers(groups), 2)).astype(np.float16),
        rng.integers(0, 256, (40, groups, 2), dtype=np.uint8),
        rng.integers(0, 16, (40, columns), dtype=np.uint8),
    )
    data = rounded.to_bytes()
    again = Int4Rows.from_bytes(data, columns)
    np.testing.assert_array_equal(again.values(), rounded.values())
    dense = oracle.make_source("bf16", 24, columns)
    parts = [dense.part, (data.reshape(-1), "int4", 40, columns), dense.part]
    matrix = native.pack_matrix(parts, None, "int4", ISA, pool)
    assert matrix.format == "int4"
    alone = oracle.dequantize(pack(dense, "int4", pool), pool)
    expected = np.concatenate([alone, rounded.values(), alone])
    np.testing.assert_allclose(oracle.dequantize(matrix, pool), expected, rtol=3e-7, atol=1e-9)
    with pytest.raises(ValueError, match=r"int4 matrix of 40 x .* bytes"):
        native.pack_matrix([(data.reshape(-1)[1:].copy(), "int4", 40, columns)], None, "int4", ISA, pool)


def test_packing_does_not_depend_on_the_number_of_threads(pool):
    single = native.ThreadPool(1)
    for quantization in ("", "int8", "int4"):
        source = oracle.make_source("bf16", 96, 320)
        np.testing.assert_array_equal(
            oracle.dequantize(pack(source, quantization, pool), pool),
            oracle.dequantize(pack(source, quantization, single), pool),
        )


def test_quantised_weights_are_the_same_on_every_instruction_set(pool):
    source = oracle.make_source("bf16", 64, 576)
    for quantization in ("int8", "int4"):
        packed = [
            oracle.dequantize(native.pack_matrix([source.part], None, quantization, isa, pool), pool)
            for isa in native.available_isas()
        ]
        for other in packed[1:]:
            np.testing.assert_array_equal(other, packed[0])


def test_refusals_name_the_value(pool):
    source = oracle.make_source("q4_k", 4, 512)
    with pytest.raises(ValueError, match="q3_k"):
        native.pack_matrix([(source.data, "q3_k", 4, 512)], None, "", ISA, pool)
    with pytest.raises(ValueError, match="1152 bytes, got 1151"):
        native.pack_matrix([(source.data[:-1].copy(), "q4_k", 4, 512)], None, "", ISA, pool)
    with pytest.raises(ValueError, match="multiple of 256"):
        native.pack_matrix([(source.data, "q4_k", 4, 511)], None, "", ISA, pool)
    with pytest.raises(ValueError, match="int3"):
        native.pack_matrix([source.part], None, "int3", ISA, pool)
    with pytest.raises(ValueError, match="sse9"):
        native.pack_matrix([source.part], None, "", "sse9", pool)
    with pytest.raises(IndexError, match="row 4"):
        pack(source, "", pool).dequantize_rows(np.array([4]), np.zeros((1, 512), np.float32), pool)
