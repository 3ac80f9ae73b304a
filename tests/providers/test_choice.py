"""The provider that a user names is the one that computes, or a sentence says why not."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch

from cpu_backend import envs, ops
from cpu_backend.errors import ConfigError
from cpu_backend.host.bases import FusedMoEMethodBase, MoEActivation
from cpu_backend.layers.experts import UnquantizedExpertsMethod
from cpu_backend.layers.quantization.int8 import Int8ExpertsMethod
from cpu_backend.providers import choice, measured
from cpu_backend.providers.choice import Choice
from cpu_backend.providers.interface import Needs, Provider, Unsupported


@pytest.fixture(autouse=True)
def library() -> None:
    ops.load()


@pytest.fixture
def linear() -> Choice:
    return Choice(envs.LINEAR, "linear")


@pytest.fixture(autouse=True)
def nothing_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test has had made is not known to the next."""
    for one in (choice.linear, choice.experts):
        monkeypatch.setattr(one, "_rehearsed", set())


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Providers named "broken", whose import fails, and "absent", whose package is not there."""
    monkeypatch.setitem(choice.KNOWN, "broken", ("tests.providers.broken", None))
    monkeypatch.setitem(choice.KNOWN, "absent", ("nowhere", Needs("no-such-package")))
    yield
    choice.load.cache_clear()


def make(one: Choice) -> object:
    return one.make("torch.float32", make_small)


def make_small(provider: Provider) -> object:
    return provider.linear(torch.ones(4, 8))


def refuse(*_: object) -> None:
    raise Unsupported("does not multiply codes")


def test_native_is_the_default(linear: Choice) -> None:
    linear.check(None)
    assert isinstance(make(linear), ops.PackedLinear)
    assert linear.describe() == "native"
    assert all(provider.replayable for provider in linear.used())


def test_an_unknown_name_is_refused(linear: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPU_BACKEND_LINEAR", "onednn")
    with pytest.raises(ConfigError, match=r"CPU_BACKEND_LINEAR=onednn .*choose native, torch"):
        linear.check(None)


@pytest.mark.parametrize(
    ("installed", "torch_version", "says"),
    [
        (None, "2.13.0", r"ipex cannot be used: .* is not installed: .* torch 2\.8 only"),
        ("2.8.0", "2.13.0", r"2\.8\.0 is made for torch 2\.8 and this is torch 2\.13\.0: "),
        ("2.8.0", "2.8.0+cpu", ""),
    ],
)
def test_ipex_is_judged_without_importing_it(
    installed: str | None,
    torch_version: str,
    says: str,
    linear: Choice,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(torch, "__version__", torch_version)
    monkeypatch.setenv("CPU_BACKEND_LINEAR", "ipex")
    if says:
        with pytest.raises(ConfigError, match=says):
            linear.check(None)
    else:
        linear.check(None)


def test_zentorch_of_another_release_is_refused(
    linear: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: "2.12.0.2")
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    monkeypatch.setenv("CPU_BACKEND_LINEAR", "zentorch")
    with pytest.raises(ConfigError, match=r"made for torch 2\.12 .* 'zentorch==2\.13\.\*'"):
        linear.check(None)


@pytest.mark.usefixtures("broken")
def test_an_import_that_fails_is_told(linear: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPU_BACKEND_LINEAR", "broken")
    linear.check(None)
    with pytest.raises(ConfigError, match=r"importing it failed \(no such instruction\)"):
        linear.rehearse("small", make_small)


@pytest.mark.parametrize("name", ["native", "torch"])
def test_a_dtype_that_is_lacking_is_told_before_weights_are_read(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPU_BACKEND_LINEAR", name)
    choice.prepare(torch.bfloat16)
    monkeypatch.setattr(type(choice.load("torch")), "linear", refuse)
    if name == "torch":
        with pytest.raises(ConfigError, match=r"for this model: torch does not multiply codes\. "):
            choice.prepare(torch.float16)


def test_experts_that_are_lacking_are_told_before_weights_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Made(Exception):  # noqa: N818 (what the host would do next)
        pass

    class Host(FusedMoEMethodBase):  # type: ignore[misc]
        def create_weights(self, *_: object) -> None:
            raise Made

    class Whole(UnquantizedExpertsMethod, Host):  # type: ignore[misc]
        def __init__(self) -> None:
            self.moe = SimpleNamespace(activation=MoEActivation.SILU)

    class Quantized(Int8ExpertsMethod, Host):  # type: ignore[misc]
        def __init__(self) -> None:
            self.moe = SimpleNamespace(activation=MoEActivation.SILU)

    sizes = (torch.nn.Module(), 4, 64, 32, torch.bfloat16)
    for method in (Whole(), Quantized()):
        with pytest.raises(Made):
            method.create_weights(*sizes)
    monkeypatch.setenv("CPU_BACKEND_EXPERTS", "torch")
    with pytest.raises(Made):
        Whole().create_weights(*sizes)
    with pytest.raises(ConfigError, match="torch does not have quantized experts"):
        Quantized().create_weights(*sizes)
    monkeypatch.setattr(type(choice.load("torch")), "experts", refuse)
    with pytest.raises(ConfigError, match="torch does not multiply codes"):
        Whole().create_weights(torch.nn.Module(), 4, 64, 48, torch.bfloat16)


def test_what_a_named_provider_lacks_ends_the_start(
    linear: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPU_BACKEND_LINEAR", "torch")
    with pytest.raises(ConfigError, match=r"for this model: torch does not multiply codes\. "):
        linear.make("int8", refuse)
    with pytest.raises(ConfigError, match="does not go with --quantization cpu_int4"):
        linear.check("cpu_int4")


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("best", ["broken", "absent"])
def test_auto_falls_back_and_counts(
    best: str, linear: Choice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CPU_BACKEND_LINEAR", "auto")
    monkeypatch.setattr(measured, "best", lambda kind, dtype: best)
    linear.check(None)
    linear.rehearse("small", make_small)
    for _ in range(3):
        assert isinstance(make(linear), ops.PackedLinear)
    assert linear.describe() == "auto (3 native)"
    assert caplog.text.count("native instead") == 1


def test_auto_takes_what_was_measured(linear: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPU_BACKEND_LINEAR", "auto")
    monkeypatch.setattr(
        measured,
        "_rows",
        lambda: {(ops.load().target, "linear", "float32"): "torch"},
    )
    assert not isinstance(make(linear), ops.PackedLinear)
    assert isinstance(
        linear.make("torch.bfloat16", lambda p: p.linear(torch.ones(4, 8).bfloat16())),
        ops.PackedLinear,
    )
    assert linear.describe() == "auto (1 torch, 1 native)"
    assert not all(provider.replayable for provider in linear.used())


def test_every_row_of_the_table_names_a_provider() -> None:
    assert set(measured._rows().values()) <= set(choice.KNOWN)


def test_variables_of_the_host_are_answered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VLLM_CPU_SGL_KERNEL", "1")
    caplog.set_level("INFO")
    choice.check(None)
    choice.check(None)
    assert caplog.text.count("VLLM_CPU_SGL_KERNEL=1: not needed: ") == 1
