"""The header reader against files that the reference writer makes, and against broken ones."""

import struct
from pathlib import Path

import gguf
import pytest

from tokenizer_service.gguf_metadata import BadGgufError, read_metadata


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("s", "héllo")
    writer.add_bool("b", True)
    writer.add_int32("i", -5)
    writer.add_uint64("u", 2**40)
    writer.add_float32("f", 0.5)
    writer.add_array("strings", ["a", "", "ß"])
    writer.add_array("numbers", [1, -2, 3])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_values_of_all_kinds_are_read_as_written(written: Path) -> None:
    metadata = read_metadata(written)
    expected = {
        "s": "héllo",
        "b": True,
        "i": -5,
        "u": 2**40,
        "f": 0.5,
        "strings": ["a", "", "ß"],
        "numbers": [1, -2, 3],
    }
    assert expected.items() <= metadata.items()
    assert metadata["b"] is True


def test_a_file_cut_anywhere_is_refused(written: Path, tmp_path: Path) -> None:
    whole = written.read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in range(len(whole)):
        cut.write_bytes(whole[:size])
        with pytest.raises(BadGgufError):
            read_metadata(cut)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"GGML" + bytes(20), "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**40), "number of keys is"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**50), "length of a string is"),
        (b"GGUF" + struct.pack("<IQQQcI", 3, 0, 1, 1, b"k", 77), "unknown value type 77"),
        (b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"k", 9, 4, 2**50), "length of an array"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(BadGgufError, match=message):
        read_metadata(path)
