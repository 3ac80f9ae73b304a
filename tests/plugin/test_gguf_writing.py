"""The comparison's GGUF files hold the checkpoint they are made from, as llama.cpp lays it out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from cpu_backend.demo_model import make_demo_model
from tests.plugin.gguf_samples import write_gguf, write_passing_gguf

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks/compare/convert/to_gguf.py"


def to_gguf(checkpoint: Path, path: Path, weights: str) -> gguf.GGUFReader:
    subprocess.run([sys.executable, SCRIPT, checkpoint, path, weights], check=True)
    return gguf.GGUFReader(path)


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_demo_model(tmp_path / "model", write_passing_gguf(tmp_path, monkeypatch))


def test_written_file_equals_the_one_the_checkpoint_came_from(
    tmp_path: Path, checkpoint: Path
) -> None:
    write_gguf(tmp_path / "expected.gguf")
    expected = gguf.GGUFReader(tmp_path / "expected.gguf")
    made = to_gguf(checkpoint, tmp_path / "made.gguf", "F32")
    weights = {tensor.name: tensor.data for tensor in made.tensors}
    assert weights.keys() == {tensor.name for tensor in expected.tensors}
    for tensor in expected.tensors:
        np.testing.assert_array_equal(weights[tensor.name], tensor.data, err_msg=tensor.name)
    for key, field in expected.fields.items():
        # The chat template is for servers that chat; the comparison completes.
        if not key.startswith("GGUF.") and key != "tokenizer.chat_template":
            found = made.get_field(key)
            assert found is not None, key
            assert found.contents() == pytest.approx(field.contents()), key


@pytest.mark.parametrize(
    ("weights", "tolerance"), [("BF16", 0), ("F16", 1e-3), ("Q8_0", 2e-2), ("Q4_1", 0.3)]
)
def test_narrow_weights_are_near(
    tmp_path: Path, checkpoint: Path, weights: str, tolerance: float
) -> None:
    wide = to_gguf(checkpoint, tmp_path / "wide.gguf", "F32")
    narrow = to_gguf(checkpoint, tmp_path / "narrow.gguf", weights)
    for exact, tensor in zip(wide.tensors, narrow.tensors, strict=True):
        is_matrix = len(tensor.shape) > 1
        assert tensor.tensor_type.name == (weights if is_matrix else "F32")
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert np.abs(values - exact.data).max() <= tolerance
