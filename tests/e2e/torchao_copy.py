"""``python -m tests.e2e.torchao_copy SOURCE TARGET KIND``: a checkpoint as ``transformers`` writes
those of torchao; KIND is int8, int4 (groups of 32) or fp8.  Needs torchao on the path."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, TorchAoConfig


def main(source: Path, target: Path, kind: str) -> None:
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import (
        Float8WeightOnlyConfig,
        Int8WeightOnlyConfig,
        IntxWeightOnlyConfig,
        quantize_,
    )
    from torchao.quantization.granularity import PerGroup

    config = {
        "int8": Int8WeightOnlyConfig(),
        "int4": IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
        "fp8": Float8WeightOnlyConfig(),
    }[kind]
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    quantize_(model.model, config)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors"))
    weights = {n: t for n, t in model.state_dict().items() if n != "lm_head.weight"}  # tied
    tensors, metadata = flatten_tensor_state_dict(weights)
    save_file(tensors, target / "model.safetensors", metadata | {"format": "pt"})
    described = json.loads((source / "config.json").read_text())
    described["quantization_config"] = TorchAoConfig(config).to_dict()
    (target / "config.json").write_text(json.dumps(described))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
