"""What a projector of llama.cpp is as a part of a Hugging Face checkpoint.

Names of fields and tensors: llama.cpp's ``gguf-py/gguf/constants.py``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from cpu_backend.gguf.architectures.base import Architecture
from cpu_backend.gguf.architectures.tensors import Tensor
from cpu_backend.gguf.metadata import Metadata
from cpu_backend.gguf.reader import GgufFile

CHANNELS = 3
SWAPPED = re.compile("ffn_(up|down)")
OTHER = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
ALONE = "model."  # before the names of a text that is a model of its own


class Projector(Metadata, ABC):
    """A tower, over patches of pictures unless ``sense`` is "audio", and what leads from it to a
    text.

    kind: its name in files.  texts: the architectures of texts that it is for.  class_name,
    model_type: of Hugging Face, of the whole.  text_type: that of its text, if it is another than
    that of the text alone.  marks: the tokens that stand for pictures, by the names that a
    tokenizer has for them.  numbered: with which behind them config.json has their numbers.
    unused: by the name of a mark, tokens that mean nothing, the first of which is given its name
    where a text has not got it.  hears: there may be a tower of sounds, too.  needs: packages
    without which the host makes no processor.
    merge_field: says how many patches along a side are one token of the tower's channels together.
    text_weights, text_modules: what takes the place of "model." before the names of a text's
    tensors in a checkpoint, and of its modules in the host.  text_root: before other names of its
    tensors.
    """

    harmless = frozenset(
        ("has_text_encoder", "has_llava_projector", "has_audio_encoder", "has_vision_encoder")
    )
    sense = "vision"
    texts: tuple[str, ...] = ()
    kind = class_name = model_type = text_type = ""
    marks: Mapping[str, str] = {}
    numbered = "_id"
    unused: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    text_weights, text_root = "model.language_model.", ""
    text_modules = "language_model.model."
    hears = False
    merge_field = ""
    needs: tuple[str, ...] = ("torchvision",)

    def __init__(self, file: GgufFile, text: Architecture) -> None:
        super().__init__(file)
        self.text("projector_type", "")
        width, wanted = self.width, text.size("embedding_length")
        if width != wanted:
            raise file.error(f"makes hidden states of {width} channels, and its text has {wanted}")
        seen = self.sense == "vision"
        if not self.flag(f"has_{self.sense}_encoder", seen):
            raise self.refuse(f"holds no tower of {self.media}")
        if seen and not self.hears and self.flag("has_audio_encoder", False):
            raise self.refuse("holds a tower of sounds")
        if not seen and self.flag("has_vision_encoder", False):
            raise self.refuse("holds a tower of pictures")

    @classmethod
    def fits(cls, file: GgufFile, text: Architecture) -> bool:
        """Whether a file of this kind is of this class, beside such a text."""
        del file
        return text.name in cls.texts

    @property
    def width(self) -> int:
        """The channels of the hidden states that it makes."""
        return self.size(f"{self.sense}.projection_dim")

    @property
    def media(self) -> str:
        """What it is for, in words."""
        return {"vision": "pictures", "audio": "sounds"}[self.sense]

    @property
    def num_layers(self) -> int:
        """Of the tower."""
        return self.count(f"{self.sense}.block_count")

    def count(self, key: str) -> int:
        """A number of layers."""
        layers = self.size(key)
        if layers > len(self.file.tensors):  # before there is a list of that length
            raise self.file.error(f"has {layers} layers and {len(self.file.tensors)} tensors")
        return layers

    @property
    def patches(self) -> int:
        """Along the side of a picture of the size for which the tower has positions."""
        side, patch = self.size("vision.image_size"), self.size("vision.patch_size")
        if side % patch:
            raise self.file.error(f"has pictures of {side} pixels and patches of {patch}")
        return side // patch

    def tokens(self, merged: int) -> int:
        """Of a picture, if so many patches along a side are one."""
        if self.patches % merged:
            raise self.file.error(f"makes one of {merged} of {self.patches} patches along a side")
        return (self.patches // merged) ** 2

    @property
    def merged(self) -> int:
        """Patches along a side that are one token."""
        return self.size(f"vision.{self.merge_field}", 2) if self.merge_field else 1

    def sizes(self) -> dict[str, int]:
        """What the names in shapes stand for."""
        hidden = self.size("vision.embedding_length")
        return {
            "hidden": hidden,
            "merged": hidden * self.merged**2,
            "ffn": self.size("vision.feed_forward_length"),
            "patch": self.size("vision.patch_size"),
            "positions": self.patches**2,
            "text": self.width,
        }

    @abstractmethod
    def outer(self) -> dict[str, Tensor]:
        """The tensors outside of layers."""

    @abstractmethod
    def layer(self) -> dict[str, Tensor]:
        """The tensors of a layer, with names below ``prefix``."""

    @abstractmethod
    def prefix(self, number: int) -> str:
        """What the names of a layer's tensors begin with in a checkpoint."""

    def blocks(self) -> list[tuple[str, str, dict[str, Tensor]]]:
        """What the names of each layer's tensors begin with, in the file and in a checkpoint, and
        the tensors."""
        layer = self.layer()
        if self.swapped:
            layer = {SWAPPED.sub(lambda m: OTHER[m[0]], n): tensor for n, tensor in layer.items()}
        return [
            (f"{self.sense[0]}.blk.{n}.", self.prefix(n), layer) for n in range(self.num_layers)
        ]

    @property
    def swapped(self) -> bool:
        """Whether the two matrices behind attention have each other's names, as old files do."""
        down = self.file.tensors.get("v.blk.0.ffn_down.weight")
        up = self.file.tensors.get("v.blk.0.ffn_up.weight")
        if down is None or up is None or len(down.shape) != 2 or down.shape[0] == down.shape[1]:
            return False
        return down.shape[1] == self.size("vision.embedding_length")

    def whole_numbers(self, key: str) -> list[int]:
        """Those of a field that may be missing."""
        found = self.file.metadata.get(self.field(key), np.ones(0, int))
        if not isinstance(found, np.ndarray) or found.dtype.kind not in "iu":
            raise self.file.error(f"has no whole numbers in the field '{self.name}.{key}'")
        return [int(number) for number in found.tolist()]

    def shape_of(self, name: str, dimensions: int) -> tuple[int, ...]:
        """The shape of a tensor of the file, which says what no field does."""
        found = self.file.tensors.get(name)
        if found is None or len(found.shape) != dimensions:
            raise self.file.error(f"has no tensor '{name}' of {dimensions} dimensions")
        return found.shape

    def ignored(self, name: str) -> bool:
        """Whether a tensor of the file is of no use here."""
        del name
        return False

    def unused_weights(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of tensors of a checkpoint that files leave out, and nobody computes
        with."""
        return {}

    def weight_of_text(self, name: str) -> str:
        """What a tensor of the text is called where the text is a part."""
        begin, rest = name[: len(ALONE)], name[len(ALONE) :]
        return self.text_weights + rest if begin == ALONE else self.text_root + name

    def module_of_text(self, name: str) -> str:
        """What a module of the host is called where the text is alone, or "" if it is of another
        part."""
        return ALONE + name[len(self.text_modules) :] if name.startswith(self.text_modules) else ""

    @abstractmethod
    def tower_config(self) -> dict[str, Any]:
        """``vision_config`` of config.json, or ``audio_config``."""

    def more(self) -> dict[str, Any]:
        """What else config.json says."""
        return {}

    def of_text(self, config: dict[str, Any]) -> dict[str, Any]:
        """``text_config`` of config.json, of what that of the text alone says."""
        return config | ({"model_type": self.text_type} if self.text_type else {})

    def whole(self, config: dict[str, Any]) -> dict[str, Any]:
        """config.json, of what it says of a model of two parts."""
        return config

    @abstractmethod
    def processor(self) -> dict[str, Any]:
        """processor_config.json."""

    def renamed(self, ids: Mapping[str, int]) -> dict[int, str]:
        """The tokens among ``ids`` that get the names of ``marks`` which a text has not got; raises
        ConfigError where none can."""
        names: dict[int, str] = {}
        for name, token in self.marks.items():
            if token in ids or token in names.values():
                continue
            place = next((ids[each] for each in self.unused.get(name, ()) if each in ids), None)
            if place is None:
                raise self.file.error(f"needs the token '{token}', which its text has not")
            names[place] = token
        return names

    def numbers(self, ids: Mapping[str, int]) -> dict[str, int]:
        """Those of ``marks``, by their names in config.json."""
        return {f"{mark}{self.numbered}": ids[token] for mark, token in self.marks.items()}

    def config(self) -> dict[str, Any]:
        """config.json, but for its text and what this shares with the whole."""
        return {
            "architectures": [self.class_name],
            "model_type": self.model_type,
            f"{self.sense}_config": self.tower_config(),
            **self.more(),
        }

    def rgb(self, key: str) -> list[float]:
        """A number for each channel of a picture."""
        found = self.file.metadata.get(self.field(key))
        numbers = found.tolist() if isinstance(found, np.ndarray) else []
        if len(numbers) != CHANNELS or not all(isinstance(n, float) for n in numbers):
            raise self.file.error(f"has no three numbers in the field '{self.name}.{key}'")
        if not all(abs(number) < 1e3 for number in numbers):
            raise self.file.error(f"has {numbers} in the field '{self.name}.{key}'")
        return [float(str(np.float32(number))) for number in numbers]

    def normalized(self) -> dict[str, Any]:
        """How the colours of a picture become numbers."""
        std = self.rgb("vision.image_std")
        if not all(number > 0 for number in std):
            raise self.file.error(f"has {std} in the field '{self.name}.vision.image_std'")
        return {
            "do_convert_rgb": True,
            "do_normalize": True,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": self.rgb("vision.image_mean"),
            "image_std": std,
            "rescale_factor": 1 / 255,
        }


def patches_last(weight: Any) -> Any:
    """A matrix over the pixels of patches, of a convolution."""
    return weight.permute(0, 2, 3, 1).flatten(1)


def with_biases(tensors: dict[str, tuple[str, tuple[str | int, ...]]]) -> dict[str, Tensor]:
    """Names in the file, without their ends -> names in the checkpoint and shapes of matrices, and
    the biases of these."""
    return {
        f"{name}.{end}": Tensor(f"{own}.{end}", shape if end == "weight" else shape[:1])
        for name, (own, shape) in tensors.items()
        for end in ("weight", "bias")
    }
