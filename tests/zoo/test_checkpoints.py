"""Quantized checkpoints of models of images and sounds, and of experts without a gate; all of them
by hand, as formats."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

# Of the kinds that people publish so: layers of their own, gated delta nets, windows.
WITH_TORCHVISION = (
    "Gemma3ForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
)


@pytest.mark.parametrize(
    "name",
    [
        "Idefics3ForConditionalGeneration",
        "NemotronHForCausalLM",
        *(
            pytest.param(name, marks=pytest.mark.needs("torchvision"))
            for name in WITH_TORCHVISION
            if os.environ.get("ZOO") == "all"
        ),
    ],
)
def test_every_scheme_costs_what_its_rounding_does(name: str) -> None:
    command = [sys.executable, "-m", "tests.zoo.checkpoints", name]
    done = subprocess.run(command, capture_output=True, text=True)
    [line] = [line for line in done.stdout.splitlines() if line.startswith('["')]
    found = json.loads(line)[1]
    assert len(found) > 1
    assert {scheme: fault for scheme, (_, fault) in found.items() if fault} == {}
