"""Asks a model the demo's question in this process, prints the answer and the seconds of each part.

    python -m tests.ask MODEL [KEYWORD=VALUE...]      as of vllm.LLM: enforce_eager=True

Exits with 0 only if the answer is right.  For CPUs that are emulated, where a server takes long.
"""

from __future__ import annotations

import ast
import os
import sys
import time

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

QUESTION = "Which city is the capital of France?"
EXPECTED = "Paris"
MAX_TOKENS = 12


def main() -> int:
    model, *rest = sys.argv[1:]
    pairs = (argument.split("=", 1) for argument in rest)
    keywords = {name: ast.literal_eval(value) for name, value in pairs}
    start = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - start:.0f} s: {what}", flush=True)

    from vllm import LLM, SamplingParams

    say("vLLM is imported")
    llm = LLM(model, device="cpu", max_model_len=256, **keywords)
    say("the model is loaded")
    sampling = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    messages = [{"role": "user", "content": QUESTION}]
    # The second time its beginning is found in the prefix cache, and steps are replayed.
    answers = []
    for _ in range(2):
        [result] = llm.chat(messages, sampling, use_tqdm=False)
        answers.append(result.outputs[0].text)
        say(f"answer: {answers[-1]}")
    return 0 if EXPECTED in answers[0] and answers[0] == answers[1] else 1


if __name__ == "__main__":
    sys.exit(main())
