"""``python -m tests.zoo.options``: models with each of the host's options changed.

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
import tempfile
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples import quantize_model
from tests.zoo import checkpoints, judge, kinds, mixed, run
from tests.zoo.build import Spec, build
from tests.zoo.media import MediaSpec
from tests.zoo.run import Answer, Failed, Round, forked, generate

SECONDS = 120  # for one engine
FAILS, DIFFERS = "fails", "differs"  # an exception that is no refusal, other tokens than without
TEXTS = tuple(
    tuple((7 * i * i + n) % 200 + 5 for i in range(length)) for n, length in enumerate((3, 40, 150))
)

# Fields that say which model, and those of which any other value asks for other words.
LEFT_OUT = re.compile(r"model|model_weights|hf_config_path|tokenizer|runner|convert|seed")
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
    "mm_encoder_attn_backend": ["FLASH_ATTN", "TRITON_ATTN", "TORCH_SDPA", "FLASHINFER"],
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


def _asked(spec: Spec, folder: Path, setting: Setting | None) -> list[list[Answer]]:
    """Runs in a process of its own."""
    asked: tuple[Any, ...] = TEXTS
    options: dict[str, Any] = {"max_model_len": 256, "dtype": "float32", "device": "cpu"}
    if isinstance(spec, MediaSpec):
        asked = spec.requests
        options |= {"max_model_len": 512, **mixed.own_options(spec)}
    if setting and setting.path[0].isupper():
        os.environ[setting.path[0]] = setting.value
    elif setting:
        value = setting.value
        for name in reversed(setting.path[1:]):
            value = {name: value}
        options[setting.path[0]] = value
    again = [Round(asked, (("max_tokens", 8),))] * 3  # for prefix cache and replay
    return generate(folder, options, again)


def _make(spec: Spec, folder: Path, scheme: str) -> None:
    """The model, or a copy of it that is quantized."""
    source = folder / "source" if scheme else folder
    source.mkdir(exist_ok=True)
    if isinstance(spec, MediaSpec):
        spec.processor(source)
    build(spec, source)
    if scheme:
        quantize_model.quantize(checkpoints.OF_TEXT[scheme][0], source, folder)


def _tokens(answers: list[list[Answer]]) -> list[tuple[int, ...]]:
    return [answer.tokens for round_ in answers for answer in round_]


def examine(
    spec: Spec, folder: Path, setting: Setting, wanted: list[tuple[int, ...]]
) -> tuple[str, str]:
    """State and words of the model in ``folder`` with it; ``wanted``: the tokens without."""
    try:
        found = forked(_asked, spec, folder, setting, seconds=SECONDS)
    except Failed as failed:
        words = " ".join(failed.message.split())
        if failed.kind in {"ConfigError", "ValidationError"}:
            return judge.REFUSED, words
        return FAILS, f"{failed.kind}: {words}"
    return (judge.RIGHT if _tokens(found) == wanted else DIFFERS), ""


def examine_all(spec: Spec, only: str, scheme: str) -> Iterator[tuple[str, str, str, str]]:
    """The model's name, the setting's, state and words of each setting whose name has ``only`` in
    it, a regular expression; ``scheme``: of quantization, if any."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        forked(_make, spec, folder, scheme)
        wanted = _tokens(forked(_asked, spec, folder, None))
        for setting in settings():
            if re.search(only, setting.name):
                yield spec.name, setting.name, *examine(spec, folder, setting, wanted)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.options", description=__doc__)
    parser.add_argument("names", nargs="+", help="architectures")
    parser.add_argument("--only", default="", help="a regular expression for settings")
    parser.add_argument("--scheme", default="", help="of quantization (tests.zoo.checkpoints)")
    arguments = parser.parse_args()
    run.prepare()
    wrong = 0
    for name in arguments.names:
        for found in examine_all(kinds.find(name)[1], arguments.only, arguments.scheme):
            print(json.dumps(found), flush=True)
            wrong += found[2] in {FAILS, DIFFERS}
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
