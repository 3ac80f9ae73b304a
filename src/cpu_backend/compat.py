"""The ledger of patches on the host: what, why, and when each may go.

| patch                          | why                                       | until             |
|--------------------------------|-------------------------------------------|-------------------|
| prepare_process: V1 runner     | the V2 runner is written in Triton        | V2 runs on a CPU  |
| prepare_process: start method  | the host spawns the engine for CUDA       | a platform hook   |
| prepare_process: CUDA variable | an empty CUDA_VISIBLE_DEVICES makes the   | the host asks the |
|                                | host believe Triton works                 | driver instead    |
| accept_fractional_space        | the host parses the KV space as an int    | it parses a float |
| accept_device_argument         | the host dropped --device in 2025         | it comes back     |
| inspect_models_here            | the host inspects a model's class in      | a CUDA context no |
|                                | another Python, which imports what lies   | longer worries it |
|                                | in the current folder, and everything else|                   |
|                                | once more                                 |                   |
| serve_gguf                     | the host dropped GGUF files in 2026       | it reads them     |
| *_in_a_sentence, engine_start  | the host answers mistakes with tracebacks | never: manners,   |
|                                | (serving/: arguments, files, addresses,   | not a defect      |
|                                | engines that do not start; packages)      |                   |
| engine_end                     | the host exits with 0 when its engine was | it fails with it  |
|                                | killed, and logs its death at every stop  | and logs no stop  |
| heartbeat                      | /health calls an engine that hangs well   | it asks it        |
| requests                       | the host answers odd requests with 500,   | it answers 400,   |
|                                | and compiles all constraints by the       | compiles each by  |
|                                | library of the first                      | its own library   |
| replace_in_tree_platform       | VLLM_TARGET_DEVICE=cpu skips all plugins  | it no longer does |
| end_with_parent                | a killed server leaves its engines behind | they watch it     |
| give_engine_time_to_stop       | a stopped server kills its engine at once | it waits for it   |
|                                | and streams then wait for it for ever     |                   |
| leave_binding_to_the_worker    | the host binds ranks by OpenMP variables, | a platform hook   |
|                                | one whole NUMA node to each or no start   |                   |
| step_aside_when_ready          | HTTP and tokenizers run among the compute | a platform hook   |
|                                | threads                                   |                   |
| unlink_mapped_queues           | a killed server leaves its queues in      | it unlinks them   |
|                                | /dev/shm                                  |                   |
| keep_thread_count              | the host sets one torch thread per worker | a platform hook   |
| pack_linear_weights            | the host picks linear kernels by ISA name | a platform hook   |
| pack_experts                   | the same for mixtures of experts; its CPU | a platform hook;  |
|                                | router drops the correction bias unless   | its router heeds  |
|                                | experts are in groups, and sigmoid scores | them, its loader  |
|                                | do not count; its loader drops a bias     | reads them        |
|                                | that is among the experts                 |                   |
| models                         | the host's Gemma 3n of text alone has no  | it embeds per     |
|                                | embeddings per layer; EXAONE 4.5 leaves   | layer; it takes   |
|                                | the mean on its pixels; experts behind    | it off; it        |
|                                | transformers keep a tensor of the step    | forgets it        |
| engine_calls                   | a result that the host cannot send, and a | it looks before   |
|                                | prompt longer than a step, stop everybody |                   |
| whole_weights                  | the host takes of a weight what fits      | it compares       |
| map_parameters                 | parameters freed after packing stay in    | a platform hook   |
|                                | the process's heap                        |                   |
| choose_top_tokens_without_sort | the host sorts the vocabulary wherever    | a platform hook   |
|                                | its own sampler filters (worker/sampler)  |                   |
| keep_whole                     | the host cuts images into chunks whose    | it keeps them     |
|                                | tokens see each other                     | whole             |
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from cpu_backend import envs
from cpu_backend.attention import whole_spans
from cpu_backend.layers import models
from cpu_backend.on_load import when_loaded
from cpu_backend.serving import (
    engine_end,
    engine_start,
    heartbeat,
    packages,
    preflight,
    requests,
    sentences,
)


def prepare_process() -> None:
    """Settings that must stand before the host imports its Triton layer."""
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
    # A forked engine process shares what the server has imported; a spawned one imports it all
    # again, which is half of the time to the first token.  The command line's own default is spawn,
    # for the sake of CUDA.  Nothing here starts threads before the fork (see platform.py).
    os.environ.setdefault(envs.START_METHOD.name, envs.START_METHOD.default)
    # What the server has imported outlives the engine, which collects garbage several times while
    # it starts: without this each time visits, and so copies, all that was shared.
    os.register_at_fork(after_in_child=gc.freeze)
    # The server's event loop hears of signals by a file that a forked engine would write to, too:
    # the end of a rank would look to the server as if it had been asked to stop.
    os.register_at_fork(after_in_child=functools.partial(signal.set_wakeup_fd, -1))
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        del os.environ["CUDA_VISIBLE_DEVICES"]
    accept_fractional_space()
    accept_device_argument()
    sentences.print_without_traceback()
    for name, patch in PATCHES:
        when_loaded(name, patch)


def accept_fractional_space() -> None:
    """Keep the host from reading ``VLLM_CPU_KVCACHE_SPACE``; the platform does, with fractions."""
    from vllm import envs as host_envs

    host_envs.environment_variables["VLLM_CPU_KVCACHE_SPACE"] = lambda: 0


# ---- --device and device= ------------------------------------------------------------------------

DEVICES = ("auto", "cpu")


def add_device_argument(parser: Any) -> None:
    """``--device {auto,cpu}``, once per parser; it only confirms what this platform computes on."""
    if "--device" not in parser._option_string_actions:
        parser.add_argument(
            "--device",
            choices=DEVICES,
            default="auto",
            help="Device to compute on. cpu_backend provides the CPU.",
        )


def accept_device_argument() -> None:
    """Let ``EngineArgs(device="cpu")`` (so ``LLM(device="cpu")``) and its parsers take a device.

    The platform is often resolved in the middle of importing the very module to patch.  Then its
    classes do not exist yet, but its ``dataclass`` decorator does, which will see them.
    """
    name = "vllm.engine.arg_utils"
    module: Any = sys.modules.get(name)
    if module is None or hasattr(module, "AsyncEngineArgs"):
        when_loaded(name, _patch_engine_args)
    elif not hasattr(module.dataclass, "_cpu_backend"):
        original = module.dataclass

        def dataclass(cls: type | None = None, /, **options: Any) -> Any:
            made = original(cls, **options)
            return _patch_class(made) if isinstance(made, type) else made

        dataclass._cpu_backend = True  # type: ignore[attr-defined]
        module.dataclass = dataclass


def _patch_engine_args(module: Any) -> None:
    for cls in (module.EngineArgs, module.AsyncEngineArgs):
        _patch_class(cls)


def _patch_class(cls: Any) -> Any:
    if cls.__name__ not in ("EngineArgs", "AsyncEngineArgs") or "_takes_device" in vars(cls):
        return cls
    cls._takes_device = True
    cls.__init__ = _without_device(cls.__init__)
    if cls.__name__ == "EngineArgs":
        cls.add_cli_args = staticmethod(_with_device_argument(cls.add_cli_args))
        cls.create_engine_config = _after_a_look(cls.create_engine_config)
    return cls


def _with_device_argument(add_cli_args: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(add_cli_args)
    def wrapper(parser: Any, *args: Any, **kwargs: Any) -> Any:
        parser = add_cli_args(parser, *args, **kwargs)
        add_device_argument(parser)
        return parser

    return wrapper


def _without_device(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def wrapper(self: Any, *args: Any, device: str = "auto", **kwargs: Any) -> None:
        if str(device) not in DEVICES:
            raise ValueError(f"device={device!r} is not available here: choose 'cpu' or 'auto'.")
        for kind in ("model", "tokenizer"):
            revision = kwargs.get("revision" if kind == "model" else "tokenizer_revision")
            preflight.look_for(kind, kwargs.get(kind), revision)
        with sentences.told():
            init(self, *args, **serve_gguf(kwargs))

    return wrapper


def _after_a_look(create_engine_config: Callable[..., Any]) -> Callable[..., Any]:
    """What is wrong with model and settings, found here or by the host, in one sentence."""

    @functools.wraps(create_engine_config)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        preflight.look(self)
        with sentences.told(*sentences.usual_kinds(), KeyError):
            return create_engine_config(self, *args, **kwargs)

    return wrapper


def serve_gguf(arguments: dict[str, Any]) -> dict[str, Any]:
    """Engine arguments with a folder that the host can read in place of a GGUF file."""
    from cpu_backend.gguf import folder

    return folder.prefer_folder(arguments)


def inspect_models_here(module: Any) -> None:
    """Import a model's class in this process, which has no CUDA context to keep out of a fork.

    ``python -m`` puts the current folder before everything installed; what the engine will run is
    what this process would import.  The engine's process then has the class from the fork.
    """
    import torch

    def run(inspect: Callable[[], Any]) -> Any:
        torch.set_num_threads(1)  # nothing that a module computes may start threads before the fork
        return inspect()

    module._run_in_subprocess = run
    for name, method in (("inspect", "inspect_model_cls"), ("load", "load_model_cls")):
        name = f"_try_{name}_model_cls"  # what was inspected may be known of an earlier start
        setattr(module, name, packages.in_classes(getattr(module, name), method))


# ---- one sentence --------------------------------------------------------------------------------


def check_arguments_in_a_sentence(module: Any) -> None:
    sentences.tell(module, "validate_parsed_serve_args", *sentences.ARGUMENTS)


def take_address_in_a_sentence(module: Any) -> None:
    """The server's command line and address, which it takes before the model loads."""
    create_server_socket = module.create_server_socket

    @functools.wraps(create_server_socket)
    def create(addr: tuple[str, int], *, reuse_port: bool) -> Any:
        with preflight.address(*addr):
            return create_server_socket(addr, reuse_port=reuse_port)

    module.create_server_socket = create
    sentences.tell(module, "setup_server", *sentences.ARGUMENTS)


def load_tokenizer_in_a_sentence(module: Any) -> None:
    """A tokenizer fails with whatever its library raises."""
    original = module.CachedHfTokenizer.from_pretrained

    def from_pretrained(path: Any, *args: Any, **kwargs: Any) -> Any:
        before = f"The tokenizer of '{path}' cannot be loaded ("
        after = "): download it again, or name another by --tokenizer."
        with sentences.told(Exception, around=(before, after)):
            return original(path, *args, **kwargs)

    module.CachedHfTokenizer.from_pretrained = staticmethod(from_pretrained)


# ---- platform and worker -------------------------------------------------------------------------


def replace_in_tree_platform() -> None:
    """Turn the host's own CPU platform object, which every module shares, into this one."""
    from vllm.platforms import current_platform
    from vllm.platforms.cpu import CpuPlatform

    if type(current_platform) is CpuPlatform:
        from cpu_backend.platform import CpuBackendPlatform

        prepare_process()
        current_platform.__class__ = CpuBackendPlatform
        current_platform.import_kernels()


ENGINE_STOP_SECONDS = 5.0


def give_engine_time_to_stop() -> None:
    """Let the engine process answer its open requests between SIGTERM and SIGKILL.

    The host kills it in the same instant; a stream whose end was not yet sent keeps the server
    from exiting until the client leaves.
    """
    from vllm.v1.engine import utils

    original = utils.get_engine_process_shutdown_timeout
    if getattr(original, "__module__", "") == __name__:
        return

    def at_least(*args: Any, **kwargs: Any) -> float:
        return max(original(*args, **kwargs) or 0.0, ENGINE_STOP_SECONDS)

    utils.get_engine_process_shutdown_timeout = at_least


class _NoOpenMPVariables:
    """In the place of the host's ``OMPProcessManager``: workers start as they are."""

    def __init__(self, config: Any) -> None:
        del config

    def configure_omp_envs(self, rank: int, local_rank: int) -> contextlib.nullcontext[None]:
        del rank, local_rank
        return contextlib.nullcontext()


def leave_binding_to_the_worker(module: Any) -> None:
    """Each worker binds itself (:mod:`cpu_backend.worker.worker`), for any layout of ranks."""
    module.OMPProcessManager = _NoOpenMPVariables
    # The process that starts the workers only schedules.
    module.MultiprocExecutor._post_init_executor = lambda self: _step_aside()


def step_aside_when_ready(module: Any) -> None:
    """Once its engines have started, a server's process leaves the CPUs on which they compute."""
    original = module.AsyncMPClient.__init__
    if getattr(original, "__module__", "") == __name__:
        return

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        heartbeat.remember_address(self, inspect.signature(original).bind(self, *args, **kwargs))
        _step_aside()

    module.AsyncMPClient.__init__ = init


def _step_aside() -> None:
    from cpu_backend.runtime import threads
    from cpu_backend.runtime.plan import Machine

    threads.step_aside(Machine.read())


def unlink_mapped_queues(module: Any) -> None:
    """Take a message queue's shared memory out of /dev/shm as soon as all readers have mapped it.

    It lives on in the processes that use it, and ends with them, whatever ends them.
    """
    original = module.MessageQueue.wait_until_ready
    if getattr(original, "__module__", "") == __name__:
        return

    def wait_until_ready(self: Any) -> None:
        original(self)
        buffer = self.buffer
        if self._is_writer and buffer is not None and buffer.is_creator:
            buffer.shared_memory.unlink()
            buffer.is_creator = False  # or the host would unlink it again

    module.MessageQueue.wait_until_ready = wait_until_ready


WATCH_SECONDS = 1.0


def engine_ends_with_parent(module: Any) -> None:
    end_with_parent(module.EngineCoreProc, "run_engine_core")


def coordinator_ends_with_parent(module: Any) -> None:
    end_with_parent(module.DPCoordinatorProc, "run_coordinator")


def end_with_parent(owner: Any, name: str) -> None:
    """The process that runs ``owner.name`` ends when the one that started it has ended.

    The host's signal handlers cover every orderly end; this is for a server that was killed.
    """
    original = getattr(owner, name)
    if getattr(original, "_watches_parent", False):
        return

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()
        return original(*args, **kwargs)

    run._watches_parent = True  # type: ignore[attr-defined]
    setattr(owner, name, staticmethod(run))


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ENGINE_STOP_SECONDS)
    os._exit(1)  # whatever it still waits for will not come


def keep_thread_count() -> None:
    """Make ``torch.set_num_threads`` a no-op: the pool is bound and sized by the worker."""
    import torch
    from vllm.v1.worker import gpu_worker

    def keep(threads: int) -> None:
        del threads

    torch.set_num_threads = keep
    gpu_worker.set_torch_threads_for_runtime = lambda: None


def pack_linear_weights() -> None:
    """Have the host's linear layers pack their weights with this project's op."""
    from vllm.model_executor.layers import utils

    from cpu_backend.layers import linear

    utils.dispatch_cpu_unquantized_gemm = linear.pack_unquantized


def pack_experts() -> None:
    """Have the host's mixtures of experts, quantized ones too, run on this project's op."""
    from vllm.model_executor.layers.fused_moe.oracle import (
        fp8,
        int8,
        int_wna16,
        mxfp4,
        mxfp8,
        unquantized,
        w4a8_int8,
    )
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
    from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter

    from cpu_backend.layers import experts, quantization

    mxfp8._SUPPORTED_BACKENDS = (fp8.Fp8MoeBackend.CPU,)
    for oracle in (fp8, int8, int_wna16, mxfp4, mxfp8, unquantized, w4a8_int8):
        oracle.backend_to_kernel_cls = experts.cpu_experts_first(oracle.backend_to_kernel_cls)
    RoutedExperts._get_quant_method = experts.instead_of_the_hosts(
        RoutedExperts._get_quant_method, quantization.experts_methods()
    )
    RoutedExperts.load_weights = experts.and_the_correction_bias(RoutedExperts.load_weights)
    CPURouter.__init__ = experts.every_score_in_groups(CPURouter.__init__)


def map_parameters() -> None:
    """The checkpoint's parameters leave the process when packed weights have replaced them."""
    from vllm.model_executor.model_loader import base_loader

    from cpu_backend.runtime.pages import freed_at_once

    base_loader.initialize_model = freed_at_once()(base_loader.initialize_model)


def choose_top_tokens_without_sort() -> None:
    """Top-k and top-p on this project's op; the host's CPU path sorts every row of logits."""
    from vllm.v1.sample.ops import topk_topp_sampler

    from cpu_backend import ops

    topk_topp_sampler.apply_top_k_top_p = ops.keep_top


# What is done to the host's modules when they have been imported, each once.
PATCHES: tuple[tuple[str, Callable[[Any], None]], ...] = (
    ("vllm.model_executor.models.registry", inspect_models_here),
    ("vllm.v1.executor.multiproc_executor", leave_binding_to_the_worker),
    ("vllm.v1.executor.multiproc_executor", engine_start.in_rank),
    ("vllm.v1.engine.core", engine_ends_with_parent),
    ("vllm.v1.engine.core", engine_start.in_engine),
    ("vllm.v1.engine.coordinator", coordinator_ends_with_parent),
    ("vllm.v1.engine.utils", engine_start.in_server),
    ("vllm.v1.engine.utils", engine_end.watch),
    ("vllm.v1.engine.core_client", step_aside_when_ready),
    ("vllm.v1.engine.async_llm", engine_end.note_orderly_stop),
    ("vllm.v1.engine.async_llm", heartbeat.ask_before_health),
    ("vllm.distributed.device_communicators.shm_broadcast", unlink_mapped_queues),
    ("vllm.entrypoints.launchers.cli_args", check_arguments_in_a_sentence),
    ("vllm.entrypoints.launchers.launcher", take_address_in_a_sentence),
    ("vllm.entrypoints.launchers.launcher", engine_end.fail_with_engine),
    ("vllm.tokenizers.hf", load_tokenizer_in_a_sentence),
    ("vllm.multimodal.processing.context", packages.in_processors),
    ("vllm.entrypoints.serve.utils.api_utils", requests.look_at_bodies),
    ("vllm.model_executor.models.exaone4_5", models.normalize_pixels),
    ("vllm.model_executor.models.gemma3n", models.embed_per_layer),
    ("vllm.model_executor.models.transformers.moe", models.forget_chosen_experts),
    ("vllm.sampling_params", requests.look_at_constraints),
    ("vllm.v1.core.sched.scheduler", whole_spans.keep_whole),
    ("vllm.v1.structured_output", requests.compile_as_accepted),
)
