"""Features of the server, all on at once: one process, real requests over HTTP."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from tests.e2e.server import Server
from tests.features import adapters
from tests.features.endpoints import post

QUESTION: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome"]},
        "unit": {"type": "string", "enum": ["C", "F"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} of a city",
            "parameters": PARAMETERS,
            "strict": True,
        },
    }
    for name in ("get_time", "get_weather")
]
PROMPTS = ["The capital of France is", "Once upon a time", "def fib(n):"]
NEW_TOKENS = 6


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300)


def ask(server: Server, client: openai.OpenAI, **options: Any) -> Any:
    reply = client.chat.completions.create(
        model=server.model, messages=QUESTION, temperature=0, max_tokens=60, **options
    )
    return reply.choices[0]


# ---- adapters ------------------------------------------------------------------------------------


def complete(
    client: openai.OpenAI, model: str, prompt: str, tokens: int = NEW_TOKENS
) -> tuple[list[int], list[float]]:
    """Greedy tokens and their log-probabilities."""
    reply: Any = client.completions.create(
        model=model,
        prompt=prompt,
        temperature=0,
        max_tokens=tokens,
        logprobs=0,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )
    return reply.choices[0].token_ids, reply.choices[0].logprobs.token_logprobs


def test_adapters_answer_like_merged_weights(
    server: Server,
    client: openai.OpenAI,
    adapter_folders: list[Path],
    tokenizer: Any,
    load_reference: Callable[[], Any],
) -> None:
    """After the base model, whose steps are then recorded: without the adapters' products."""
    answers: dict[str, list[list[int]]] = {}
    for folder in (None, *adapter_folders):
        reference = adapters.merge(load_reference(), folder) if folder else load_reference()
        model = folder.name if folder else server.model
        for prompt in PROMPTS:
            ids = tokenizer(prompt, return_tensors="pt").input_ids
            with torch.no_grad():
                expected = reference.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=NEW_TOKENS,
                    do_sample=False,
                    eos_token_id=None,
                    pad_token_id=0,
                )
            tokens, _ = complete(client, model, prompt)
            assert tokens == expected[0, ids.shape[1] :].tolist(), (model, prompt)
            answers.setdefault(model, []).append(tokens)
    assert len(set(map(str, answers.values()))) == 3


def test_prompts_are_scored_with_their_adapter(
    server: Server,
    client: openai.OpenAI,
    adapter_folders: list[Path],
    tokenizer: Any,
    load_reference: Callable[[], Any],
) -> None:
    """Of several prompts in a step, each of its own adapter or of none."""

    def scores(asked: tuple[str, str]) -> list[float]:
        model, prompt = asked
        body: Any = {"prompt_logprobs": 0}
        reply: Any = client.completions.create(
            model=model, prompt=prompt, max_tokens=1, extra_body=body
        )
        found = reply.choices[0].prompt_logprobs[1:]
        return [next(iter(token.values()))["logprob"] for token in found]

    models = [server.model, *(folder.name for folder in adapter_folders)]
    with ThreadPoolExecutor(9) as pool:
        asked = [(model, prompt) for model in models for prompt in PROMPTS]
        found = dict(zip(asked, pool.map(scores, asked), strict=True))
    for model, folder in zip(models, [None, *adapter_folders], strict=True):
        reference = adapters.merge(load_reference(), folder) if folder else load_reference()
        for prompt in PROMPTS:
            ids = tokenizer(prompt, return_tensors="pt").input_ids
            with torch.no_grad():
                logprobs = reference(ids).logits[0, :-1].log_softmax(-1)
            expected = logprobs.gather(1, ids[0, 1:, None]).squeeze(1)
            torch.testing.assert_close(
                torch.tensor(found[model, prompt]), expected, atol=1e-3, rtol=1e-4
            )


def test_adapters_and_base_model_in_one_batch_answer_as_alone(
    server: Server, client: openai.OpenAI, adapter_folders: list[Path]
) -> None:
    requests = [(folder.name, prompt) for prompt in PROMPTS for folder in adapter_folders]
    alone = [complete(client, *request) for request in requests]
    # A long answer of the base model runs while the adapters answer once more.
    stream: Any = client.completions.create(
        model=server.model,
        prompt=PROMPTS[1],
        temperature=0,
        max_tokens=300,
        stream=True,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    tokens = list(next(stream).choices[0].token_ids)
    assert [complete(client, *request) for request in requests] == alone
    assert server.metric("vllm:num_requests_running") == 1  # it still does
    steps = len(requests) * NEW_TOKENS  # of which each had rows of both
    while len(tokens) < steps:
        tokens += next(stream).choices[0].token_ids
    stream.close()
    assert tokens[:steps] == complete(client, server.model, PROMPTS[1], steps)[0]


# ---- tools and reasoning -------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["get_time", "get_weather"])
def test_a_named_tool_is_called(server: Server, client: openai.OpenAI, named: str) -> None:
    choice: Any = {"type": "function", "function": {"name": named}}
    [call] = ask(server, client, tools=TOOLS, tool_choice=choice).message.tool_calls
    assert call.function.name == named
    arguments = json.loads(call.function.arguments)
    assert arguments["city"] in ("Paris", "Rome")
    assert arguments["unit"] in ("C", "F")


def test_the_parser_finds_a_call_in_the_answer(server: Server, client: openai.OpenAI) -> None:
    inside = r'\{"name": "get_weather", "arguments": \{"city": "Paris", "unit": "[CF]"\}\}'
    form = {"structured_outputs": {"regex": f"<tool_call>{inside}</tool_call>"}}
    answer = ask(server, client, tools=TOOLS, tool_choice="auto", extra_body=form)
    assert answer.finish_reason == "tool_calls"
    [call] = answer.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] == "Paris"


def test_reasoning_is_told_from_the_answer(server: Server, client: openai.OpenAI) -> None:
    form = r"Here is my thought process: It is (hot|cold)\. Here is my response: (Rome|Paris)"
    message = ask(server, client, extra_body={"structured_outputs": {"regex": form}}).message
    assert message.content.strip() in ("Rome", "Paris")
    assert message.reasoning.strip() in ("It is hot.", "It is cold.")


# ---- scheduling, sleep, profiler -----------------------------------------------------------------


def test_an_urgent_request_overtakes_those_that_wait(server: Server, client: openai.OpenAI) -> None:
    done: list[str] = []

    def run(name: str, priority: int, tokens: int) -> None:
        client.completions.create(
            model=server.model,
            prompt=name,
            temperature=0,
            max_tokens=tokens,
            extra_body={"priority": priority, "ignore_eos": True},
        )
        done.append(name)

    def start(name: str, priority: int, tokens: int) -> threading.Thread:
        thread = threading.Thread(target=run, args=(name, priority, tokens))
        thread.start()
        return thread

    def wait_for(metric: str, value: int) -> None:
        deadline = time.monotonic() + 60
        while server.metric(metric) != value:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    # Four long requests fill the batch; what comes then has to wait, and shares the place of the
    # first that ends.
    threads = [start(f"long {i}", 0, 200 if i == 0 else 400) for i in range(4)]
    wait_for("vllm:num_requests_running", 4)
    for waiting, (name, priority) in enumerate([("late", 9), ("urgent", 1)], 1):
        threads.append(start(name, priority, 64))
        wait_for("vllm:num_requests_waiting", waiting)
    for thread in threads:
        thread.join()
    assert done.index("urgent") < done.index("late")


def test_a_sleeping_server_gives_memory_back_and_answers_again(
    server: Server, client: openai.OpenAI
) -> None:
    def cache_kib() -> int:  # the cache is the one large shared mapping
        sizes = []
        for pid in server.group():
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            sizes += [int(line.split()[1]) for line in lines if line.startswith("RssShmem")]
        return max(sizes)

    long = "word " * 500
    before = complete(client, server.model, long)
    for commands in (["/sleep?level=1"], ["/pause", "/release_kv_cache_memory"]):
        used = cache_kib()
        for command in commands:
            post(server, command)
        with urllib.request.urlopen(f"{server.url}/is_sleeping", timeout=10) as reply:
            assert json.load(reply)["is_sleeping"]
        assert used - cache_kib() > 16 << 10  # 500 tokens of 46 KiB are 22 MiB
        post(server, "/wake_up")
        post(server, "/resume")
        assert complete(client, server.model, long) == before


def test_profile_of_a_request(server: Server, client: openai.OpenAI, profile_folder: Path) -> None:
    post(server, "/start_profile")
    complete(client, server.model, PROMPTS[0])
    post(server, "/stop_profile")
    tables = [table.read_text() for table in profile_folder.glob("*.txt")]
    assert "cpu_backend::linear" in "".join(tables)


# ---- small endpoints -----------------------------------------------------------------------------


def test_collective_rpc_and_adapters_that_are_loaded(server: Server) -> None:
    assert post(server, "/collective_rpc", {"method": "list_loras"}) == {"results": [[1, 2]]}


def test_a_result_that_cannot_be_sent_fails_its_call_alone(
    server: Server, client: openai.OpenAI
) -> None:
    post(server, "/collective_rpc", {"method": "get_model"}, status=(500,))
    assert complete(client, server.model, PROMPTS[0])


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("reload_weights", []),
        ("reset_weights", []),
        ("compute_weight_checksums", []),
        ("save_sharded_state", ["/nowhere"]),
    ],
)
def test_packed_weights_are_neither_changed_nor_written(
    server: Server, client: openai.OpenAI, method: str, arguments: list[str]
) -> None:
    before = complete(client, server.model, PROMPTS[0])
    error = post(server, "/collective_rpc", {"method": method, "args": arguments}, status=(500,))
    assert "weights are packed for the kernels" in error["error"]["message"]
    assert complete(client, server.model, PROMPTS[0]) == before


def test_reset_prefix_cache(server: Server, client: openai.OpenAI) -> None:
    long = "again " * 300

    def hits() -> float:
        before = server.metric("vllm:prefix_cache_hits_total")
        complete(client, server.model, long)
        return server.metric("vllm:prefix_cache_hits_total") - before

    assert [hits(), hits()] == [0, 256]
    post(server, "/reset_prefix_cache")
    assert hits() == 0


def test_metrics_count_tokens_and_requests(server: Server, client: openai.OpenAI) -> None:
    names = [
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:request_success_total",
    ]
    before = [server.metric(name) for name in names]
    client.completions.create(
        model=server.model,
        prompt=[[5, 6, 7], [8, 9]],
        max_tokens=4,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert [server.metric(name) - was for name, was in zip(names, before, strict=True)] == [5, 8, 2]


def test_tokenize_and_detokenize(server: Server, tokenizer: Any) -> None:
    text = "Grüße, 世界!"
    body = {"model": server.model, "prompt": text}
    tokens = post(server, "/tokenize", body)["tokens"]
    assert tokens == tokenizer.encode(text)
    back = post(server, "/detokenize", {"model": server.model, "tokens": tokens})
    assert back == {"prompt": text}


def test_async_scheduling_that_was_asked_for_is_answered(server: Server) -> None:
    assert server.log().count("async scheduling is off") == 1


def test_the_log_does_not_warn_of_what_this_backend_decides(server: Server) -> None:
    log = server.log()
    assert "Warning:" not in log  # Python's own, of libraries
    assert not re.search("TORCH_COMPILE_DISABLE|Inductor|Cudagraph", log)


def test_pooling_is_refused_by_a_server_that_generates(server: Server) -> None:
    body = {"model": server.model, "input": "text"}
    post(server, "/v1/embeddings", body, status=(400, 404))
