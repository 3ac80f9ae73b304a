"""A model whose class imports a package that is not installed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cpu_backend.errors import ConfigError
from cpu_backend.host import model_inspection, processor
from cpu_backend.serving import packages


class Model:
    def __init__(self, package: str) -> None:
        self.package = package

    def load_model_cls(self) -> str:
        return self.inspect_model_cls()

    def inspect_model_cls(self) -> str:
        if self.package == "present":
            return "info"
        if self.package == "broken":
            raise ValueError("something else")
        try:
            raise ModuleNotFoundError(f"No module named {self.package!r}", name=self.package)
        except ModuleNotFoundError as error:
            if self.package != "nested":
                raise
            raise ModuleNotFoundError("Could not import module 'Y'.") from error


@pytest.fixture(params=[model_inspection.inspect, model_inspection.load])
def inspect(request: pytest.FixtureRequest) -> Any:
    return request.param(lambda architecture, model: None)


def test_it_is_named_with_the_way_to_get_it(inspect: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"^Xyz needs the Python package torchvision, .*0\.2\d\.0"
    ):
        inspect("Xyz", Model("torchvision"))
    with pytest.raises(ConfigError, match=r"package abc, .*`pip install abc`"):
        inspect("Xyz", Model("abc.def"))
    with pytest.raises(ConfigError, match=r"package nested, .*`pip install nested`"):
        inspect("Xyz", Model("nested"))


def test_torchvision_is_the_one_of_the_installed_torch() -> None:
    assert packages.torchvision_for("2.13.0+cpu") == "0.28.0"
    assert packages.torchvision_for("2.14.1") == "0.29.1"


def test_other_outcomes_are_the_hosts(inspect: Any) -> None:
    assert inspect("Xyz", Model("present")) == "info"
    assert inspect("Xyz", Model("broken")) is None


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "\nXyzProcessor requires the Torchvision library but it was not found in your "
            "environment. Check out the instructions\non the page.",
            r"^XyzProcessor needs the Python package torchvision, .*0\.2\d\.0",
        ),
        (
            "\nXyz requires the torchaudio library but it was not found in your environment. ",
            r"^Xyz needs the Python package torchaudio, .*2\.11\.0 .*/whl/cpu`",
        ),
        (
            "Package `abc` is required to run Xyz processor. Install it with `pip install abc`.",
            r"^Xyz processor needs the Python package abc, .*`pip install abc`",
        ),
        ("something else", r"^The processor of 'folder' cannot be loaded \(something else\): "),
    ],
)
def test_a_processors_package_is_named(said: str, expected: str) -> None:
    def load(model_config: Any) -> Any:
        raise ImportError(said)

    with pytest.raises(ConfigError, match=expected):
        processor.load(load)(SimpleNamespace(model="folder"))


def test_so_is_one_that_is_imported_when_the_processor_is_used() -> None:
    def measure(self: Any, vllm_config: Any) -> None:
        Model("torchvision").inspect_model_cls()

    config = SimpleNamespace(model_config=SimpleNamespace(architecture="Xyz"))
    with pytest.raises(
        ConfigError, match=r"^Xyz needs the Python package torchvision, .*0\.2\d\.0"
    ):
        processor.use(measure)(None, config)
