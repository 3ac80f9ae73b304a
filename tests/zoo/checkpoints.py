"""``python -m tests.zoo.checkpoints [NAMES] [--schemes ...]``: quantized checkpoints of models of
images or sounds, or of the models that are named, in all schemes or in some.

The text's layers are quantized, as people publish them (examples/quantize_model.py), and judged as
formats are (rounding.py): alone, together and from the prefix cache the same bit for bit, and no
error that is larger than what so much rounding has to cost.  One JSON line per model.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from examples import quantize_model
from tests.e2e import other_tools
from tests.zoo import audio, formats, images, kinds, run, text
from tests.zoo.build import Spec
from tests.zoo.media import MediaSpec
from tests.zoo.rounding import Found, Judge

# Each scheme, of groups that the small models' sizes are multiples of, and what its rounding costs
# a weight or an activation, relative to its size: root of mean squares, for normally distributed
# values.
SCHEMES = {
    "w8a8": (quantize_model.SCHEMES["w8a8"], 0.012),
    "fp8": (quantize_model.SCHEMES["fp8"], 0.037),
    "w4a16": (quantize_model.SCHEMES["w4a16"], 0.09),
    "gptq-act-order": (quantize_model.SCHEMES["gptq-act-order"], 0.09),
    "awq": (quantize_model.awq(32), 0.09),
}
# The host has no parameters for the order of GPTQ in mixtures; Model Optimizer's are of text here.
OF_TEXT = {
    **{name: scheme for name, scheme in SCHEMES.items() if name != "gptq-act-order"},
    "gptq": (quantize_model.gptq(4, 32), 0.09),
    "modelopt-fp8": (other_tools.modelopt(quantize_model.fp8(0, 0), "FP8"), 0.037),
    "modelopt-mxfp8": (other_tools.modelopt(quantize_model.SCHEMES["mxfp8"], "MXFP8"), 0.037),
    "bnb-nf4": (other_tools.bits_and_bytes("nf4", double=True), 0.095),
    "bnb-int8": (other_tools.bits_and_bytes("int8"), 0.012),
    "mxfp4": (quantize_model.SCHEMES["mxfp4"], 0.12),
    "modelopt-nvfp4": (other_tools.modelopt(quantize_model.SCHEMES["nvfp4"], "NVFP4"), 0.1),
}
ALL = {**SCHEMES, **OF_TEXT}


def examine(spec: Spec, chosen: Sequence[str], folder: Path) -> Found:
    """Every scheme of one model, or those that are chosen.  Runs in a process of its own."""
    source = folder / "source"
    source.mkdir()
    judged = Judge(spec, source)
    found = {}
    for name in chosen or (SCHEMES if isinstance(spec, MediaSpec) else OF_TEXT):
        scheme, noise = ALL[name]
        quantize_model.quantize(scheme, source, folder / name)
        options = {**text.CHUNKED, "dtype": "bfloat16"}
        found[name] = judged.examine(folder / name, options, noise)
    return found


def main() -> int:
    """Of all models of images or sounds if none is named."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.checkpoints", description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures")
    parser.add_argument("--schemes", nargs="+", choices=tuple(ALL), default=[])
    arguments = parser.parse_args()
    specs = {spec.name: spec for spec in (*images.SPECS, *audio.SPECS)}
    run.prepare()
    faulty = False
    for name in arguments.names or [name for name in specs if specs[name] in formats.runnable()]:
        with tempfile.TemporaryDirectory() as folder:
            spec = kinds.find(name)[1]
            found = run.forked(
                examine, spec, arguments.schemes, Path(folder), seconds=formats.SECONDS
            )
        faulty = faulty or any(fault for _, fault in found.values())
        print(json.dumps([name, found]), flush=True)
    return int(faulty)


if __name__ == "__main__":
    sys.exit(main())
