"""The worker of one rank: binds cores and memory, loads the model, sizes the KV cache."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import vllm.v1.worker.cpu.shm  # noqa: F401 - replaces torch.cuda streams and events; must come first

# isort: split
import psutil
import torch
from vllm.config import CacheConfig, set_current_vllm_config
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config
from vllm.v1.worker.gpu_worker import Worker, init_worker_distributed_environment
from vllm.v1.worker.worker_base import CompilationTimes

from cpu_backend import host, info, ops, speculation
from cpu_backend.errors import ConfigError
from cpu_backend.host import source, tower_attention
from cpu_backend.layers import linear, norm
from cpu_backend.platform import WEIGHTS_ARE_PACKED, local_layout
from cpu_backend.runtime import memory, threads
from cpu_backend.runtime.machines import Heartbeat
from cpu_backend.runtime.pages import LazyZeros, give_back
from cpu_backend.runtime.plan import Machine
from cpu_backend.runtime.sysfs import format_cpu_list
from cpu_backend.worker.media_memory import media_bytes
from cpu_backend.worker.model_runner import CPUModelRunner

logger = init_logger("vllm.cpu_backend")


class CPUWorker(Worker):
    """The host's worker with everything about the device replaced."""

    model_runner: CPUModelRunner
    helpers_moved = False
    heartbeat: Heartbeat | None = None

    def init_device(self) -> None:
        """Threads and memory first: what is allocated later lands where they are."""
        self.started = time.perf_counter()
        self.device = torch.device("cpu")
        self.library = ops.load()
        self.binding = self._bind()
        host.prepare_model()
        os.environ["VLLM_DIST_IDENT"] = _group_identity(self.distributed_init_method)
        init_worker_distributed_environment(
            self.vllm_config,
            self.rank,
            self.distributed_init_method,
            self.local_rank,
            current_platform.dist_backend,
        )
        set_random_seed(self.model_config.seed)
        self.model_runner = CPUModelRunner(self.vllm_config, self.device)

    def _bind(self) -> info.Binding:
        """Bind this rank's threads and memory, or go on unbound where the system forbids it."""
        machine, layout = Machine.read(), local_layout(self.vllm_config)
        self.machine = machine
        plans = threads.claim(machine, layout.ranks, self.vllm_config.instance_id)
        replica = self.parallel_config.data_parallel_rank_local or 0
        self.slot = replica * self.parallel_config.local_world_size + self.local_rank
        self.plan = plan = plans[self.slot]
        # Refused once, refused for every thread: apply() has warned.
        if threads.apply(plan) and plan.cpus:
            ops.bind_threads(plan.cpus)
        else:
            ops.set_num_threads(plan.num_threads)
        outcome = ""
        if plan.memory_nodes:
            outcome = ops.bind_memory(plan.memory_nodes)
            if outcome != "bind":
                nodes = format_cpu_list(plan.memory_nodes)
                logger.warning("Memory is not bound to NUMA node %s: %s.", nodes, outcome)
        return info.binding_of(machine, plan, outcome)

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """Load, and see to modules that are not the host's layers, which see to themselves."""
        tower_attention.take_sdpa()
        super().load_model(load_dummy_weights=load_dummy_weights)
        model = self.model_runner.get_model()
        linear.pack_plain(model)
        norm.take_layer_norms(model)

    def determine_available_memory(self) -> int:
        """Bytes of KV cache: as asked, or what cgroup and NUMA node leave beside the weights."""
        ranks = local_layout(self.vllm_config).ranks
        status = memory.read_memory_status(
            self.plan.memory_nodes,
            local_ranks=ranks,
            node_ranks=self.plan.node_ranks,
        )
        runner = self.model_runner
        media = media_bytes(self.vllm_config, runner.mm_budget, runner.get_model(), ranks)
        beside = min(media.total, status.available // 2)
        if media.total > beside:
            logger.warning("cpu_backend: %s: more than is left, it may be killed.", media)
        elif media.total:
            logger.info("cpu_backend: %s.", media)
        budget = memory.plan_kv_bytes(
            self.cache_config.kv_cache_memory_bytes,
            status,
            self._chosen_utilization(),
            used_bytes=psutil.Process().memory_info().rss,
            useful_bytes=self._useful_kv_bytes(),
            step_bytes=self._step_bytes() + beside,
        )
        self.kv_explanation = budget.explanation
        return budget.bytes

    def _chosen_utilization(self) -> float | None:
        """--gpu-memory-utilization, the share of the memory that the server may take; None by
        default, which the host does not tell from the same number given."""
        chosen = self.cache_config.gpu_memory_utilization
        return None if chosen == CacheConfig.gpu_memory_utilization else chosen

    def _useful_kv_bytes(self) -> int:
        """What max_num_seqs requests of full length would fill; more than that is never used."""
        with set_current_vllm_config(self.vllm_config):
            specs = self.model_runner.get_kv_cache_spec().values()
        per_request = sum(spec.max_memory_usage_bytes(self.vllm_config) for spec in specs)
        return per_request * self.scheduler_config.max_num_seqs

    def _step_bytes(self) -> int:
        model = self.model_config
        hidden = model.get_hidden_size()
        wide = getattr(model.hf_text_config, "intermediate_size", None) or 4 * hidden
        widest = max(wide) if isinstance(wide, (list, tuple)) else wide
        tokens = self.scheduler_config.max_num_batched_tokens
        part = widest // self.parallel_config.tensor_parallel_size
        return memory.largest_step_bytes(tokens, hidden, part, model.dtype.itemsize)

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Allocate the cache and say how it was sized; encoders and some classifiers have none."""
        super().initialize_from_config(kv_cache_config)
        if not kv_cache_config.kv_cache_groups:
            return
        max_len = self.model_config.max_model_len
        groups = len(kv_cache_config.kv_cache_groups)
        # Pages of recurrent layers are not of tokens; groups share the pages.
        if self.model_config.has_inner_state or groups > 1:
            requests = get_max_concurrency_for_kv_cache_config(self.vllm_config, kv_cache_config)
            tokens = int(requests * max_len)
        else:
            tokens = kv_cache_config.num_blocks * self.cache_config.block_size
            requests = tokens / max_len
        logger.info(
            "cpu_backend: KV cache holds %s tokens, %.1f requests of %s tokens: %s",
            f"{tokens:,}",
            requests,
            f"{max_len:,}",
            self.kv_explanation,
        )

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """A short warm-up, then the banner."""
        self.model_runner.warming_up_model()
        warm_seconds = self.model_runner.warm_up()
        if self.parallel_config.nnodes_within_dp > 1:
            store = torch.distributed.distributed_c10d._get_default_store()
            self.heartbeat = Heartbeat(
                store, self.rank, self.parallel_config.world_size, _end_without_the_others
            )
        # Hosts before 0.32 let all data-parallel engines sample alike.
        index = [self.parallel_config.data_parallel_index] * (source.host().release >= (0, 32))
        set_random_seed(self.model_config.seed, *index)
        if self.slot == 0:
            for line in info.banner(self.library, str(self.model_config.dtype)):
                logger.info("cpu_backend: %s", line)
            if self.speculative_config is not None:
                logger.info("cpu_backend: %s", speculation.describe(self.speculative_config))
        logger.info("cpu_backend: %s", self.binding)
        logger.info(
            "cpu_backend: ready %.1f s after the worker started (loading and packing %.1f s, "
            "warm-up %.1f s)",
            time.perf_counter() - self.started,
            self.model_runner.load_seconds,
            warm_seconds,
        )
        compilation = self.vllm_config.compilation_config
        return CompilationTimes(
            language_model=compilation.compilation_time,
            encoder=compilation.encoder_compilation_time,
        )

    def execute_model(self, scheduler_output: Any) -> Any:
        """One step; an error in it also ends the waits of the ranks that count on this one."""
        if self.plan.cpus and not self.helpers_moved:
            # By now all threads of the process exist; those that the main thread has started since
            # it was bound would share its CPU.
            threads.step_aside(self.machine, inherited_from=self.plan.cpus[0])
            self.helpers_moved = True
        try:
            return super().execute_model(scheduler_output)
        except Exception:
            ops.abandon_groups()
            raise

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager[Any]:
        """The host's seam for allocations of one kind; only the KV cache is special here."""
        return LazyZeros() if tag == "kv_cache" else nullcontext()

    def shutdown(self) -> None:
        """Stop listening for other machines, whose end is expected from now on."""
        if self.heartbeat is not None:
            self.heartbeat.stop()
        super().shutdown()

    def sleep(self, level: int = 1) -> None:
        """Give the KV cache's pages back; the host has forgotten what they hold.

        Weights stay at every level: they are where the host would move them to.
        """
        del level
        self.discard(("kv_cache",))

    def discard(self, tags: tuple[str, ...]) -> None:
        """The same for a server that is paused; the host has no other tag."""
        del tags
        caches = {
            cache.untyped_storage().data_ptr(): cache for cache in self.model_runner.kv_caches
        }
        freed = sum(give_back(cache) for cache in caches.values())
        logger.info(
            "cpu_backend: asleep: up to %.2f GiB of KV cache given back, the weights stay.",
            freed / memory.GIB,
        )

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Nothing to do: pages come when they are used."""
        del tags

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        """Parameters are empty once their weights are packed: what the host would read of them or
        write to them is not what the model multiplies by."""
        raise ConfigError(WEIGHTS_ARE_PACKED)

    reload_weights = _refuse
    reset_weights = _refuse
    compute_weight_checksums = _refuse
    save_sharded_state = _refuse
    save_tensorized_model = _refuse


def _end_without_the_others(reason: str) -> None:
    """End this rank's process; the host then ends what of the server runs on this machine."""
    logger.error("cpu_backend: this server ends, because %s.", reason)
    os._exit(1)


def _group_identity(init_method: str) -> str:
    """The same text on all ranks that share memory, and on no others.

    Ranks on several machines may meet at one address; the host takes its shared-memory collectives
    only where all ranks have the same text, and its network ones otherwise.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    namespace = Path("/proc/self/ns/net")
    parts = [init_method.rsplit("/", 1)[-1].split(":")[-1]]
    if boot.exists() and namespace.exists():
        parts += [boot.read_text()[:8], str(namespace.stat().st_ino)]
    return "-".join(parts)
