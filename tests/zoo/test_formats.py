"""The page of formats, which a run goes on from."""

from __future__ import annotations

import json
import math
import multiprocessing
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.conftest import mostly_slow
from tests.zoo import formats, run, text
from tests.zoo.build import build

ISAS = ["avx2", "avx512"]
SCALED = "AXK1ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeForCausalLM", "LagunaForCausalLM"


def test_a_page_is_read_back_as_it_was_written() -> None:
    """Also of a model whose name begins another's, faults and cells without a figure."""
    names = "GraniteForCausalLM", "GraniteMoeForCausalLM", "NemotronForCausalLM"
    specs = [spec for spec in text.SPECS if spec.name in names]
    wrong = {form.name: (0.125, f"said by {form.name}") for form in formats.FORMATS[:2]}
    right = {form.name: (math.nan, "") for form in formats.FORMATS[2:]}
    rows = {spec.name: formats.row(spec, {isa: wrong | right for isa in ISAS}) for spec in specs}
    assert len(rows) == len(names)
    assert all(len(row.faults) == 4 for row in rows.values())
    assert formats.rows_of(formats.page(ISAS, rows), ISAS) == rows


@pytest.mark.parametrize("name", mostly_slow(SCALED, "LagunaForCausalLM"))
def test_fp16_keeps_the_scale_of_routed_experts(name: str) -> None:
    """The host divides the shared ones instead, in layers that make up for it and in others."""
    command = [sys.executable, "-m", "tests.zoo.formats", name, "--examine", "float16 auto"]
    done = subprocess.run(command, capture_output=True, text=True)
    [line] = [line for line in done.stdout.splitlines() if line.startswith('["')]
    assert [fault for _, fault in json.loads(line)[1].values()] == [""], done.stderr[-2000:]


def _without_scheme(folder: Path) -> dict[str, set[str]]:
    """The names of layers with a weight that is not quantized, by the method that they have."""
    run.prepare()
    build(next(spec for spec in text.SPECS if spec.name == "JambaForCausalLM"), folder)
    from vllm import LLM

    llm = LLM(str(folder), skip_tokenizer_init=True, quantization="cpu_int8", max_model_len=256)
    found: dict[str, set[str]] = defaultdict(set)

    def look(model: torch.nn.Module) -> None:
        for name, module in model.named_modules():
            method = type(getattr(module, "quant_method", None)).__name__
            if method.startswith("Unquantized"):
                found[method].add(name.rpartition(".")[2])

    llm.apply_model(look)
    return dict(found)


def test_a_scheme_at_load_reaches_layers_that_the_model_does_not_pass_it_on_to(
    tmp_path: Path,
) -> None:
    """Jamba makes its output layer and its Mamba layers without one."""
    # Not forked: the tests before have started threads of OpenMP.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        found = process.submit(_without_scheme, tmp_path).result(timeout=300)
    assert found == {
        "UnquantizedEmbeddingMethod": {"embed_tokens"},
        "UnquantizedLinearMethod": {"conv1d", "router"},
    }


def test_a_page_of_other_instruction_sets_is_not_gone_on_with() -> None:
    """Its figures are the larger ones of what it names."""
    with pytest.raises(SystemExit, match="another file"):
        formats.rows_of(formats.page(ISAS, {}), ["avx2", "avx512_bf16"])
