"""Tokens per second of one request with and without speculative decoding, in turns.

``python -m benchmarks.speculation [--tokens 128] [--rounds 5] [--shape NAME] [CONFIG]``, CONFIG
being what ``--speculative-config`` takes.  Both engines are alive at once, on the demo model in
bf16; the request asks for the rest of a text that repeats itself.  With ``--shape`` it is a model
of benchmarks.recurrent with random weights, whose answer repeats one token, so that nearly every
draft is right: the most that drafts can give, the states of all tokens included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from benchmarks.recurrent import MODELS, checkpoint_of
from cpu_backend.demo_model.store import default_dir

NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 5,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 4,
}
TEXT = (
    "The quick brown fox jumps over the lazy dog while the cat sleeps on the warm red carpet "
    "near the window. "
)

_engine: Any = None  # in the process of the engine


def _repeat_tokens(file: Path) -> None:
    """Of tied embeddings, that outweigh what layers add: each token is followed by itself."""
    weights = load_file(file)
    weights["model.embed_tokens.weight"] *= 1000
    save_file(weights, file, {"format": "pt"})


def _start(model: str, is_random: bool, speculative: dict[str, Any] | None) -> None:
    global _engine
    from vllm import LLM

    _engine = LLM(
        model,
        skip_tokenizer_init=is_random,
        device="cpu",
        dtype="bfloat16",
        max_model_len=2048,
        max_num_seqs=4,
        speculative_config=speculative,
    )


def _answer(tokens: int, prompt: str | list[int]) -> tuple[float, list[int]]:
    """Seconds, and the answer."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    begin = time.perf_counter()
    given = prompt if isinstance(prompt, str) else {"prompt_token_ids": prompt}
    [output] = _engine.generate([given], sampling, use_tqdm=False)
    return time.perf_counter() - begin, list(output.outputs[0].token_ids)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speculation", description=__doc__)
    parser.add_argument("config", nargs="?", type=json.loads, default=NGRAM)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shape", choices=MODELS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.shape is None:
            compare(arguments, str(default_dir()), TEXT * 6)
        else:
            model = checkpoint_of(arguments.shape, Path(folder) / "model")
            _repeat_tokens(model / "model.safetensors")
            compare(arguments, str(model), list(range(10, 130)))


def compare(arguments: argparse.Namespace, model: str, prompt: str | list[int]) -> None:
    """Measure in turns and print."""
    context = get_context("spawn")
    plain, speculating = (ProcessPoolExecutor(1, mp_context=context) for _ in range(2))
    is_random = not isinstance(prompt, str)
    plain.submit(_start, model, is_random, None).result()
    speculating.submit(_start, model, is_random, arguments.config).result()
    ratios = []
    for turn in range(-3, arguments.rounds):  # in the first turns steps are recorded
        before, expected = plain.submit(_answer, arguments.tokens, prompt).result()
        after, found = speculating.submit(_answer, arguments.tokens, prompt).result()
        if turn < 0:
            continue
        ratios.append(before / after)
        print(
            f"{arguments.tokens / before:6.1f} and {arguments.tokens / after:6.1f} tokens/s, "
            f"{ratios[-1]:.2f} times; the same tokens: {found == expected}",
            flush=True,
        )
    print(f"median: {statistics.median(ratios):.2f} times")
    for pool in (plain, speculating):
        pool.submit(_stop).result()
        pool.shutdown()


def _stop() -> None:
    _engine.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
