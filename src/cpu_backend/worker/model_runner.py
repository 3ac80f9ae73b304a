"""The model runner: the host's V1 runner on CPU tensors."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.config import get_layers_from_vllm_config
from vllm.distributed.parallel_state import get_tp_group
from vllm.forward_context import get_forward_context
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.models.interfaces import requires_raw_input_tokens
from vllm.sequence import IntermediateTensors
from vllm.v1.attention.backend import AttentionType
from vllm.v1.kv_cache_interface import EncoderOnlyAttentionSpec, KVCacheGroupSpec
from vllm.v1.worker.cpu_model_runner import CPUModelRunner as HostCPUModelRunner
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

from cpu_backend import architectures, providers
from cpu_backend.attention import whole_prompts
from cpu_backend.attention.states import StateMetadata
from cpu_backend.errors import ConfigError
from cpu_backend.layers.activation import activate_in_linear
from cpu_backend.runtime import system
from cpu_backend.runtime.reservations import Reservations
from cpu_backend.worker.draft_replay import DraftReplay
from cpu_backend.worker.media_ahead import MediaAhead, OneMedium
from cpu_backend.worker.model_memory import model_memory
from cpu_backend.worker.sampler import CPUSampler
from cpu_backend.worker.speculation import CPURejectionSampler
from cpu_backend.worker.step_outputs import Outputs
from cpu_backend.worker.step_replay import State, StepReplay, distinct

if TYPE_CHECKING:
    from cpu_backend.worker.lora import CPUPunicaWrapper

logger = init_logger("vllm.cpu_backend")

SLOW_SECONDS = 30  # of encoding media, from which on a line says what would be faster


class CPUModelRunner(HostCPUModelRunner):
    """The host's GPUModelRunner, by way of its thin CPU subclass, which replaces device buffers
    by their CPU twins and streams by nothing.  What this class adds is sampling, loading, warm-up
    and the replay of recorded steps."""

    num_prompt_logprobs: dict[str, int]  # of the requests whose prompt is not done

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sampler.__class__ = CPUSampler  # its rejection sampler holds the same object
        if hasattr(self, "rejection_sampler"):
            self.rejection_sampler.__class__ = CPURejectionSampler
        self._has_media = False
        self._outputs = Outputs()
        self.media_ahead = self._media_ahead()

    def load_model(self, load_dummy_weights: bool = False) -> None:
        """Load and pack, and keep the time for the start-up line."""
        start = time.perf_counter()
        providers.prepare(self.model_config.dtype)
        super().load_model(load_dummy_weights)
        system.malloc_trim()  # packing leaves holes of the size of its largest layer
        self._check_cache_type()
        if self.mm_budget is not None:
            architectures.tell_media(self.model_config.architecture, self.mm_budget.mm_limits)
        draft_model = self.get_draft_model()
        if self.lora_config is None:  # adapters add to the projection's own result
            activate_in_linear(self.get_model())
            if draft_model is not None:
                activate_in_linear(draft_model)
        if not providers.replayable():
            self._tell(
                "steps are not recorded, and a row's bits depend on its batch, with other "
                "providers than native"
            )
        self.load_seconds = time.perf_counter() - start
        self.step_replay = None
        self._records_adapters = self.lora_config is not None and not any(
            map(_adds_in_python, self.get_model().modules())
        )
        if self._replays_steps():
            self.step_replay = StepReplay(self._memory, _all_ranks_agree, self._tell)
            if draft_model is not None:
                self._replay_drafts(draft_model)

    def _replay_drafts(self, draft_model: torch.nn.Module) -> None:
        """Record the draft model's forwards as the model's own."""

        def memory() -> list[torch.Tensor]:
            return [*model_memory(draft_model), *self.kv_caches]

        def tell(sentence: str) -> None:
            self._tell(f"of the draft model, {sentence}")

        DraftReplay(draft_model, StepReplay(memory, _all_ranks_agree, tell))

    def may_add_encoder_only_layers_to_kv_cache_config(self) -> None:
        """The host's, of layers of several shapes too: a group for each."""
        groups: dict[EncoderOnlyAttentionSpec, list[str]] = {}
        for name, layer in get_layers_from_vllm_config(self.vllm_config, Attention).items():
            if layer.attn_type == AttentionType.ENCODER_ONLY:
                spec = EncoderOnlyAttentionSpec(
                    block_size=self.cache_config.block_size,
                    num_kv_heads=layer.num_kv_heads,
                    head_size=layer.head_size,
                    dtype=self.kv_cache_dtype,
                )
                groups.setdefault(spec, []).append(name)
                self.runner_only_attn_layers.add(name)
        self.kv_cache_config.kv_cache_groups.extend(
            KVCacheGroupSpec(layer_names=names, kv_cache_spec=spec)
            for spec, names in groups.items()
        )

    def initialize_metadata_builders(self, *args: Any) -> None:
        """The host's; those of models that read prompts in both directions learn their lengths."""
        super().initialize_metadata_builders(*args)
        if whole_prompts.has(self.model_config):
            for group in self._attn_group_iterator():
                group.get_metadata_builder().prompt_lengths = self._prompt_lengths

    def _prompt_lengths(self) -> list[int]:
        """Of all requests of the batch, by row."""
        return self.input_batch.num_prompt_tokens[: self.input_batch.num_reqs].tolist()

    def _check_cache_type(self) -> None:
        """Raise ConfigError where the model does not give its KV cache the type asked for."""
        asked, skipped = self.cache_config.cache_dtype, self.cache_config.kv_cache_dtype_skip_layers
        layers = self.vllm_config.compilation_config.static_forward_context.values()
        types = {getattr(layer, "kv_cache_dtype", asked) for layer in layers}
        if not skipped and types - {asked} == {"auto"}:
            raise ConfigError(
                f"--kv-cache-dtype {asked} does not reach the layers of "
                f"{self.model_config.architecture}, where the host does not pass it on: "
                "leave it at auto."
            )

    def _tell(self, sentence: str) -> None:
        """Why this server is slower than others: once in the log, and for
        ``python -m cpu_backend.info`` while it lives."""
        logger.warning("cpu_backend: %s.", sentence)
        Reservations().note(self.vllm_config.instance_id, sentence)

    def _memory(self) -> list[torch.Tensor]:
        """What outlives a step."""
        return [*model_memory(self.get_model()), *self.kv_caches]

    def _replays_steps(self) -> bool:
        """Whether the model's forward is a function of tokens, or what was made of them, positions
        and KV cache alone."""
        config = self.vllm_config
        return (
            not self.model_config.enforce_eager
            and self.model_config.runner_type == "generate"
            and config.parallel_config.data_parallel_size == 1  # experts compute others' tokens
            and _ranks_share_memory()  # gloo's collectives cannot be recorded
            and providers.replayable()
        )

    @contextlib.contextmanager
    def _only_finished_prompts(self) -> Iterator[None]:
        """The requests whose prompt goes on after this step have no generator meanwhile: the token
        that is drawn for them is thrown away.  The host turns their generators back, which those
        of CPUs cannot do."""
        generators = self.input_batch.generators
        going_on = np.flatnonzero(self.discard_request_mask.np[: self.input_batch.num_reqs])
        hidden = {row: generators.pop(row) for row in going_on.tolist() if row in generators}
        try:
            yield
        finally:
            generators.update(hidden)

    def _sample(self, *args: Any, **kwargs: Any) -> Any:
        with self._only_finished_prompts():
            return super()._sample(*args, **kwargs)

    def _bookkeeping_sync(self, *args: Any, **kwargs: Any) -> Any:
        with self._only_finished_prompts():
            return super()._bookkeeping_sync(*args, **kwargs)

    def _adapter_wrappers(self) -> list[CPUPunicaWrapper]:
        """Those of the model's parts that adapters may have."""
        if self.lora_config is None:
            return []
        return list(self.lora_manager._adapter_manager.punica_wrapper_mapping.values())

    def _get_prompt_logprobs_dict(
        self, hidden_states: torch.Tensor, num_scheduled_tokens: dict[str, int]
    ) -> Any:
        """The host's; beside adapters a request at a time, as all tokens of its prompt have one."""
        asked = self.num_prompt_logprobs
        if self.lora_config is None:
            return super()._get_prompt_logprobs_dict(hidden_states, num_scheduled_tokens)
        found: dict[str, Any] = {}
        for request in [request for request in asked if request in num_scheduled_tokens]:
            first = int(self.query_start_loc.np[self.input_batch.req_id_to_index[request]])
            self.num_prompt_logprobs = {request: asked[request]}
            with contextlib.ExitStack() as stack:
                for wrapper in self._adapter_wrappers():
                    stack.enter_context(wrapper.logits_like(first))
                found |= super()._get_prompt_logprobs_dict(hidden_states, num_scheduled_tokens)
            if not self.num_prompt_logprobs:  # the prompt is done
                del asked[request]
        self.num_prompt_logprobs = asked
        return found

    def _media_ahead(self) -> MediaAhead | None:
        """For models of one rank that keep what they encode; adapters of towers are set by steps,
        and the ranks of a group would have to go on and stop together."""
        parallel = self.parallel_config
        if (
            self.mm_budget is None
            or self.model_config.is_encoder_decoder
            or self.lora_config is not None
            or self.vllm_config.ec_transfer_config is not None
            or parallel.world_size > 1
            or parallel.data_parallel_size > 1
        ):
            return None
        try:
            import greenlet
        except ImportError:
            logger.warning(
                "cpu_backend: other requests wait while pictures, videos and sounds are encoded, "
                "because the package greenlet is missing: pip install greenlet."
            )
            return None
        known = self.encoder_cache.__contains__
        return MediaAhead(greenlet, self._encode, known, self.mm_budget.encoder_cache_size)

    def _encode(self, request: Any, number: int) -> torch.Tensor:
        """One of its media, by the host's steps."""
        step = OneMedium(request.request_id, request.mm_features[number], number)
        begin = time.perf_counter()
        super()._execute_mm_encoder(step)
        (encoded,) = step.encoded.values()
        _tell_slow(begin, len(encoded))
        return encoded

    def _batch_mm_inputs_from_scheduler(self, scheduler_output: Any) -> Any:
        """The host's, or the one medium of a request that it has not scheduled yet."""
        if isinstance(scheduler_output, OneMedium):
            return scheduler_output.batch()
        return super()._batch_mm_inputs_from_scheduler(scheduler_output)

    def _cache_encoder_output(self, mm_hash: str, output: Any, step: Any, *args: Any) -> None:
        """The host's cache has room for what it has scheduled."""
        if isinstance(step, OneMedium):
            step.encoded[mm_hash] = output
        else:
            super()._cache_encoder_output(mm_hash, output, step, *args)

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """The host's, after some encoding of media whose requests wait."""
        if self.media_ahead is not None:
            self.media_ahead.advance(busy=scheduler_output.total_num_scheduled_tokens > 0)
        return super().execute_model(scheduler_output, *args, **kwargs)

    def reset_encoder_cache(self) -> None:
        """The host's, and what waits to get there."""
        super().reset_encoder_cache()
        if self.media_ahead is not None:
            self.media_ahead.drop()

    def _execute_mm_encoder(self, scheduler_output: Any) -> list[torch.Tensor]:
        """The host's, of what is not encoded yet; in a step with sounds one medium after the other.
        Together sounds are filled up to the longest: what fills them would be computed too, and
        bits depend on it."""
        scheduled = scheduler_output.scheduled_encoder_inputs
        if self.media_ahead is not None:
            scheduled = self._take_encoded(scheduler_output, self.media_ahead)
        media = [(request, number) for request in scheduled for number in scheduled[request]]
        steps = [scheduled]
        if any(self.requests[i].mm_features[number].modality == "audio" for i, number in media):
            steps = [{request: [number]} for request, number in media]
        outputs, begin = [], time.perf_counter()
        for step in steps:
            part = copy.copy(scheduler_output)
            part.scheduled_encoder_inputs = step
            outputs += super()._execute_mm_encoder(part)
        _tell_slow(begin, sum(len(output) for output in outputs), ", in which no request went on")
        return outputs

    def _take_encoded(self, scheduler_output: Any, ahead: MediaAhead) -> dict[str, list[int]]:
        """Put what has been encoded before into the host's cache; returns the rest of the step's
        media, by requests."""
        rest: dict[str, list[int]] = {}
        for request, numbers in scheduler_output.scheduled_encoder_inputs.items():
            for number in numbers:
                identifier = self.requests[request].mm_features[number].identifier
                encoded = ahead.take(identifier)
                if encoded is None:
                    rest.setdefault(request, []).append(number)
                else:
                    self.encoder_cache[identifier] = encoded
        return rest

    def _gather_mm_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        """The host's; whether this step has any is kept: some models change what they hold for
        images while they run.  One that takes tokens besides has a sound in every step, and takes
        it as it takes them."""
        embeddings, places = super()._gather_mm_embeddings(*args, **kwargs)
        self._has_media = bool(embeddings) and not requires_raw_input_tokens(self.get_model())
        return embeddings, places

    def _model_forward(
        self,
        input_ids: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **model_kwargs: Any,
    ) -> Any:
        """The host's, by way of a recorded step where that is possible."""

        def forward(
            embedded: torch.Tensor | None = inputs_embeds,
            received: IntermediateTensors | None = intermediate_tensors,
        ) -> Any:
            output = super(CPUModelRunner, self)._model_forward(
                input_ids, positions, received, embedded, **model_kwargs
            )
            if isinstance(output, IntermediateTensors):
                # Some models send a residual of None to the next stage, which has zeros for it.
                output.tensors = {k: v for k, v in output.tensors.items() if v is not None}
            return output

        def forward_of_copy() -> torch.Tensor:
            """Models add to what they are given, which a recorded step has to find unchanged."""
            copies = {name: tensor.clone() for name, tensor in stage_inputs.items()}
            return self._outputs.joined(
                forward(
                    None if inputs_embeds is None else inputs_embeds.clone(),
                    IntermediateTensors(copies) if copies else None,
                )
            )

        groups = distinct(get_forward_context().attn_metadata)
        branch = tuple(wrapper.has_adapters for wrapper in self._adapter_wrappers())
        if (
            self.step_replay is None
            or positions is None
            or model_kwargs
            or self._has_media
            or (any(branch) and not self._records_adapters)
            or not groups
        ):
            return forward()
        stage_inputs = intermediate_tensors.tensors if intermediate_tensors is not None else {}
        # Tokens are in the last dimension; the host embeds them itself where images may be.
        embedded = None if inputs_embeds is None else inputs_embeds.T
        received = (tensor.movedim(0, -1) for tensor in stage_inputs.values())
        inputs = tuple(x for x in (positions, input_ids, embedded, *received) if x is not None)
        output = self.step_replay.run(forward_of_copy, inputs, groups, _states(), branch)
        return self._outputs.parted(output)

    @staticmethod
    def kv_connector_no_forward(scheduler_output: Any, vllm_config: Any) -> Any:
        """The host's, of a step that computes nothing.  Threads that read pages need Python's lock
        meanwhile, which an engine in the program's own process would not let go of."""
        time.sleep(0.001)
        return KVConnectorModelRunnerMixin.kv_connector_no_forward(scheduler_output, vllm_config)

    def warm_up(self) -> float:
        """One small forward, so that the first request meets touched pages and started threads.

        Returns the seconds it took.
        """
        start = time.perf_counter()
        self._dummy_run(min(16, self.max_num_tokens), skip_eplb=True)
        return time.perf_counter() - start


def _tell_slow(begin: float, tokens: int, meanwhile: str = "") -> None:
    if (seconds := time.perf_counter() - begin) > SLOW_SECONDS:
        logger.warning_once(
            "cpu_backend: encoding media of %d tokens took %.0f s%s: smaller pictures and shorter "
            "videos take less (--mm-processor-kwargs may limit them, max_pixels for Qwen-VL).",
            tokens,
            seconds,
            meanwhile,
        )


def _adds_in_python(module: torch.nn.Module) -> bool:
    """Whether what adapters add to it is computed for one adapter after the other, by which are
    there: to experts (layers/expert_adapters.py) and latents (attention/latent_adapters.py)."""
    from vllm.lora.layers import FusedMoEWithLoRA

    from cpu_backend.attention.latent import LatentAttention

    latents = isinstance(module, LatentAttention) and module.adapters is not None
    return latents or isinstance(module, FusedMoEWithLoRA)


def _ranks_share_memory() -> bool:
    """Whether those of this rank's tensor-parallel group do."""
    group = get_tp_group()
    return group.world_size == 1 or group.device_communicator.supports_tensor_dict


def _all_ranks_agree(answer: bool) -> bool:
    """Whether every rank of this one's tensor-parallel group says yes."""
    group = get_tp_group()
    if group.world_size == 1:
        return answer
    votes = torch.tensor([answer], dtype=torch.int32)
    torch.distributed.all_reduce(votes, torch.distributed.ReduceOp.MIN, group.cpu_group)
    return bool(votes.item())


def _states() -> list[State]:
    """The recurrent states of all layers, and where the step's requests have theirs."""
    context = get_forward_context()
    return [
        State(states, metadata.slots)
        for name, metadata in context.attn_metadata.items()
        if isinstance(metadata, StateMetadata)
        for states in context.no_compile_layers[name].kv_cache
    ]
