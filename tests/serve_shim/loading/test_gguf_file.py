"""GGUF headers that do not add up are refused with file, field and value; sound ones are read."""

import struct
from pathlib import Path

import gguf
import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serve_shim.errors import ModelLoadError
from serve_shim.loading.gguf_file import GgufFile
from serve_shim.loading.gguf_reader import GgufReader


def _text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def _pair(key: str, kind: int, value: bytes) -> bytes:
    return _text(key) + struct.pack("<I", kind) + value


def _tensor(name: str, shape: list[int], kind: int = 0, offset: int = 0) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return _text(name) + dims + struct.pack("<IQ", kind, offset)


def _file(
    pairs: list[bytes],
    tensors: list[bytes],
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
    data: int = 256,
) -> bytes:
    found = counts or (len(tensors), len(pairs))
    head = magic + struct.pack("<IQQ", version, *found) + b"".join(pairs + tensors)
    return head + bytes(-len(head) % 32 + data)


_NAME = _pair("general.architecture", 8, _text("llama"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_values_of_every_type_are_read(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("a", 7)
    writer.add_int64("b", -5)
    writer.add_float64("c", 0.5)
    writer.add_bool("d", True)
    writer.add_array("e", ["x", "é"])
    writer.add_array("f", [1, 2, 3])
    weights = numpy.arange(24, dtype=numpy.float32).reshape(2, 3, 4)
    writer.add_tensor("w", weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(path)
    values = file.metadata.values
    assert [values[key] for key in "abcd"] == [7, -5, 0.5, True]
    assert [values[key] for key in "ef"] == [["x", "é"], [1, 2, 3]]
    tensor = file.tensors["w"]
    assert tensor.shape == (2, 3, 4)
    out = torch.empty(2, 4)
    file.read_rows(tensor, 3, 5, out)
    assert torch.equal(out, torch.from_numpy(weights).view(6, 4)[3:5])


def test_version_2_and_other_alignment_are_read(path: Path) -> None:
    pairs = [_NAME, _pair("general.alignment", 4, struct.pack("<I", 8))]
    path.write_bytes(_file(pairs, [_tensor("w", [4], 0, 8)], version=2))
    assert GgufFile(path).tensors["w"].start % 8 == 0


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "the file is empty"),
        (b"GG", "magic: found b'GG'"),
        (_file([], [], magic=b"GGML"), "magic: found b'GGML'.*no GGUF file"),
        (_file([], [], version=1), "version: found 1, supported are 2 and 3"),
        (_file([], [], version=3 << 24), "version: .*big-endian"),
        (_file([_NAME], [], counts=(2**60, 1)), f"tensor count: count {2**60} cannot fit"),
        (_file([_NAME], [], counts=(0, 2**40)), f"metadata count: count {2**40} cannot fit"),
        (_file([_NAME, _NAME], []), "metadata `general.architecture`: is given twice"),
        (_file([_pair("k", 99, b"")], []), "metadata `k`: unknown value type 99"),
        (_file([_pair("k", 9, struct.pack("<I", 9))], []), "array of arrays"),
        (_file([_pair("k", 9, struct.pack("<I", 77))], []), "unknown value type 77"),
        (_file([_pair("k", 8, struct.pack("<Q", 2**50))], []), "metadata `k`: count .* cannot"),
        (_file([_pair("k", 9, struct.pack("<IQ", 4, 2**61))], []), "`k`: count .* cannot fit"),
        (_file([_pair("k", 8, _text(b"\xff\xfe"))], []), "metadata `k`: not UTF-8"),
        (_file([_pair("k", 9, struct.pack("<IQQ", 8, 1, 2**62))], []), "`k`: string 0"),
        (_file([], [_tensor("w", [])]), "`w`: has 0 dimensions"),
        (_file([], [_tensor("w", [1] * 5)]), "`w`: has 5 dimensions"),
        (_file([], [_tensor("w", [0])]), r"`w`: has the impossible shape \[0\]"),
        (_file([], [_tensor("w", [2**63, 2**63])]), "`w`: has the impossible shape"),
        (_file([], [_tensor("w", [4], 99)]), "`w`: type 99 is not supported; supported: F32"),
        (_file([], [_tensor("w", [256], 10)]), "`w`: type Q2_K is not supported"),
        (_file([], [_tensor("w", [33], 2)]), "`w`: rows of 33 are no multiple of Q4_0's 32"),
        (_file([], [_tensor("w", [4]), _tensor("w", [4], 0, 32)]), "`w`: is listed twice"),
        (_file([], [_tensor("w", [4], 0, 3)]), "`w`: offset 3 is not a multiple of 32"),
        (_file([], [_tensor("w", [2**20])]), "`w`: needs bytes up to .*it is truncated"),
        (_file([], [_tensor("w", [4], 0, 2**63)]), "`w`: needs bytes up to"),
        (
            _file([], [_tensor("a", [32]), _tensor("b", [4], 0, 32)]),
            "`b`: starts at .*inside tensor `a`",
        ),
        (
            _file([_pair("general.alignment", 4, struct.pack("<I", 24))], []),
            "`general.alignment` is 24; expected a power of two",
        ),
    ],
)
def test_header_that_does_not_add_up_is_refused(path: Path, raw: bytes, reason: str) -> None:
    path.write_bytes(raw)
    with pytest.raises(ModelLoadError, match=reason) as caught:
        GgufFile(path)
    assert str(path) in str(caught.value)


def test_missing_file_is_refused(path: Path) -> None:
    with pytest.raises(ModelLoadError, match="cannot be read: No such file"):
        GgufFile(path)


def test_every_truncation_is_refused(path: Path) -> None:
    pairs = [_NAME, _pair("k", 9, struct.pack("<IQ", 8, 1) + _text("t"))]
    whole = _file(pairs, [_tensor("w", [8])], data=32)
    path.write_bytes(whole)
    assert list(GgufFile(path).tensors) == ["w"]
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelLoadError):
            GgufFile(path)


@given(st.data())
@settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_flipped_bytes_give_a_file_or_a_refusal(path: Path, data: st.DataObject) -> None:
    whole = bytearray(_file([_NAME], [_tensor("w", [8]), _tensor("v", [32], 2, 64)]))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, 160))] = data.draw(st.integers(0, 255))
    path.write_bytes(whole)
    try:
        file = GgufFile(path)
    except ModelLoadError:
        return
    for tensor in file.tensors.values():
        file.read_rows(tensor, 0, 1, torch.empty(1, tensor.shape[-1]))


def test_long_string_is_refused() -> None:
    data = struct.pack("<Q", 1 << 25) + bytes(1 << 25)
    with pytest.raises(ModelLoadError, match="longer than"):
        GgufReader(data, "f").text("field")
