"""What the backend says that it was compared on is what the zoo compares."""

from __future__ import annotations

from cpu_backend.architectures import COMPARED, is_compared
from tests.zoo.kinds import KINDS


def test_the_list_is_the_zoos() -> None:
    specs = [spec for kind in KINDS.values() for spec in kind.SPECS]
    right = [spec for spec in specs if not spec.refused and not spec.host]
    assert {spec.name: getattr(spec, "media", set()) for spec in right} == COMPARED


def test_other_names_of_a_class_count() -> None:
    assert is_compared("ExaoneMoEForCausalLM")  # the class of ExaoneMoeForCausalLM
    assert not is_compared("TransformersForCausalLM")
