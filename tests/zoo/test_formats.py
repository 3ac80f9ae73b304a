"""The page of formats, which a run goes on from."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from tests.conftest import mostly_slow
from tests.zoo import formats, text

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


def test_a_page_of_other_instruction_sets_is_not_gone_on_with() -> None:
    """Its figures are the larger ones of what it names."""
    with pytest.raises(SystemExit, match="another file"):
        formats.rows_of(formats.page(ISAS, {}), ["avx2", "avx512_bf16"])
