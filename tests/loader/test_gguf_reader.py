"""A GGUF file is read as the gguf package reads it, and a damaged one ends in a GGUFError, whatever the damage."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_files import LLAMA, gguf_bytes, key, llama_tensors, string, tensor, write_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pellucid.loader.errors import GGUFError
from pellucid.loader.gguf_reader import GGUFFile
from pellucid.loader.resolve import ModelFiles

U32, F32, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    vocabulary = {"tokenizer.ggml.tokens": [f"t{i}" for i in range(48)], "tokenizer.ggml.scores": [0.5] * 48}
    write_model(path, "llama", {**LLAMA, **vocabulary, "general.name": "tiny", "x.flag": True}, llama_tensors("Q8_0"))
    return path.read_bytes()


def test_real_files_read_as_the_gguf_package_reads_them(real_model: ModelFiles, real_reader: gguf.GGUFReader) -> None:
    assert real_model.gguf is not None
    ours, theirs = GGUFFile(real_model.gguf), real_reader
    assert list(ours.tensors) == [t.name for t in theirs.tensors]
    for t in theirs.tensors:
        info = ours.tensors[t.name]
        assert (info.offset, info.num_bytes, info.ggml_type.name) == (t.data_offset, t.n_bytes, t.tensor_type.name)
        assert info.shape == tuple(reversed(t.shape.tolist()))
        assert np.array_equal(ours.raw(info).reshape(-1), t.data.view(np.uint8).reshape(-1))
    for name, value in ours.metadata.items():
        expected = theirs.fields[name].contents()
        found = value.tolist() if isinstance(value, np.ndarray) else value
        assert found == expected, name


def test_version_2_reads_as_version_3_does(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "3.gguf").write_bytes(whole)
    (tmp_path / "2.gguf").write_bytes(whole[:4] + u32(2) + whole[8:])
    three, two = GGUFFile(tmp_path / "3.gguf"), GGUFFile(tmp_path / "2.gguf")
    assert (three.version, two.version) == (3, 2)
    assert dict(three.tensors) == dict(two.tensors)
    assert three.metadata["tokenizer.ggml.tokens"] == two.metadata["tokenizer.ggml.tokens"]


def test_no_tensor_can_be_written_back_into_the_file(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(whole)
    file = GGUFFile(path)
    file.raw(file.tensors["token_embd.weight"])[:] = 0
    assert path.read_bytes() == whole


ONE_KEY = [key("a", U32, u32(1))]
BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "short": (b"GGUF\x03\0\0\0", "too few"),
    "magic": (gguf_bytes(ONE_KEY, magic=b"GGML"), "does not start"),
    "version 1": (gguf_bytes(ONE_KEY, version=1), "version 1"),
    "big-endian": (gguf_bytes(ONE_KEY, version=3 << 24), "big-endian"),
    "key count": (gguf_bytes(ONE_KEY, num_keys=1 << 60), "metadata keys"),
    "tensor count": (gguf_bytes(ONE_KEY, num_tensors=1 << 60), "tensors; the limit"),
    "missing key": (gguf_bytes(ONE_KEY, num_keys=2), "the file has"),
    "key length": (gguf_bytes([u64(1 << 62)]), "bytes long"),
    "string length": (gguf_bytes([key("a", STRING, u64(1 << 40))]), "bytes long"),
    "string past the end": (gguf_bytes([key("a", STRING, u64(1000) + b"abc")]), "the file has"),
    "not UTF-8": (gguf_bytes([key("a", STRING, string(b"\xff\xfe"))]), "not UTF-8"),
    "value type": (gguf_bytes([key("a", 99, u32(1))]), "value type 99"),
    "truth value": (gguf_bytes([key("a", BOOL, b"\x02")]), "neither 0 nor 1"),
    "nested array": (gguf_bytes([key("a", ARRAY, u32(ARRAY) + u64(1) + u32(U32) + u64(0))]), "array of arrays"),
    "array count": (gguf_bytes([key("a", ARRAY, u32(U32) + u64(1 << 61))]), "values of 'a'"),
    "strings count": (gguf_bytes([key("a", ARRAY, u32(STRING) + u64(1 << 61))]), "strings in 'a'"),
    "strings past the end": (gguf_bytes([key("a", ARRAY, u32(STRING) + u64(2) + string("x") + u64(9))]), "of 'a'"),
    "strings not UTF-8": (gguf_bytes([key("a", ARRAY, u32(STRING) + u64(1) + string(b"\xff"))]), "not UTF-8"),
    "array value type": (gguf_bytes([key("a", ARRAY, u32(77) + u64(1))]), "value type 77"),
    "duplicate key": (gguf_bytes(ONE_KEY * 2), "occurs twice"),
    "alignment type": (gguf_bytes([key("general.alignment", U64, u64(32))]), "not uint32"),
    "alignment 0": (gguf_bytes([key("general.alignment", U32, u32(0))]), "power of two"),
    "alignment 24": (gguf_bytes([key("general.alignment", U32, u32(24))]), "power of two"),
    "alignment huge": (gguf_bytes([key("general.alignment", U32, u32(1 << 31))]), "power of two"),
    "no dimensions": (gguf_bytes(tensors=[tensor("t", [])], data=bytes(64)), "0 dimensions"),
    "five dimensions": (gguf_bytes(tensors=[tensor("t", [1] * 5)], data=bytes(64)), "5 dimensions"),
    "many dimensions": (gguf_bytes(tensors=[string("t") + u32(1 << 31)], data=bytes(64)), "dimensions"),
    "dimension 0": (gguf_bytes(tensors=[tensor("t", [0, 4])], data=bytes(64)), "does not fit"),
    "dimensions overflow": (gguf_bytes(tensors=[tensor("t", [1 << 33, 1 << 33])], data=bytes(64)), "does not fit"),
    "tensor type": (gguf_bytes(tensors=[tensor("t", [4], kind=4)], data=bytes(64)), "unknown type 4"),
    "row not whole blocks": (gguf_bytes(tensors=[tensor("t", [33], kind=8)], data=bytes(64)), "no multiple"),
    "misaligned": (gguf_bytes(tensors=[tensor("t", [4], offset=8)], data=bytes(64)), "no multiple of 32"),
    "past the end": (gguf_bytes(tensors=[tensor("t", [64])], data=bytes(64)), "cut off"),
    "offset past the end": (gguf_bytes(tensors=[tensor("t", [4], offset=1 << 62)], data=bytes(64)), "cut off"),
    "duplicate tensor": (
        gguf_bytes(tensors=[tensor("t", [4]), tensor("t", [4], offset=32)], data=bytes(64)),
        "occurs twice",
    ),
    "overlap": (gguf_bytes(tensors=[tensor("s", [16]), tensor("t", [4], offset=32)], data=bytes(64)), "overlap"),
    "tensor name": (gguf_bytes(tensors=[tensor("n" * 300, [4])], data=bytes(64)), "bytes long"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_with_a_file_is_named(name: str, tmp_path: Path) -> None:
    content, expected = BROKEN[name]
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(GGUFError, match=expected) as caught:
        GGUFFile(path)
    assert str(path) in str(caught.value)


def read(path: Path, content: bytes) -> bool:
    """Whether it can be read; anything else than a GGUFError, or memory out of proportion, fails the test."""
    path.write_bytes(content)
    tracemalloc.start()
    try:
        file = GGUFFile(path)
        for info in file.tensors.values():
            assert file.raw(info).nbytes == info.num_bytes
    except GGUFError:
        return False
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2_000_000 + 30 * len(content)
    return True


def test_a_file_cut_off_anywhere_is_refused(whole: bytes, tmp_path: Path) -> None:
    cuts = [*range(0, 3000, 7), *range(3000, len(whole) - 1, 977), len(whole) - 1]
    # the last tensor's padding may be missing, its bytes may not
    assert not any(read(tmp_path / "cut.gguf", whole[:cut]) for cut in cuts)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_bytes_give_a_file_or_a_clean_error(data: st.DataObject, whole: bytes, tmp_path: Path) -> None:
    header = 3500  # counts, lengths, types and offsets all lie here
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, header))
        value = data.draw(st.binary(min_size=1, max_size=8) | st.sampled_from([b"\xff" * 8, b"\0" * 8, u64(1 << 40)]))
        content[at : at + len(value)] = value
    read(tmp_path / "mutated.gguf", bytes(content))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(noise=st.binary(max_size=400))
def test_noise_behind_a_header_gives_a_clean_error(noise: bytes, tmp_path: Path) -> None:
    read(tmp_path / "noise.gguf", gguf_bytes(num_keys=3, num_tensors=2) + noise)
