"""Asks a server a question over HTTP, then two at once, and ends it.

    python -m tests.ask_server PYTHON MODEL [ARGUMENT...]     of vllm serve

PYTHON runs the server, and may be that of another CPU, emulated; this one only asks.  Prints the
answers and the seconds until each.  Exits with 0 only if they are right, and the first the same
alone and beside the other.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import openai

from tests.ask import MAX_TOKENS
from tests.e2e.server import Server

# Of which the demo model is sure, whatever rounds its weights: two tokens of log-probabilities 0.15
# apart begin the answer about France, 1.2 and 2.0 apart these (Q4_1, AVX-512).
QUESTION, EXPECTED = "Which city is the capital of Japan?", "Tokyo"
OTHER_QUESTION, OTHER_EXPECTED = "Which city is the capital of Germany?", "Berlin"
START_SECONDS = 1800  # an emulated CPU takes minutes to import


def main() -> int:
    python, model, *arguments = sys.argv[1:]
    start = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - start:.0f} s: {what}", flush=True)

    def ask(question: str) -> str:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        reply = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=MAX_TOKENS,
        )
        return str(reply.choices[0].message.content)

    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        server = Server(model, log, "--max-model-len", "256", *arguments)
        server.program = [python, "-m", "vllm.entrypoints.cli.main"]
        server.start_seconds = START_SECONDS
        with server:
            say("the server is up")
            alone = ask(QUESTION)
            say(f"alone: {alone}")
            with ThreadPoolExecutor() as pool:
                beside, other = pool.map(ask, [QUESTION, OTHER_QUESTION])
            say(f"at once: {beside} | {other}")
            lines = server.log().splitlines()
            print(*(line for line in lines if "cpu_backend: " in line), sep="\n")
    right = EXPECTED in alone and OTHER_EXPECTED in other and beside == alone
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
