"""What each setting of the host's engine does here: as documented, nothing, or refused by name.

Every field of the host's ``EngineArgs`` stands in this file once, which a test holds against the
host that is installed.  So none is taken and silently passed over, of a host to come either.
"""

from __future__ import annotations

import logging
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from cpu_backend.errors import ConfigError

logger = logging.getLogger("vllm.cpu_backend")

# By the reason: taken, put back to what the host has without them, and said.
CHANGE_NOTHING = {
    "this backend has its own kernels": """
        attention_backend attention_config enable_flashinfer_autotune gdn_prefill_backend
        ir_op_priority kda_decode_backend kda_prefill_backend kernel_config linear_backend
        mamba_backend mamba_config mamba_ssu_algorithm mm_encoder_attn_backend
        mm_encoder_attn_dtype mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_margin
        mm_encoder_fp8_scale_save_path moe_backend monokernel replayssm_buffer_len
        sparse_indexer_topk_backend use_replayssm""",
    "steps are recorded, neither compiled nor captured as CUDA graphs": """
        compilation_config cudagraph_capture_sizes cudagraph_metrics jit_monitor_mode
        jit_monitor_verbose max_cudagraph_capture_size optimization_level specialize_active_lora""",
    "it is about GPUs": """
        all2all_backend dbo_decode_token_threshold dbo_prefill_token_threshold device_ids
        disable_custom_all_reduce disable_nccl_for_dp_synchronization enable_dbo enable_hc_sp
        enable_layerwise_nvtx_tracing mm_ipc_gpu_memory_gb numa_bind""",
    "recurrent states are rounded to nearest, never at random": """
        enable_mamba_cache_stochastic_rounding mamba_cache_philox_rounds""",
    "attention is not divided among ranks by tokens": """
        cp_kv_cache_interleave_size dcp_comm_backend dcp_kv_cache_interleave_size
        dcp_q_replicate""",
    "weights and KV cache lie in the CPU's memory already": """
        cpu_offload_params kv_offloading_backend offload_backend offload_num_in_group
        offload_params offload_prefetch_step""",
    "a server that sleeps gives its KV cache back and keeps the weights": """
        enable_nccl_comm_suspend sleep_mode_backend sleep_mode_offload_cudagraph
        sleep_preserve_parameter_names""",
    "experts stay on the ranks that loaded them": "elastic_ep_max_dp_size eplb_config",
    "only vLLM's second model runner knows it": "swa_bounded_replay",
}

# By the reason: these would have to do something, and cannot.
REFUSED = {
    "only vLLM's second model runner has it, which needs Triton": """
        aux_output_config diffusion_config enable_batch_sharded_sampling
        enable_return_routed_experts enable_trace_replay engram_config return_sampling_mask
        watermark_config""",
    "attention is not divided among ranks by tokens": """
        decode_context_parallel_size prefill_context_parallel_size""",
    "experts stay on the ranks that loaded them": "enable_elastic_ep enable_eplb",
    "a step is not cut in two": "ubatch_size",
    "a server ends when one of its ranks does": """
        enable_fault_tolerance fault_tolerance_config""",
    "it is about GPUs": "enable_cumem_allocator ray_workers_use_nsight",
    "it places what drives GPUs; VLLM_CPU_OMP_THREADS_BIND names the CPUs of each rank": """
        numa_bind_cpus numa_bind_nodes""",
}

# Each may name a device.
DEVICES = ("mm_processor_device", "mm_processor_kwargs", "pt_load_map_location")

# As the host documents them, or answered where the whole configuration is known: platform.py.
TAKEN = """
    _api_process_count _api_process_rank additional_config aggregate_engine_logging
    allow_deprecated_quantization allowed_local_media_path allowed_media_domains async_scheduling
    block_size code_revision collect_detailed_traces config_format convert
    cpu_distributed_timeout_seconds cpu_offload_gb custom_histogram_buckets data_parallel_address
    data_parallel_backend data_parallel_external_lb data_parallel_hybrid_lb
    data_parallel_multi_port_external_lb data_parallel_rank data_parallel_rpc_port
    data_parallel_size data_parallel_size_local data_parallel_start_rank default_mm_loras
    disable_cascade_attn disable_chunked_mm_input disable_hybrid_kv_cache_manager
    disable_log_stats disable_sliding_window distributed_executor_backend
    distributed_timeout_seconds download_dir dp_sync_interval dtype ec_manager_config
    ec_transfer_config enable_chunked_prefill enable_ep_weight_filter enable_expert_parallel
    enable_log_requests enable_logging_iteration_details enable_lora
    enable_mamba_shared_prefix_checkpoint enable_mfu_metrics enable_mixed_moe_lora_format
    enable_mm_embeds enable_mm_processor_stats enable_moe_shared_loras enable_prefix_caching
    enable_prompt_embeds enable_shm_tensor_arena enable_sleep_mode enable_tower_connector_lora
    enforce_eager expert_placement_strategy fail_on_environ_validation fully_sharded_loras
    generation_config gpu_memory_utilization hf_config_path hf_overrides hf_token ignore_patterns
    interleave_mm_strings io_processor_plugin kv_cache_dtype kv_cache_dtype_skip_layers
    kv_cache_memory_bytes kv_cache_metrics kv_cache_metrics_sample kv_events_config
    kv_offloading_size kv_sharing_fast_prefill kv_transfer_config language_model_only
    limit_mm_per_prompt load_format log_config_file log_level logging_config logits_processors
    logprobs_mode long_prefill_token_threshold long_prefill_token_threshold_adaptive lora_dtype
    lora_target_modules mamba_block_size mamba_cache_dtype mamba_cache_mode mamba_ssm_cache_dtype
    master_addr master_port max_cpu_loras max_logprobs max_lora_cls_labels max_lora_rank max_loras
    max_model_len max_num_active_seqs max_num_batched_tokens max_num_queued_reqs
    max_num_queued_tokens max_num_scheduled_tokens max_num_seqs max_parallel_loading_workers
    media_io_kwargs mm_device_do_normalize mm_encoder_only mm_encoder_tp_mode mm_hasher_algorithm
    mm_processor_cache_gb mm_processor_cache_type mm_processor_device mm_processor_kwargs
    mm_shm_cache_max_object_size_mb mm_tensor_ipc model model_class_overrides model_impl
    model_loader_extra_config model_weights nnodes node_rank num_gpu_blocks_override
    offload_group_size otlp_traces_endpoint
    override_generation_config per_request_spec_decode_metrics performance_mode
    pipeline_parallel_size pooler_config prefill_schedule_interval prefix_cache_retention_interval
    prefix_caching_hash_algo prefix_match_unit profiler_config pt_load_map_location quantization
    quantization_config reasoning_config reasoning_parser reasoning_parser_plugin
    renderer_num_workers revision runner safetensors_load_strategy safetensors_prefetch_block_size
    safetensors_prefetch_num_threads scheduler_cls scheduler_reserve_full_isl scheduling_policy
    seed served_model_name show_hidden_metrics_for_version shutdown_timeout skip_mm_profiling
    skip_tokenizer_init spec_method spec_model spec_tokens speculative_config stream_interval
    structured_outputs_config tensor_parallel_size tokenizer tokenizer_mode tokenizer_revision
    tokens_only trust_remote_code use_fp64_gumbel use_tqdm_on_load video_pruning_method
    video_pruning_rate watchdog_config watermark weight_transfer_config worker_cls
    worker_extension_cls"""


def look(arguments: Any) -> None:
    """Say which settings of the host's ``EngineArgs`` change nothing, and put those back; refuse
    with ConfigError what cannot do what it is for."""
    settings = ((field.name, _given(arguments, field.name)) for field in fields(arguments))
    given = {name: said for name, said in settings if said}
    for name in DEVICES:
        if "cuda" in str(getattr(arguments, name)):
            raise ConfigError(f"{given[name]} needs a GPU: leave it out.")
    for reason, names in REFUSED.items():
        for name in given.keys() & set(names.split()):
            if getattr(arguments, name) is not False:  # which asks for nothing
                raise ConfigError(
                    f"{given[name]} is not supported on the CPU ({reason}): leave it out."
                )
    for reason, names in CHANGE_NOTHING.items():
        if unused := [name for name in names.split() if name in given]:
            verb = "changes" if len(unused) == 1 else "change"
            said = ", ".join(given[name] for name in unused)
            logger.info("cpu_backend: %s %s nothing: %s.", said, verb, reason)
            for name in unused:
                setattr(arguments, name, _default(arguments, name))
    if unknown := given.keys() - set(known()):
        said = ", ".join(given[name] for name in sorted(unknown))
        logger.warning("cpu_backend: nobody has tried %s of this vLLM on the CPU yet.", said)


def known() -> list[str]:
    """The names of all settings that stand in this file."""
    return " ".join((*CHANGE_NOTHING.values(), *REFUSED.values(), TAKEN)).split()


def _default(arguments: Any, name: str) -> Any:
    field = next(field for field in fields(arguments) if field.name == name)
    return field.default if field.default_factory is MISSING else field.default_factory()


def _given(arguments: Any, name: str) -> str:
    """The options that were given for a setting, with their values where those are short."""
    value, default = getattr(arguments, name), _default(arguments, name)
    if not (is_dataclass(value) and type(value) is type(default)):
        return _option(name, value) if value != default else ""
    pairs = ((part.name, getattr(value, part.name)) for part in fields(value))
    return ", ".join(
        _option(f"{name}.{part}", its) for part, its in pairs if its != getattr(default, part)
    )


def _option(name: str, value: Any) -> str:
    first, dot, part = name.partition(".")
    option = f"{first.replace('_', '-')}{dot}{part}"
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    said = getattr(value, "name", value)
    return f"--{option} {said}" if isinstance(said, str | int | float) else f"--{option}"
