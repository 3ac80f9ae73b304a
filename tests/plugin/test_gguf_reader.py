"""Hostile and damaged GGUF files: one sentence each, never another error, a hang or a flood."""

from __future__ import annotations

import random
import resource
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from cpu_backend.errors import ConfigError
from cpu_backend.gguf import reader
from cpu_backend.gguf.checkpoint import Checkpoint
from cpu_backend.gguf.grids import GRIDS
from cpu_backend.gguf.reader import GgufFile
from cpu_backend.gguf.tokenizer import GgufTokenizer
from tests.plugin.gguf_samples import write_gguf

NUMBER, STRING, ARRAY = 4, 8, 9


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def tensor(
    name: str = "a", shape: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0
) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


def made(
    folder: Path, *tensors: bytes, fields: tuple[bytes, ...] = (), data: int = 128, **counts: int
) -> Path:
    """A file of ready-made fields and descriptions, and ``data`` bytes of tensors."""
    header = b"GGUF" + struct.pack(
        "<IQQ", 3, counts.get("num_tensors", len(tensors)), counts.get("num_fields", len(fields))
    )
    body = header + b"".join(fields) + b"".join(tensors)
    path = folder / "made.gguf"
    path.write_bytes(body + bytes(-len(body) % 32) + bytes(data))
    return path


def refused(path: Path, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as error:
        GgufFile(path)
    assert "made.gguf" in str(error.value)
    assert "\n" not in str(error.value)


def test_reads_what_the_package_gguf_reads(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", quantized="blk.1.attn_k.weight")
    found, expected = GgufFile(tmp_path / "a.gguf"), gguf.GGUFReader(tmp_path / "a.gguf")
    for key, field in expected.fields.items():
        if not key.startswith("GGUF."):
            value = found.metadata[key]
            assert getattr(value, "tolist", lambda v=value: v)() == field.contents(), key
    assert found.tensors.keys() == {t.name for t in expected.tensors}
    data = np.fromfile(found.path, np.uint8)
    for t in expected.tensors:
        ours = found.tensors[t.name]
        assert (ours.offset, ours.nbytes) == (t.data_offset, t.n_bytes)
        assert ours.shape == tuple(t.shape[::-1].tolist())
        raw = data[ours.offset : ours.offset + ours.nbytes]
        assert np.array_equal(raw, t.data.view(np.uint8).ravel())


def test_the_other_byte_order(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_context_length(77)
    writer.add_tensor("a", np.arange(32, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = GgufFile(tmp_path / "a.gguf")
    assert found.order == ">"
    assert found.metadata["llama.context_length"] == 77
    assert found.tensors["a"].shape == (32,)


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ([tensor("bad", (1 << 40,))], "ends before the tensor 'bad' does"),
        ([tensor("bad", (1 << 63, 1 << 63, 1 << 63, 1 << 63))], "ends before the tensor 'bad'"),
        ([tensor("bad", (32,), 0, 1 << 63)], "ends before the tensor 'bad'"),
        ([tensor("bad", (32,), 0, 32)], "ends before the tensor 'bad'"),
        ([tensor("bad", (8,), 0, 3)], "tensor 'bad' at a place that is not aligned"),
        ([tensor("bad", (0, 32))], r"tensor 'bad' of shape \[32, 0\]"),
        ([tensor("bad", ())], "0 dimensions in the tensor 'bad'"),
        ([tensor("bad", (1,) * 5)], "5 dimensions in the tensor 'bad'"),
        ([tensor("bad", (33,), 2)], "tensor 'bad' with rows of 33 values"),
        ([tensor("bad", (32,), 99)], "tensor 'bad' in the unknown type 99"),
        ([tensor("bad", (256,), 15)], "tensor 'bad' in Q8_K, which is not supported: .*Q4_K"),
        ([tensor("bad"), tensor("bad")], "tensor 'bad' twice"),
    ],
)
def test_bad_tensors_are_named(tmp_path: Path, tensors: list[bytes], sentence: str) -> None:
    refused(made(tmp_path, *tensors), sentence)


def test_types_whose_tables_are_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of those, and no other."""
    assert {kind.name for kind in reader.BLOCK_TYPES.values() if kind.needs_grid} == set(GRIDS)
    path = made(tmp_path, tensor("a", (256,), 21))
    assert GgufFile(path).tensors["a"].kind.name == "IQ3_S"
    monkeypatch.setattr(reader.importlib.util, "find_spec", lambda name: None)
    refused(path, "tensor 'a' in IQ3_S, .* package gguf: pip install gguf")
    assert GgufFile(made(tmp_path, tensor("a", (256,), 23), data=256)).tensors


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        (text("k") + struct.pack("<IQ", STRING, 1 << 62), "ends before the field 'k'"),
        (text("k") + struct.pack("<IIQ", ARRAY, NUMBER, 1 << 62), "ends before the field 'k'"),
        (text("k") + struct.pack("<IIQ", ARRAY, STRING, 1 << 60), "ends before the field 'k'"),
        (text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1), "an array of the unknown type 9"),
        (text("k") + struct.pack("<II", 77, 0), "unknown type 77 in the field 'k'"),
        (struct.pack("<Q", 1 << 63), "ends before the name of a field"),
        (struct.pack("<QB", 1, 0xFF) + bytes(8), "no valid UTF-8 in the name of a field"),
        ((text("k") + struct.pack("<II", NUMBER, 1)) * 2, "the field 'k' twice"),
        (text("general.alignment") + struct.pack("<II", NUMBER, 0), "an alignment of 0"),
    ],
)
def test_bad_fields_are_named(tmp_path: Path, field: bytes, sentence: str) -> None:
    refused(
        made(tmp_path, fields=(field,), data=256, num_fields=1 + ("twice" in sentence)), sentence
    )


@pytest.mark.timeout(60)
def test_counts_beyond_the_file_are_refused_at_once(tmp_path: Path) -> None:
    for counts in (
        {"num_tensors": 1 << 63},
        {"num_fields": (1 << 64) - 1},
        {"num_tensors": 1 << 20},
    ):
        refused(made(tmp_path, tensor(), **counts), "ends before as many fields and tensors")


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "made.gguf"
    path.write_bytes(b"")
    refused(path, "too short")
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    refused(path, "not a GGUF file")
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 1, 0, 0))
    refused(path, "of version 1, known are 2 and 3")
    with pytest.raises(ConfigError, match="No such file"):
        GgufFile(tmp_path / "missing.gguf")


def test_what_counts_as_a_gguf_file(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model")
    assert reader.is_gguf(tmp_path / "model")
    assert reader.is_gguf(tmp_path / "missing.gguf")
    assert not reader.is_gguf(tmp_path)
    assert not reader.is_gguf(Path("someone/some-model"))
    (tmp_path / "other").write_bytes(b"other")
    assert not reader.is_gguf(tmp_path / "other")


@pytest.mark.timeout(300)
def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    """Flipped bytes and cut ends, all from one seed; memory stays where it was."""
    write_gguf(tmp_path / "good.gguf", quantized="blk.0.attn_q.weight")
    good = (tmp_path / "good.gguf").read_bytes()
    header = min(t.offset for t in GgufFile(tmp_path / "good.gguf").tensors.values())
    dice = random.Random(20)
    damaged = tmp_path / "damaged.gguf"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = {True: 0, False: 0}
    for turn in range(300):
        data = bytearray(good)
        if turn % 4 == 0:
            del data[dice.randrange(len(data)) :]
        else:
            for _ in range(dice.choice((1, 1, 2, 8))):
                data[dice.randrange(header)] = dice.choice((0, 1, 0x7F, 0xFF, dice.randrange(256)))
        damaged.write_bytes(data)
        try:
            checkpoint = Checkpoint(GgufFile(damaged))
            GgufTokenizer(checkpoint.file)
            for entry in checkpoint.entries.values():
                checkpoint.values(entry)
            outcomes[True] += 1
        except ConfigError:
            outcomes[False] += 1
    assert min(outcomes.values()) > 25, outcomes
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB
