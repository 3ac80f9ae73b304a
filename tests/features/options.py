"""``python -m tests.features.options``: the demo model with each of the host's options changed.

Each field of ``EngineArgs``, of the configs within it and each of the host's environment variables
gets other values, one at a time: the greedy tokens must stay, or the start must be refused in one
sentence.  Far more engines than a test run has time for, so a command of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
import tempfile
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cpu_backend import demo_model
from tests.zoo import kinds
from tests.zoo.build import build
from tests.zoo.run import Failed, forked, keep

SECONDS = 120
ROUND = 3  # the same requests again and again: prefix cache, replay

# Fields that say which model, and those of which any other value asks for other words.
LEFT_OUT = re.compile(r"model|model_weights|hf_config_path|tokenizer|runner|convert|seed")
COMMON = re.compile("non-default args|world_size=|Initializing a V1|it/s|took|seconds")
INNER = (  # configs whose fields are options of their own
    "attention_config",
    "compilation_config",
    "kernel_config",
    "structured_outputs_config",
    "mamba_config",
)
# Values for fields whose type does not give any.
NAMED: dict[str, list[Any]] = {
    "served_model_name": ["other"],
    "load_format": ["safetensors"],
    "distributed_executor_backend": ["mp", "uni"],
    "block_size": [16, 32, 48, 64, 256],
    "max_num_batched_tokens": [16, 2048],
    "max_model_len": [200],
    "gpu_memory_utilization": [0.3],
    "attention_backend": ["FLASH_ATTN", "TRITON_ATTN", "CPU_ATTN", "FLEX_ATTENTION", "TORCH_SDPA"],
    "model_impl": ["vllm", "transformers"],
    "generation_config": ["vllm"],
    "config_format": ["hf"],
    "device_ids": [[0], [1]],
    "cudagraph_capture_sizes": [[1, 2, 4]],
    "logits_processors": [["vllm.v1.sample.logits_processor:MinPLogitsProcessor"]],
    "optimization_level": [0, 1, 3],
    "additional_config": [{"a": 1}],
    "ignore_patterns": ["*.txt"],
    "kv_cache_dtype_skip_layers": [["0"]],
    "cpu_offload_params": [["q_proj"]],
    "offload_params": [["q_proj"]],
    "VLLM_KV_CACHE_LAYOUT": ["NHD", "HND", "LBNHC", "LHBNC", "BLHNC"],
    "VLLM_SSM_CONV_STATE_LAYOUT": ["SD", "DS"],
    "VLLM_TRACE_FUNCTION": [],  # prints every call
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """An option or, in capitals, an environment variable, and what it is set to."""

    path: tuple[str, ...]
    value: Any

    @property
    def name(self) -> str:
        return f"{'.'.join(self.path)}={json.dumps(self.value, default=str)}"


def settings() -> Iterator[Setting]:
    """All that are tried."""
    from vllm import envs
    from vllm.engine.arg_utils import AsyncEngineArgs

    for field in dataclasses.fields(AsyncEngineArgs):
        if field.name in INNER:
            yield from _of_config(field)
        elif not LEFT_OUT.fullmatch(field.name) and not field.name.startswith("_"):
            others = _others(field.type, _default(field))
            for value in NAMED.get(field.name, others):
                yield Setting((field.name,), value)
    for name in envs.environment_variables:
        if name.startswith("VLLM_"):
            for value in NAMED.get(name, _of_variable(name)):
                yield Setting((name,), value)


def _of_config(outer: Any) -> Iterator[Setting]:
    for field in dataclasses.fields(outer.type):
        for value in _others(_hints(outer.type)[field.name], _default(field)):
            yield Setting((outer.name, field.name), value)


def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _default(field: Any) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _others(kind: Any, default: Any) -> list[Any]:
    """Values of the type that are not the default."""
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return [value for value in typing.get_args(kind) if value != default]
    if origin in (typing.Union, types.UnionType):
        return [v for part in typing.get_args(kind) for v in _others(part, default)]
    if kind is bool:
        return [not default] if isinstance(default, bool) else [True, False]
    if kind is int:
        return [default * 2 or 2] if isinstance(default, int) else [8]
    if kind is float:
        return [default / 2 or 0.5] if isinstance(default, int | float) else [0.5]
    return []


def _of_variable(name: str) -> list[str]:
    from vllm import envs

    value = envs.environment_variables[name]()
    if isinstance(value, bool):
        return ["0" if value else "1"]
    if isinstance(value, int | float):
        return [str(value * 2 or 1)]
    return ["1"] if value is None else []


@dataclasses.dataclass(frozen=True)
class Said:
    """The tokens of each request, and what stood in the log."""

    tokens: list[list[int]]
    log: str


def _asked(setting: Setting | None, model: str) -> Said:
    """Runs in a process of its own."""
    options: dict[str, Any] = {"max_model_len": 256, "dtype": "float32", "device": "cpu"}
    options["skip_tokenizer_init"] = True
    if setting and setting.path[0].isupper():
        os.environ[setting.path[0]] = setting.value
    elif setting:
        value = setting.value
        for name in reversed(setting.path[1:]):
            value = {name: value}
        options[setting.path[0]] = value
    from vllm import LLM, SamplingParams

    llm = LLM(model, **options)
    keep(llm)
    sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
    prompts = [
        {"prompt_token_ids": [(7 * i * i + n) % 200 + 5 for i in range(length)]}
        for n, length in enumerate((3, 40, 150))
    ]
    tokens = [
        list(output.outputs[0].token_ids)
        for _ in range(ROUND)
        for output in llm.generate(prompts, sampling, use_tqdm=False)  # type: ignore[arg-type]
    ]
    sys.stderr.flush()
    os.lseek(2, 0, os.SEEK_SET)
    return Said(tokens, os.read(2, 1 << 20).decode(errors="replace"))


def _try(setting: Setting, model: str, base: Said) -> tuple[str, str]:
    """State and words."""
    try:
        said = forked(_asked, setting, model, seconds=SECONDS)
    except Failed as failed:
        refused = failed.kind in {"ConfigError", "ValidationError"}
        words = failed.message if refused else f"{failed.kind}: {failed.message}"
        return "refused" if refused else "fails", words.replace("\n", " ")[:600]
    new = "; ".join(_lines(said.log) - _lines(base.log))
    if said.tokens != base.tokens:
        return "differs", new[:600]
    return "same", new[:600]


def _lines(log: str) -> set[str]:
    """What the log says, without times, paths of processes and numbers."""
    words = (re.sub(r"^.*?\[[\w.]+:\d+\] ", "", line) for line in log.splitlines())
    return {re.sub(r"\d+", "N", line).strip() for line in words if not COMMON.search(line)}


def _model(name: str) -> str:
    """The folder of a checkpoint."""
    if not name:
        return str(demo_model.make_demo_model(demo_model.default_dir()))
    _, spec = kinds.find(name)
    folder = Path(tempfile.mkdtemp())
    spec = dataclasses.replace(spec, config=spec.config | {"max_position_embeddings": 512})
    forked(build, spec, folder)
    return str(folder)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.features.options", description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression for settings")
    parser.add_argument("--model", default="", help="one of the zoo's, instead of the demo model")
    parser.add_argument("--part", default="0/1", help="2/4: every fourth, from the third on")
    parser.add_argument("--to", type=Path, help="append what was found to this file")
    arguments = parser.parse_args()
    os.environ.update(
        HF_HUB_OFFLINE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", OMP_NUM_THREADS="1",
        TOKENIZERS_PARALLELISM="false", VLLM_CPU_KVCACHE_SPACE="0.25",
    )  # fmt: skip
    import cpu_backend.worker.worker
    import transformers.models.auto.processing_auto
    import vllm.entrypoints.llm
    import vllm.model_executor.models.llama
    import vllm.v1.engine.core  # noqa: F401

    model = _model(arguments.model)
    base = forked(_asked, None, model)
    first, step = map(int, arguments.part.split("/"))
    chosen = [s for s in settings() if re.search(arguments.only, s.name)][first::step]
    wrong = 0
    for setting in chosen:
        found = (setting.name, *_try(setting, model, base))
        print(json.dumps(found), flush=True)
        wrong += found[1] not in {"same", "refused"}
        if arguments.to:
            with arguments.to.open("a") as file:
                print(json.dumps(found), file=file)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
