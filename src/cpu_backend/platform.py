"""The platform that the host selects: its configuration, as a list of named steps."""

from __future__ import annotations

import importlib
import math
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm.logger import init_logger
from vllm.platforms.cpu import CpuPlatform

from cpu_backend import (
    architectures,
    envs,
    ops,
    positions,
    providers,
    sentence_modules,
    speculation,
)
from cpu_backend.attention import kv_dtypes, whole_prompts
from cpu_backend.errors import ConfigError
from cpu_backend.host import (
    disk_cache,
    engine_arguments,
    slot_mapping,
    state_copies,
    state_pages,
)
from cpu_backend.host import speculation as speculation_kernels
from cpu_backend.runtime import memory
from cpu_backend.runtime.layout import Layout, advise
from cpu_backend.runtime.machines import use_network_towards
from cpu_backend.runtime.plan import Machine
from cpu_backend.runtime.reservations import Reservations
from cpu_backend.serving import heartbeat

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger("vllm.cpu_backend")

WEIGHTS_ARE_PACKED = (
    "weights are packed for the kernels when they are read, and are neither changed nor written "
    "while an engine runs: start another with the new checkpoint."
)

EXECUTOR = "cpu_backend.worker.executor.CPUExecutor"
WORKER = "cpu_backend.worker.worker.CPUWorker"
COMMUNICATOR = "cpu_backend.worker.communicator.CPUCommunicator"
ADAPTERS = "cpu_backend.worker.lora.CPUPunicaWrapper"
ATTENTION = "cpu_backend.attention.backend.CpuBackendAttention"
LATENT_ATTENTION = "cpu_backend.attention.latent.LatentBackend"
SPARSE_ATTENTION = "cpu_backend.attention.sparse.SparseLatentBackend"
LAYOUT = "cpu_backend_layout"  # key in the host's additional_config
BLOCK_SIZE = 128  # tokens of a KV page: eight vectors of AVX-512, 16 KiB of bf16 at head size 64


class CpuBackendPlatform(CpuPlatform):
    """A CPU to the host (``PlatformEnum.CPU``), with this project's workers and kernels."""

    # Nothing is compiled at run time unless the user asks for compiled mode.
    simple_compile_backend: str = "eager"

    @classmethod
    def import_kernels(cls) -> None:
        """Load this project's library in place of the host's ``_C``."""
        ops.load()

    @classmethod
    def opaque_attention_op(cls) -> bool:
        """A custom op per attention layer is only of use to a compiler."""
        return False

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        """This project's attention; models with another sparse one are refused before."""
        if not attn_selector_config.use_mla:
            return ATTENTION
        return SPARSE_ATTENTION if attn_selector_config.use_sparse else LATENT_ATTENTION

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: VllmConfig) -> None:
        """Pages stay as check_and_update_config has made them (0.33 would make them larger), unless
        they share a pool with larger ones of recurrent states."""
        model = vllm_config.model_config
        if model is not None and model.is_hybrid:
            state_pages.align(cls, vllm_config)

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """The host's, with what experts under data parallelism ask for."""
        return COMMUNICATOR

    @classmethod
    def get_punica_wrapper(cls) -> str:
        """This project's, which leaves tokens without an adapter alone."""
        return ADAPTERS

    @classmethod
    def is_sleep_mode_available(cls) -> bool:
        """A sleeping server gives the memory of its KV cache back."""
        return True

    @classmethod
    def register_triton_kernel_overrides(cls) -> None:
        """The Triton kernels that the host's V1 runner calls, as ops."""
        slot_mapping.register()
        speculation_kernels.register()
        state_copies.register()

    @classmethod
    def pre_register_and_update(cls, parser: Any = None) -> None:
        """Give ``--device`` back to the host's command line, or, before a configuration is made,
        add this project's quantizations to the host's."""
        if parser is not None:
            engine_arguments.add_device(parser)
        else:
            from cpu_backend.layers import quantization

            quantization.register_own()

    @classmethod
    def verify_quantization(cls, quant: str) -> None:
        """The model is quantized: this backend's readers of checkpoints are needed from here on."""
        from cpu_backend.layers import quantization

        super().verify_quantization(quant)
        quantization.register_configs()

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: VllmConfig) -> None:
        """Run eagerly on fused ops, whose steps are recorded: tracing would take minutes, and a
        compiler where the model runs, for nothing."""
        from vllm.config import CompilationMode

        vllm_config.compilation_config.mode = CompilationMode.NONE

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Called for every configuration the host builds; each step may run again."""
        ops.load()
        _refuse_missing_features(vllm_config)
        _refuse_offloading(vllm_config)
        cache_dtype = vllm_config.cache_config.cache_dtype
        if vllm_config.model_config is not None:
            architectures.check(vllm_config.model_config)
            sentence_modules.check(vllm_config.model_config)
            positions.shorten(vllm_config)
            providers.check(vllm_config.model_config.quantization)
            kv_dtypes.check(cache_dtype, vllm_config.model_config.dtype)
            _set_tower_dtype(vllm_config.model_config)
            _set_media_cache(vllm_config.model_config.multimodal_config)
        _set_block_size(vllm_config)
        _set_state_dtype(vllm_config)
        _set_executor(vllm_config)
        if vllm_config.parallel_config.nnodes > 1:
            use_network_towards(vllm_config.parallel_config.master_addr)
        _check_threads(vllm_config)
        envs.activations()
        envs.check_replay()
        _set_kv_cache_space(vllm_config)
        _switch_off_gpu_features(vllm_config)
        if whole_prompts.has(vllm_config.model_config):
            whole_prompts.keep(vllm_config)
        elif vllm_config.model_config is not None and vllm_config.model_config.is_mm_prefix_lm:
            vllm_config.scheduler_config.disable_chunked_mm_input = True  # see whole_images.py
        disk_cache.configure(vllm_config)
        _set_environment(vllm_config)


def _set_tower_dtype(model: Any) -> None:
    """That of the model: some towers (Gemma 4's) are built by ``transformers``, in the dtype that
    their part of config.json says, and the host's linear layers in them in the model's."""
    from transformers import PretrainedConfig

    for part in vars(model.hf_config).values():
        if isinstance(part, PretrainedConfig):
            part.dtype = model.dtype


def _set_media_cache(media: Any) -> None:
    """Of processed media, where the host's default, 4 GiB, is too much for the machine; the same
    number given by the user looks like it.  media: the host's MultiModalConfig, or None."""
    if media is not None and media.mm_processor_cache_gb == type(media).mm_processor_cache_gb:
        share = memory.media_cache_gib(memory.read_memory_status())
        media.mm_processor_cache_gb = min(media.mm_processor_cache_gb, share)


def _refuse_missing_features(config: VllmConfig) -> None:
    speculation.check(config)
    if config.profiler_config.profiler not in (None, "torch"):
        raise ConfigError(
            f"the {config.profiler_config.profiler} profiler needs a GPU: "
            "choose --profiler-config.profiler torch."
        )
    library = config.structured_outputs_config.backend
    if library == "lm-format-enforcer" and not _can_import("lmformatenforcer.integrations.vllm"):
        raise ConfigError(
            f"{library} does not load beside this vLLM: choose xgrammar or guidance as the backend "
            "of --structured-outputs-config."
        )
    if config.weight_transfer_config is not None:
        raise ConfigError(WEIGHTS_ARE_PACKED)
    model = config.model_config
    if media := getattr(model, "multimodal_config", None):
        _refuse_missing_features_of_media(media)
    ranks = config.parallel_config.data_parallel_size
    if config.lora_config is not None and model.is_moe and ranks > 1:
        raise ConfigError(
            f"LoRA adapters of mixtures of experts do not go with --data-parallel-size {ranks} on "
            "the CPU, where each rank numbers its adapters by itself: choose "
            f"--tensor-parallel-size {ranks} instead."
        )
    if config.lora_config is not None and model.architecture in architectures.WITHOUT_ADAPTERS:
        raise ConfigError(
            f"LoRA adapters of {model.architecture} would be computed wrongly or not at all: leave "
            "--enable-lora out, or serve a checkpoint that the adapter is merged into."
        )
    if model is not None:
        architectures.check_ranks(model.architecture, config.parallel_config)


def _refuse_missing_features_of_media(config: Any) -> None:
    if config.mm_encoder_only:
        raise ConfigError(
            "a server of encoders alone is not supported on the CPU yet: leave --mm-encoder-only "
            "out."
        )
    if config.video_pruning_rate:
        raise ConfigError(
            "with --video-pruning-rate, vLLM places all but the first medium of a prompt wrongly: "
            "leave it out, and take fewer frames of a video (--media-io-kwargs) instead."
        )


def _refuse_offloading(config: VllmConfig) -> None:
    """What a GPU's memory is too small for lies in the CPU's already."""
    offload = config.offload_config
    if offload.uva.cpu_offload_gb or offload.prefetch.offload_group_size:
        raise ConfigError(
            "weights lie in the CPU's memory already: leave --cpu-offload-gb and "
            "--offload-group-size out."
        )
    if config.cache_config.kv_offloading_size is not None:
        raise ConfigError(
            "the KV cache lies in the CPU's memory already: leave --kv-offloading-size out, and "
            f"give it more with {envs.KVCACHE_SPACE.name}, or a disk with {envs.DISK_CACHE.name}."
        )


def _can_import(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def _set_block_size(config: VllmConfig) -> None:
    cache = config.cache_config
    text = getattr(config.model_config, "hf_text_config", None)
    chunk = getattr(text, "attention_chunk_size", None) or 0  # the host cuts it in whole pages
    if not cache.user_specified_block_size:
        cache.block_size = math.gcd(BLOCK_SIZE, chunk)
    if chunk % cache.block_size or math.gcd(BLOCK_SIZE, chunk) % 16:
        raise ConfigError(
            f"pages of {cache.block_size} tokens do not fit this model's attention_chunk_size of "
            f"{chunk}: choose --block-size as a multiple of 16 that divides it."
        )
    if not cache.user_specified_block_size:
        return
    if cache.block_size % 16:
        raise ConfigError(
            f"--block-size {cache.block_size} is not supported on the CPU: "
            "choose a multiple of 16, or leave it out."
        )


def _set_state_dtype(config: VllmConfig) -> None:
    """Recurrent states in fp32 unless the user or the model says otherwise: in 16 bits a state is
    rounded after every token."""
    cache = config.cache_config
    if cache.mamba_ssm_cache_dtype == "auto":
        asked = cache.mamba_cache_dtype
        cache.mamba_ssm_cache_dtype = "float32" if asked == "auto" else asked
    # The state of a convolution is its last inputs, which are nowhere more exact than in their own.
    cache.mamba_cache_dtype = "auto"


def _check_threads(config: VllmConfig) -> None:
    """Plan every rank of this machine now: a wrong setting should not cost a model load."""
    layout = local_layout(config)
    machine, taken = Machine.read(), Reservations().taken(config.instance_id)
    plans = machine.plan(layout.ranks, taken)
    advice = advise(
        machine, layout, plans, taken, fits=_tensor_sizes(config), command=_serve_command()
    )
    if advice:
        logger.info_once("cpu_backend: %s", advice)


def local_layout(config: VllmConfig) -> Layout:
    """The ranks of this machine.

    Kept in the configuration when it is first seen, because the host tells a data-parallel engine
    of a dense model that it is alone.
    """
    if not isinstance(config.additional_config, dict):
        return Layout.of(config.parallel_config)
    if LAYOUT not in config.additional_config:
        layout = Layout.of(config.parallel_config)
        sizes = [layout.tensor, layout.pipeline, layout.data]
        config.additional_config = {**config.additional_config, LAYOUT: sizes}
    return Layout(*config.additional_config[LAYOUT])


def _tensor_sizes(config: VllmConfig) -> Callable[[int], bool]:
    """Whether the model can be cut in so many tensor-parallel ranks."""
    text: Any = getattr(config.model_config, "hf_text_config", None)
    layers = text.per_layer_config if getattr(text, "is_heterogeneous", False) else [text]
    heads = {_heads(layer) for layer in layers}
    return lambda size: all(
        queries % size == 0 and (keys % size == 0 or size % keys == 0) for queries, keys in heads
    )


def _heads(config: Any) -> tuple[int, int]:
    """Of queries and of keys, as a config says it; 1 where it does not."""
    queries = getattr(config, "num_attention_heads", None) or 1
    return queries, getattr(config, "num_key_value_heads", None) or queries


def _serve_command() -> str:
    """The command line of this server without its layout; empty when it is not `vllm serve`."""
    if "serve" not in sys.argv[1:2] or Path(sys.argv[0]).name != "vllm":
        return ""
    command = shlex.join(["vllm", *sys.argv[1:]])
    layout = r" (-[tpd]p|--(tensor|pipeline|data)[-_]parallel[-_]size)[ =]\d+"
    return re.sub(layout, "", command)


def _set_kv_cache_space(config: VllmConfig) -> None:
    requested = memory.parse_kvcache_space(envs.KVCACHE_SPACE.get())
    if requested is None:
        return
    status = memory.read_memory_status(local_ranks=local_layout(config).ranks)
    memory.plan_kv_bytes(requested, status)
    needed = _one_request_bytes(config)
    # With --max-model-len auto the host shortens requests to what fits.
    if requested < needed and config.model_config.original_max_model_len != -1:
        raise ConfigError(
            f"VLLM_CPU_KVCACHE_SPACE={envs.KVCACHE_SPACE.get()} is smaller than the "
            f"{needed / memory.GIB:.3g} GiB that one request of "
            f"{config.model_config.max_model_len} tokens fills: "
            "give it more, or lower --max-model-len (auto: to what fits)."
        )
    config.cache_config.kv_cache_memory_bytes = requested


def _one_request_bytes(config: VllmConfig) -> int:
    """KV bytes per rank of one request of full length, for models whose layers all keep it whole;
    0 for others, which the host checks once the model is built."""
    model = config.model_config
    if model is None or model.runner_type != "generate":
        return 0
    if model.has_inner_state or model.get_sliding_window() is not None:
        return 0
    if hasattr(model.hf_text_config, "index_topk"):  # some layers have an indexer's keys besides
        return 0
    parallel = config.parallel_config
    channels = 2 * model.get_head_size()
    if model.use_mla:  # a latent as key and as value; what only rotates is key alone
        channels -= getattr(model.hf_text_config, "qk_rope_head_dim", 0)
    per_token = model.get_num_kv_heads(parallel) * kv_dtypes.token_bytes(
        config.cache_config.cache_dtype, model.dtype, channels
    )
    return int(per_token * model.get_num_layers(parallel) * model.max_model_len)


def _set_executor(config: VllmConfig) -> None:
    parallel = config.parallel_config
    if parallel.worker_cls == "auto":
        parallel.worker_cls = WORKER
    # One rank computes in the engine's own process: no extra hop per step.  The host asks for
    # "mp" itself where there are several engines.
    uniproc = (None, "uni", "mp") if parallel.data_parallel_size > 1 else (None, "uni")
    if parallel.world_size == 1 and parallel.distributed_executor_backend in uniproc:
        parallel.distributed_executor_backend = EXECUTOR
    parallel.disable_custom_all_reduce = True


def _switch_off_gpu_features(config: VllmConfig) -> None:
    if config.scheduler_config.async_scheduling:  # the host's choice, too, where the user has none
        logger.info(
            "cpu_backend: async scheduling is off: a step computes on the scheduler's own CPUs, "
            "which leaves nothing to overlap."
        )
    config.scheduler_config.async_scheduling = False
    config.compilation_config.cudagraph_capture_sizes = []
    config.profiler_config.torch_profiler_dump_cuda_time_total = False


def _set_environment(config: VllmConfig) -> None:
    os.environ["VLLM_DISABLE_SHARED_EXPERTS_STREAM"] = "1"
    # Functions that the host compiles one by one (Cohere's norm, routers) run as they are written,
    # in the processes to come as well: tracing takes seconds, and cannot happen in a recorded step.
    os.environ["TORCH_COMPILE_DISABLE"] = "1"
    if "torch._dynamo.config" in sys.modules:  # otherwise it will read the variable
        torch._dynamo.config.disable = True
    # A step of a large model's prompts, or with a large picture, may take longer than the 300 s for
    # which the host waits for ranks in other processes; when one ends it sees that by itself.
    hung = int(heartbeat.STEP_FACTOR * envs.health_seconds())
    os.environ.setdefault("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", str(hung))
    os.environ["LOCAL_WORLD_SIZE"] = str(config.parallel_config.tensor_parallel_size)
    # A thread pool in the server's process would not survive the fork and has nothing to do.
    torch.set_num_threads(1)
