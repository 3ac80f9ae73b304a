"""``python -m tests.zoo.adapters``: models of text with a LoRA adapter of each linear layer.

Prompts with the adapter and without it, in one batch, have to be answered as ``transformers``
answers with the adapter merged into its weights and without it, or the model refuses adapters.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.features import adapters
from tests.zoo import judge, kinds, run, text
from tests.zoo.build import Spec, build
from tests.zoo.run import Answer, Failed, forked

# Routers, heads, and what is no projection of a token's state.
LEFT_OUT = re.compile(r"(^|\.)(lm_head|embed_out|gate|router|shared_expert_gate|conv1d)$|experts\.")
SEEN = 0.5  # deviations by which the adapter has to change a log-probability
PROMPTS = text.prompts()[1:3]


def write(model: torch.nn.Module, folder: Path) -> Path:
    """An adapter of random numbers for every linear layer of ``model`` but LEFT_OUT, in a folder."""
    layers = {
        name: (layer.in_features, layer.out_features)
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear) and not LEFT_OUT.search(name)
    }
    adapters.write_for(layers, folder, seed=20)
    return folder


def generate(folder: Path, adapter: Path, whole: bool) -> list[list[Answer]]:
    """Each prompt with the adapter and without it, at once and alone."""
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    options = {**text.ENGINES["bf16"], **(text.WHOLE_PROMPTS if whole else {}), "dtype": "float32"}
    llm = LLM(
        str(folder),
        skip_tokenizer_init=True,
        enable_lora=True,
        max_lora_rank=8,
        enable_prefix_caching=False,
        **options,
    )
    run.keep(llm)
    sampling = SamplingParams(detokenize=False, **dict(text.SCORED))
    request = LoRARequest("random", 1, str(adapter))
    rounds = []
    for asked in ([*PROMPTS, *PROMPTS], *([prompt] for prompt in PROMPTS)):
        uses = [request] * ((len(asked) + 1) // 2) + [None] * (len(asked) // 2)
        prompts = [run.request(prompt) for prompt in asked]
        outputs = llm.generate(prompts, sampling, lora_request=uses, use_tqdm=False)
        rounds.append([run.answer(output) for output in outputs])
    return rounds


def examine(spec: Spec) -> tuple[str, str]:
    """State and words.  Runs in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        folder.mkdir()
        model = build(spec, folder)
        adapter = write(model, Path(name) / "adapter")
        try:
            rounds = forked(generate, folder, adapter, spec.whole_prompts)
        except Failed as failed:
            outcome = judge.failure(failed)
            return outcome.state, outcome.note
        merged = adapters.merge(copy.deepcopy(model), adapter)
    changed = judge.worst_error(merged, dict(zip(PROMPTS, rounds[0][2:], strict=True)))
    if changed < SEEN:
        return judge.ENDED, "the adapter changes nothing: this is no test"
    errors = {
        "with it": judge.worst_error(merged, dict(zip(PROMPTS, rounds[0][:2], strict=True))),
        "without it": judge.worst_error(model, dict(zip(PROMPTS, rounds[0][2:], strict=True))),
    }
    faults = [f"{way}: {off:.3f} deviations off" for way, off in errors.items() if off > judge.TIE]
    alone = [found for [found] in rounds[1:]]
    if any(judge.difference(a, b) for a, b in zip(rounds[0][:2], alone, strict=True)):
        faults.append("answers alone and together differ")
    return (judge.WRONG if faults else judge.RIGHT), "; ".join(faults)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.adapters", description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures; all that run if none is named")
    arguments = parser.parse_args()
    run.prepare()
    names = arguments.names or [s.name for s in text.SPECS if not s.refused and not s.host]
    wrong = 0
    for name in names:
        _, spec = kinds.find(name)
        try:
            state, words = forked(examine, spec)
        except Failed as failed:
            state, words = judge.ENDED, f"the zoo itself: {failed}"[:300]
        print(json.dumps([name, state, words]), flush=True)
        wrong += state == judge.WRONG
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
