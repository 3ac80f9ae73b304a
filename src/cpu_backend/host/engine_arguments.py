"""Engine arguments: ``--device`` and ``device=``, GGUF files, and mistakes in one sentence.

What: ``EngineArgs`` and its command line take a device; its model may be a GGUF file; model and
    settings are looked at before the engine starts.
Why: the host dropped --device in 2025 and GGUF files in 2026, and answers mistakes with tracebacks.
Since: 0.32
Until: both come back; the sentences are manners, not mended defects.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from cpu_backend.host.on_load import when_loaded
from cpu_backend.host.seam import change, replace
from cpu_backend.serving import preflight, sentences, settings

MODULE = "vllm.engine.arg_utils"
CLASSES = ("EngineArgs", "AsyncEngineArgs")
DEVICES = ("auto", "cpu")


def add_device(parser: Any) -> None:
    """``--device {auto,cpu}``, once per parser; it only confirms what this platform computes on."""
    if "--device" not in parser._option_string_actions:
        parser.add_argument(
            "--device",
            choices=DEVICES,
            default="auto",
            help="Device to compute on. cpu_backend provides the CPU.",
        )


@change(
    "vllm.envs",  # loaded before any platform, so this runs at once
    "environment_variables",
)
def prepare(_: Any) -> None:
    """Change the classes, or have them changed as soon as they are made.

    The platform is often resolved in the middle of importing the very module to change.  Then its
    classes do not exist yet, but its ``dataclass`` decorator does, which will see them.
    """
    module: Any = sys.modules.get(MODULE)
    if module is None or hasattr(module, CLASSES[-1]):
        when_loaded(MODULE, _change_both)
        return
    original = module.dataclass

    def dataclass(cls: type | None = None, /, **options: Any) -> Any:
        made = original(cls, **options)
        return _change(made) if isinstance(made, type) else made

    module.dataclass = dataclass


def _change_both(module: Any) -> None:
    for name in CLASSES:
        _change(getattr(module, name))


def _change(cls: Any) -> Any:
    if cls.__name__ in CLASSES and "_takes_device" not in vars(cls):
        cls._takes_device = True
        replace(cls, "__init__", _without_device)
        if cls.__name__ == CLASSES[0]:
            replace(cls, "add_cli_args", _with_device)
            replace(cls, "create_engine_config", _after_a_look)
    return cls


def _with_device(add_cli_args: Callable[..., Any]) -> Callable[..., Any]:
    def add(parser: Any, *args: Any, **kwargs: Any) -> Any:
        parser = add_cli_args(parser, *args, **kwargs)
        add_device(parser)
        return parser

    return add


def _without_device(init: Callable[..., None]) -> Callable[..., None]:
    from cpu_backend.gguf import folder

    def __init__(self: Any, *args: Any, device: str = "auto", **kwargs: Any) -> None:  # noqa: N807
        if str(device) not in DEVICES:
            raise ValueError(f"device={device!r} is not available here: choose 'cpu' or 'auto'.")
        with sentences.told():
            kwargs = folder.prefer_folder(kwargs)
            for kind in ("model", "tokenizer"):
                revision = kwargs.get("revision" if kind == "model" else "tokenizer_revision")
                preflight.look_for(kind, kwargs.get(kind), revision)
            init(self, *args, **kwargs)

    return __init__


def _after_a_look(create_engine_config: Callable[..., Any]) -> Callable[..., Any]:
    """What is wrong with model and settings, found here or by the host, in one sentence."""

    from vllm.envs import environment_variables

    from cpu_backend.gguf import folder

    def create(self: Any, *args: Any, **kwargs: Any) -> Any:
        # With VLLM_TARGET_DEVICE=cpu the first arguments are made before the class is changed.
        fields = [*("model", "tokenizer", "served_model_name", "load_format", "revision")]
        fields += ["model_loader_extra_config", "speculative_config"]
        for name, value in folder.prefer_folder({n: getattr(self, n) for n in fields}).items():
            setattr(self, name, value)
        preflight.look(self, environment_variables)
        settings.look(self)
        with sentences.told(*sentences.usual_kinds(), KeyError):
            return create_engine_config(self, *args, **kwargs)

    return create
