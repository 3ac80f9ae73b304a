"""What cannot work is refused in one sentence before an engine starts."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from vllm.config.speculative import SpeculativeMethod

from cpu_backend.architectures import NOT_ON_CPUS, WITHOUT_ADAPTERS
from cpu_backend.errors import ConfigError
from cpu_backend.only_with import LIMITS
from tests.e2e.forked_cli import Run, run_all
from tests.zoo import build, image_specs, newer_specs, text_specs


def _configure(model: str | Path, max_model_len: int = 512, **options: Any) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    made = EngineArgs(str(model), device="cpu", max_model_len=max_model_len, **options)
    return made.create_engine_config()


@pytest.fixture(scope="module", autouse=True)
def host_is_loaded(model_path: str) -> None:
    """It sets up its log when it is first used, and caplog would miss that first time."""
    _configure(model_path)


NGRAM = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}


# The host's own, until 0.33 in the last case.
OTHER_METHODS = {"ngram_gpu", "custom_class", "medusa"} & {*get_args(SpeculativeMethod)}


@pytest.mark.parametrize("method", sorted(OTHER_METHODS))
def test_methods_of_speculation(model_path: str, method: str) -> None:
    model = {} if method == "ngram_gpu" else {"model": model_path}
    with pytest.raises(
        ConfigError, match=rf"drafts by {method} are not .* choose .* ngram, suffix"
    ):
        _configure(model_path, speculative_config=NGRAM | model | {"method": method})


@pytest.mark.parametrize(
    "option",
    [
        {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 1.5},
        {"rejection_sample_method": "block"},
        {"num_speculative_tokens_per_batch_size": [(1, 4, 2)]},
    ],
    ids=lambda option: " ".join(map(str, option.values())),
)
def test_options_of_speculation(model_path: str, option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"{next(iter(option))} of --speculative-config is not"):
        _configure(model_path, speculative_config=NGRAM | option)


@pytest.mark.parametrize(
    ("name", "layers", "sentence"),
    [
        ("DeepseekV3ForCausalLM", 0, r"no layers that draft tokens.*: choose another method"),
        ("DeepseekV32ForCausalLM", 1, "DeepseekV32MTPModel is written for GPUs"),
        ("PanguUltraMoEForCausalLM", 1, "drafts by OpenPanguMTPModel are not .*: choose another"),
    ],
)
def test_layers_that_draft(name: str, layers: int, sentence: str, tmp_path: Path) -> None:
    build.write_config(next(spec for spec in text_specs.SPECS if spec.name == name), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["num_nextn_predict_layers"] = layers
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=sentence):
        _configure(
            tmp_path,
            skip_tokenizer_init=True,
            speculative_config={"method": "mtp", "num_speculative_tokens": 2},
        )


def test_latent_attention_of_transformers_models(tmp_path: Path) -> None:
    spec = next(spec for spec in text_specs.SPECS if spec.name == "DeepseekV3ForCausalLM")
    build.write_config(spec, tmp_path)
    with pytest.raises(ConfigError, match=r"latent attention, .*: leave --model-impl at auto"):
        _configure(tmp_path, skip_tokenizer_init=True, model_impl="transformers")
    _configure(tmp_path, skip_tokenizer_init=True, model_impl="vllm")


@pytest.mark.parametrize(
    ("name", "option"),
    [("--enable-lora", {"enable_lora": True}), ("--pipe", {"pipeline_parallel_size": 2})],
)
def test_what_speculation_is_not_beside(model_path: str, name: str, option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"{name}.* beside --speculative-config .* leave one"):
        _configure(model_path, speculative_config=NGRAM, **option)


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"mm_encoder_only": True}, "leave --mm-encoder-only out"),
        ({"video_pruning_rate": 0.5}, "with --video-pruning-rate, vLLM places all but the first"),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else "",
)
def test_features_of_media(tmp_path: Path, option: dict[str, Any], sentence: str) -> None:
    spec = next(s for s in image_specs.SPECS if s.name == "Idefics3ForConditionalGeneration")
    spec.processor(tmp_path)
    build.write_config(spec, tmp_path)
    with pytest.raises(ConfigError, match=sentence):
        _configure(tmp_path, **option)


def test_drafts_of_or_by_models_whose_states_cannot_be_taken_back(
    model_path: str, tmp_path: Path
) -> None:
    by_name = {spec.name: spec for spec in text_specs.SPECS}
    mamba, hybrid, jamba = "Mamba2ForCausalLM", "GraniteMoeHybridForCausalLM", "JambaForCausalLM"
    for name in (mamba, hybrid, jamba):
        vocabulary = {"vocab_size": 49152}  # the host wants the drafts' to be the model's
        spec = replace(by_name[name], config=by_name[name].config | vocabulary)
        build.write_config(spec, tmp_path / name)
    with pytest.raises(ConfigError, match=f"{mamba}, whose layers all have a recurrent state"):
        _configure(tmp_path / mamba, speculative_config=NGRAM, skip_tokenizer_init=True)
    with pytest.raises(ConfigError, match="Mamba layers of the first kind"):
        _configure(tmp_path / jamba, speculative_config=NGRAM, skip_tokenizer_init=True)
    by_hybrid = {"method": "draft_model", "model": str(tmp_path / hybrid)}
    with pytest.raises(ConfigError, match=f"drafts by {hybrid}, whose layers have a recurrent"):
        _configure(model_path, speculative_config={"num_speculative_tokens": 2} | by_hybrid)


@pytest.mark.parametrize(
    ("kept", "option"),
    [
        ("weights", {"cpu_offload_gb": 4.0}),
        ("weights", {"offload_group_size": 2}),
        ("KV cache", {"kv_offloading_size": 1.0}),
    ],
    ids=lambda option: " ".join(option) if isinstance(option, dict) else option,
)
def test_offloading(model_path: str, kept: str, option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"{kept} lies? in the CPU's memory already: leave --"):
        _configure(model_path, **option)


def test_connectors(model_path: str) -> None:
    """All that the host has: none knows in which order keys and values lie here."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    for name in KVConnectorFactory._registry:
        transfer = {"kv_connector": name, "kv_role": "kv_both"}
        said = rf"{name} .* leave --kv-transfer-config out|HiSparse .* requires NVIDIA"
        with pytest.raises(ConfigError, match=said):
            _configure(model_path, kv_transfer_config=transfer)
    with pytest.raises(ConfigError, match="server on the CPU yet: leave --ec-transfer-config out"):
        _configure(
            model_path,
            ec_transfer_config={"ec_connector": "ECExampleConnector", "ec_role": "ec_both"},
        )


@pytest.mark.parametrize(
    "scheme", ["torchao", "quark", "online", "mxfp4", "deepseek_v4_fp8", "bitsandbytes"]
)
def test_schemes_of_checkpoints_for_one_that_has_none(model_path: str, scheme: str) -> None:
    with pytest.raises(ConfigError, match=rf"{scheme} is for checkpoints .* cpu_int8 or cpu_int4"):
        _configure(model_path, quantization=scheme)


def test_a_cache_in_other_16_bits_than_the_model(model_path: str) -> None:
    with pytest.raises(
        ConfigError,
        # In this backend's words, or, since 0.33, in the host's.
        match=r"float16 .* a model in bfloat16: .* --dtype float16 too"
        r"|float16.* incompatible with dtype=.bfloat16.* .--kv-cache-dtype",
    ):
        _configure(model_path, kv_cache_dtype="float16")
    for dtype in ("bfloat16", "fp8"):
        assert _configure(model_path, kv_cache_dtype=dtype).cache_config.cache_dtype == dtype


def test_new_weights_from_a_trainer(model_path: str) -> None:
    with pytest.raises(ConfigError, match=r"weights are packed .* start another"):
        _configure(model_path, weight_transfer_config={"backend": "ipc"})


def test_places_of_gpus(model_path: str) -> None:
    assert not _configure(model_path, numa_bind=True).parallel_config.numa_bind
    with pytest.raises(ConfigError, match="VLLM_CPU_OMP_THREADS_BIND"):
        _configure(model_path, numa_bind=True, numa_bind_nodes=[0])


def test_compiling_is_off_and_steps_are_recorded(
    model_path: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCH_COMPILE_DISABLE")  # left by the configuration before
    config = _configure(model_path, compilation_config={"mode": 3})
    assert config.compilation_config.mode == 0
    assert "--compilation-config.mode VLLM_COMPILE changes nothing: steps are rec" in caplog.text


@pytest.mark.parametrize(("given", "expected"), [("", "1800"), ("7", "7")])
def test_ranks_may_take_as_long_for_a_step_as_health_allows(
    given: str, expected: str, model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
    monkeypatch.setenv(name, given)
    if not given:
        monkeypatch.delenv(name)
    _configure(model_path)
    assert os.environ[name] == expected


def test_profilers_of_a_gpu(model_path: str) -> None:
    with pytest.raises(ConfigError, match=r"cuda profiler needs a GPU: choose .* torch"):
        _configure(model_path, profiler_config={"profiler": "cuda"})


def test_a_library_for_structured_outputs_that_does_not_load(model_path: str) -> None:
    name = "lm-format-enforcer"
    with pytest.raises(ConfigError, match=rf"{name} .* choose xgrammar or guidance"):
        _configure(model_path, structured_outputs_config={"backend": name})


def test_adapters_of_mixtures_with_numbers_of_each_rank(model_path: str, tmp_path: Path) -> None:
    config = json.loads((Path(model_path) / "config.json").read_text())
    config |= {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(Path(model_path) / name)
    assert _configure(tmp_path, load_format="dummy", enable_lora=True).lora_config
    with pytest.raises(ConfigError, match=r"LoRA .* --data-parallel-size 2 .*: choose --tensor"):
        _configure(tmp_path, load_format="dummy", enable_lora=True, data_parallel_size=2)


def test_async_scheduling_is_switched_off_and_said(
    model_path: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = _configure(model_path, async_scheduling=True)
    assert config.scheduler_config.async_scheduling is False
    assert "async scheduling is off" in caplog.text


def test_states_have_the_type_that_was_asked_for(
    model_path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A convolution's state that of its inputs, whatever was asked for."""
    asked = {"mamba_cache_dtype": "float16", "enable_mamba_cache_stochastic_rounding": True}
    config = _configure(model_path, **asked, mamba_ssm_cache_dtype="float16")
    kinds = config.cache_config.mamba_cache_dtype, config.cache_config.mamba_ssm_cache_dtype
    assert kinds == ("auto", "float16")
    assert "rounded to nearest" in caplog.text
    assert not config.mamba_config.enable_stochastic_rounding
    plain = _configure(model_path).cache_config
    assert (plain.mamba_cache_dtype, plain.mamba_ssm_cache_dtype) == ("auto", "float32")
    given = _configure(model_path, mamba_cache_dtype="bfloat16").cache_config
    assert (given.mamba_cache_dtype, given.mamba_ssm_cache_dtype) == ("auto", "bfloat16")


def _llm(model: Path, **options: Any) -> Run:
    options |= {"model": str(model), "skip_tokenizer_init": True, "max_num_seqs": 4}
    return Run(tuple(f"{key}={json.dumps(value)}" for key, value in options.items()), program="LLM")


@pytest.mark.parametrize("width", [64, 128])
def test_experts_of_another_width_than_their_config_says(tmp_path: Path, width: int) -> None:
    """The host would leave a part of the weights away, or a part of the experts empty."""
    build.build(build.Spec("Qwen3MoeForCausalLM", "Qwen3 MoE", "qwen3_moe"), tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"moe_intermediate_size": width}))
    [done] = run_all([_llm(tmp_path, max_model_len=256)], tmp_path)
    assert "[192, 96] in the checkpoint" in done.sentence
    assert f"makes it [192, {width}]" in done.sentence


def test_experts_that_are_not_quantized_as_their_config_says(tmp_path: Path) -> None:
    """The host would cut numbers to codes."""
    build.build(build.Spec("Qwen3MoeForCausalLM", "Qwen3 MoE", "qwen3_moe"), tmp_path)
    config = tmp_path / "config.json"
    layers = {"modules_to_not_convert": ["self_attn", "mlp.gate"]}
    scheme = {"quant_method": "fp8", "activation_scheme": "dynamic", **layers}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": scheme}))
    [done] = run_all([_llm(tmp_path, max_model_len=256)], tmp_path)
    assert "A weight for model.layers.0.mlp.experts" in done.sentence
    assert "is of float32 in the checkpoint" in done.sentence
    assert "makes it float8_e4m3fn" in done.sentence


def test_experts_in_schemes_that_are_made_for_gpus(tmp_path: Path) -> None:
    build.write_config(build.Spec("Qwen3MoeForCausalLM", "Qwen3 MoE", "qwen3_moe"), tmp_path)
    options = {"load_format": "dummy", "max_model_len": 256}
    schemes = ("fp8", "experts_int8", "cpu_int8")
    *refused, fitting = run_all(
        [_llm(tmp_path, quantization=s, **options) for s in schemes], tmp_path
    )
    for done in refused:
        assert "mixtures of experts in the scheme of vLLM's" in done.sentence
    assert fitting.code == 0, fitting.err[-4000:]


HRM = build.Spec(
    "HrmTextForCausalLM", "HRM-Text", "hrm_text", {"num_hidden_layers": 1, "L_cycles": 1}
)


def test_steps_are_as_long_as_prompts_that_are_read_in_one(tmp_path: Path) -> None:
    """And as all other requests' answers beside the longest."""
    build.write_config(HRM, tmp_path)
    steps = {"max_num_batched_tokens": 256, "max_num_seqs": 7, "long_prefill_token_threshold": 9}
    made = _configure(tmp_path, 300, load_format="dummy", skip_tokenizer_init=True, **steps)
    assert made.scheduler_config.max_num_batched_tokens == 307
    assert made.scheduler_config.long_prefill_token_threshold == 0
    assert not made.scheduler_config.enable_chunked_prefill
    assert not made.cache_config.enable_prefix_caching


def test_prompts_that_would_be_read_the_wrong_way(tmp_path: Path) -> None:
    build.write_config(replace(HRM, config={**HRM.config, "prefix_lm": False}), tmp_path)
    with pytest.raises(ConfigError, match=r"both directions .* choose another model"):
        _configure(tmp_path, load_format="dummy", skip_tokenizer_init=True)


def test_layers_of_kimi_k3_in_a_kimi_linear(tmp_path: Path) -> None:
    """Under the same architecture's name; the host would make layers for GPUs."""
    spec = next(spec for spec in text_specs.SPECS if spec.name == "KimiLinearForCausalLM")
    linear = {**spec.config["linear_attn_config"], "gate_lower_bound": -5.0}
    changed = {"attn_res_block_size": 2, "linear_attn_config": linear}
    build.write_config(replace(spec, config={**spec.config, **changed}), tmp_path)
    with pytest.raises(
        ConfigError, match=r"Kimi K3 \(attn_res_block_size, gate_lower_bound .* choose another"
    ):
        _configure(tmp_path, load_format="dummy", skip_tokenizer_init=True)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("TeleFLMForCausalLM", {"input_mult": 1.5}),
        ("Param2MoEForCausalLM", {"rope_theta": 1e6}),
        ("PanguProMoEV2ForCausalLM", {"param_sink_number": 4}),
        ("K2HorizonForCausalLM", {"mova_num_experts": 4}),
        ("MixtralForCausalLM", {"hidden_act": "gelu"}),
        ("Mamba2ForCausalLM", {"time_step_limit": (0.5, 4.0)}),
        pytest.param(
            "DoryForCausalLM",
            {"recurrent_kv_cache_mode": "last_loop"},
            marks=pytest.mark.needs("vLLM 0.33"),
        ),
    ],
)
def test_what_the_hosts_class_does_not_read(
    name: str, config: dict[str, Any], tmp_path: Path
) -> None:
    spec = next(spec for spec in text_specs.SPECS if spec.name == name)
    build.write_config(spec, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    [(key, value)] = config.items()
    words = re.escape(f"{name} with {key} {value} ")
    with pytest.raises(ConfigError, match=rf"{words}.* choose another model"):
        _configure(tmp_path, load_format="dummy", skip_tokenizer_init=True)


@pytest.mark.parametrize("name", WITHOUT_ADAPTERS)
def test_adapters_that_the_host_would_compute_wrongly(name: str, tmp_path: Path) -> None:
    spec = next(spec for spec in text_specs.SPECS if spec.name == name)
    build.write_config(spec, tmp_path)
    ours = rf"adapters of {name} .*: leave --enable-lora out"
    hosts = rf"LoRA is not supported for {name} .* without .enable_lora."  # since 0.33, of some
    with pytest.raises(ConfigError, match=f"{ours}|{hosts}"):
        _configure(tmp_path, load_format="dummy", skip_tokenizer_init=True, enable_lora=True)


OF_TEXT = {spec.name: spec for spec in text_specs.SPECS}


@pytest.mark.parametrize("name", sorted(NOT_ON_CPUS.keys() & OF_TEXT.keys()))
def test_text_models_that_the_host_cannot_compute_on_a_cpu(name: str, tmp_path: Path) -> None:
    build.write_config(OF_TEXT[name], tmp_path)
    with pytest.raises(ConfigError, match=re.escape(f"{name} {NOT_ON_CPUS[name]}: choose")):
        _configure(tmp_path, load_format="dummy", skip_tokenizer_init=True)


def test_limits_are_of_classes_that_the_host_has() -> None:
    from vllm.model_executor.models.registry import _VLLM_MODELS

    known = {*_VLLM_MODELS, *(name for _, name in _VLLM_MODELS.values())}
    known |= {spec.name for spec in newer_specs.SPECS}
    assert not {name for limit in LIMITS for name in limit.classes.split()} - known


def test_a_cache_type_that_the_host_does_not_pass_on(tmp_path: Path) -> None:
    build.write_config(build.Spec("FalconForCausalLM", "Falcon", "falcon"), tmp_path)
    dummy = {"load_format": "dummy", "max_model_len": 256}
    runs = [_llm(tmp_path, kv_cache_dtype="fp8", **dummy), _llm(tmp_path, **dummy)]
    ignored, fitting = run_all(runs, tmp_path)
    assert "--kv-cache-dtype fp8 does not reach the layers of Falcon" in ignored.sentence
    assert fitting.code == 0, fitting.err[-4000:]
