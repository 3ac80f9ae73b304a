"""One engine in this process, stepped by hand: what a text request gets while media are encoded.

``python -m tests.features.media_beside ARCHITECTURE FOLDER`` prints a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

TEXT, MEDIUM = "text", "medium"


def media_of(case: Any) -> int:
    """How many a request has."""
    return len(case.media)


def main(name: str, folder: Path) -> None:
    """Two requests with media of their own beside a text that is long enough for both."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    from tests.zoo import kinds
    from tests.zoo.build import build

    _, spec = kinds.find(name)
    build(spec, folder)
    spec.processor(folder)
    llm = LLM(str(folder), dtype="float32", max_model_len=1024, max_num_seqs=4, **spec.options)
    engine = llm.llm_engine
    core = engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    model = runner.get_model()
    encodings = []
    encode = model.embed_multimodal

    def embed_multimodal(**inputs: Any) -> Any:
        encodings.append(1)
        return encode(**inputs)

    model.embed_multimodal = embed_multimodal
    fewest, *_, most = sorted((case for case in spec.cases if case.media), key=media_of)
    first, second = most.request(), fewest.request()
    tokens: dict[str, list[int]] = {}

    def ask(request: str, prompt: Any, count: int) -> None:
        sampling = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        tokens[request] = []
        engine.add_request(request, prompt, sampling)

    def step() -> None:
        for out in engine.step():
            tokens[out.request_id] = list(out.outputs[0].token_ids)

    def answer(request: str, prompt: Any) -> tuple[list[int], int]:
        """Its tokens, and how many the text got before the first of them."""
        before = len(tokens[TEXT])
        ask(request, prompt, 4)
        while not tokens[request]:
            step()
        meanwhile = len(tokens[TEXT]) - before
        while len(tokens[request]) < 4:
            step()
        return tokens[request], meanwhile

    ask(TEXT, {"prompt_token_ids": [5, 6, 7]}, 900)
    step()
    beside, meanwhile = answer(MEDIUM, first)
    encoded_once = len(encodings)
    again, _ = answer("again", first)
    encoded_again = len(encodings)
    ask("gone", second, 4)
    step()
    step()
    engine.abort_request(["gone"])
    other, _ = answer("other", second)
    engine.abort_request([TEXT])
    step()
    ahead, core.scheduler.media_ahead = core.scheduler.media_ahead, None
    core.reset_prefix_cache()
    core.reset_encoder_cache()
    within, _ = answer("within a step", first)
    other_within, _ = answer("other within a step", second)
    print(
        json.dumps(
            {
                "meanwhile": meanwhile,
                "media": media_of(most),
                "encodings": [encoded_once, encoded_again],
                "answers": [beside, again, within],
                "after an abort": other,
                "other within a step": other_within,
                "left": 0 if ahead is None else len(ahead._encoded),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
