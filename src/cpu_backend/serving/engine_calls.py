"""What would stop an engine for everybody, because the host looks at it too late: found where it
concerns one start or one call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from cpu_backend.errors import ConfigError


def check_results(cls: Any) -> None:
    """A result that cannot be sent, of /collective_rpc for example, fails its own call.

    The host finds that out in the thread that sends everything, which ends: all requests would
    wait for ever.
    """
    from vllm.v1.serial_utils import MsgpackEncoder, UtilityResult

    original = cls._invoke_utility_method

    def invoke(name: str, get_result: Callable[[], Any], *output: Any) -> None:
        def get_sendable() -> Any:
            result = get_result()
            if not isinstance(result, Future):  # whose own result comes here in turn
                MsgpackEncoder().encode(UtilityResult(result))
            return result

        original(name, get_sendable, *output)

    cls._invoke_utility_method = staticmethod(invoke)


def check_steps(cls: Any) -> None:
    """Every prompt that is accepted fits in a step, where a model cannot read it in pieces.

    The host checks that before the model is built, and learns of such layers afterwards: a longer
    prompt would wait for ever, and all others behind it.
    """
    original = cls._initialize_kv_caches

    @functools.wraps(original)
    def initialize(self: Any, vllm_config: Any) -> Any:
        result = original(self, vllm_config)
        scheduler, model = vllm_config.scheduler_config, vllm_config.model_config
        step = scheduler.max_num_batched_tokens
        if not scheduler.enable_chunked_prefill and step < model.max_model_len:
            raise ConfigError(
                f"{model.architecture} reads a prompt in one step, and steps of {step} tokens are "
                f"shorter than --max-model-len {model.max_model_len}: set --max-num-batched-tokens "
                "to as much, or lower --max-model-len."
            )
        return result

    cls._initialize_kv_caches = initialize
