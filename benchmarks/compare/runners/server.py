"""A peer's OpenAI-compatible server under `vllm bench serve`; no engine in this process.

`settings["server"]` is the server's command with {port} in it, `settings["environ"]` what is added
to its environment, `settings["client"]` an interpreter that has vLLM. Constructed means healthy.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from protocol import answer_requests

METRICS = ("median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "median_itl_ms", "p99_itl_ms")


class Server:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        command = [part.replace("{port}", str(self.port)) for part in settings["server"]]
        # Its log goes where this process's stderr goes; the caller ends it with this process.
        environ = {**os.environ, **settings["environ"]}
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environ)

    def wait_until_ready(self) -> None:
        """The caller bounds how long this may take."""
        while self.process.poll() is None:
            try:
                urllib.request.urlopen(self.url + "/health", timeout=5).close()
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
            else:
                return
        raise RuntimeError(f"the server ended with status {self.process.returncode}")

    def complete(self, tokens: list[int] | str, outputs: int) -> str:
        body = {"model": self.settings["name"], "prompt": tokens, "max_tokens": outputs}
        request = urllib.request.Request(
            self.url + "/v1/completions",
            json.dumps({**body, "temperature": 0}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["choices"][0]["text"]

    def http(self, requests: int, inputs: int, outputs: int) -> dict[str, float]:
        """What `vllm bench serve` says of so many requests sent at once."""
        with tempfile.TemporaryDirectory() as folder:
            command = [self.settings["client"], "-m", "vllm.entrypoints.cli.main"]
            command += ["bench", "serve", "--backend=openai", f"--base-url={self.url}"]
            command += [f"--model={self.settings['name']}", "--ignore-eos", "--disable-tqdm"]
            command += [f"--tokenizer={self.settings['tokenizer']}", "--dataset-name=random"]
            command += [f"--num-prompts={requests}", "--num-warmups=1", "--temperature=0"]
            command += [f"--random-input-len={inputs}", f"--random-output-len={outputs}"]
            # Another seed each time, so that no prefix cache can help.
            command += [f"--seed={time.time_ns() % 2**31}"]
            command += ["--save-result", f"--result-dir={folder}", "--result-filename=result.json"]
            environ = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, env=environ)
            result = json.loads((Path(folder) / "result.json").read_text())
        if result["completed"] != requests:
            raise RuntimeError(f"{requests - result['completed']} of {requests} requests failed")
        came, expected = result["total_output_tokens"], requests * outputs
        if came != expected:
            raise RuntimeError(f"{came} of {expected} tokens came")
        return {name: result[name] for name in ("output_throughput", *METRICS)}


def start(settings: dict[str, Any]) -> tuple[Server, dict[str, Any]]:
    begin = time.perf_counter()
    server = Server(settings)
    server.wait_until_ready()
    return server, {"construct_s": time.perf_counter() - begin, "versions": {}}


def answer(server: Server, request: dict[str, Any]) -> dict[str, Any]:
    if request["kind"] == "greedy":
        text = server.complete(request["prompt"], request["outputs"])
        return {"tokens": [], "text": text}
    if request["kind"] == "first":
        begin = time.perf_counter()
        server.complete("one " * request["sizes"][0], 1)
        return {"values": [time.perf_counter() - begin]}
    results = [server.http(*request["sizes"]) for _ in range(request["repeats"])]
    values = [result.pop("output_throughput") for result in results]
    return {"values": values, "details": results}


if __name__ == "__main__":
    answer_requests(start, answer)
