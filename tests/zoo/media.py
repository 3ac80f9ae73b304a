"""Requests with images or sounds in them: what is sent to the engine, and the same for
``transformers``."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from tests.zoo.build import Spec

RATE = 16000  # samples of a second
LETTERS = string.ascii_letters + string.digits + " .,"


@dataclass(frozen=True)
class Picture:
    """Random colours that flow into each other."""

    width: int
    height: int
    seed: int
    kind: ClassVar[str] = "image"
    given: ClassVar[str] = "images"  # the name that processors of ``transformers`` have for them

    def for_host(self) -> Any:
        return self.make()

    def make(self) -> Any:
        import numpy as np
        from PIL import Image

        colours = np.random.default_rng(self.seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
        size = (self.width, self.height)
        return Image.fromarray(colours).resize(size, Image.Resampling.BILINEAR)


@dataclass(frozen=True)
class Chunk(Picture):
    """A picture where the host takes pieces of a video too."""

    kind: ClassVar[str] = "vision_chunk"

    def for_host(self) -> Any:
        return {"type": "image", "image": self.make()}


@dataclass(frozen=True)
class Sound:
    """A tone that rises, its pitch by the seed, in some noise."""

    samples: int
    seed: int
    kind: ClassVar[str] = "audio"
    given: ClassVar[str] = "audio"

    def for_host(self) -> Any:
        return self.make(), RATE

    def make(self) -> Any:
        import numpy as np

        noise = np.random.default_rng(self.seed).standard_normal(self.samples)
        time = np.arange(self.samples) / RATE
        tone = np.sin(2 * np.pi * (200 + 150 * self.seed) * time * (1 + time))
        return (0.3 * tone + 0.05 * noise).astype(np.float32)


@dataclass(frozen=True)
class Video(Picture):
    """So many pictures, one after the other, two a second."""

    frames: int
    kind: ClassVar[str] = "video"
    given: ClassVar[str] = "videos"

    def for_host(self) -> Any:
        return self.make(), {**self.metadata, "do_sample_frames": False}

    def make(self) -> Any:
        import numpy as np

        size = (self.width, self.height)
        pictures = [Picture(*size, 100 * self.seed + frame) for frame in range(self.frames)]
        return np.stack([np.asarray(picture.make()) for picture in pictures])

    @property
    def metadata(self) -> dict[str, Any]:
        """What a reader of files says beside the frames."""
        return {
            "fps": 2.0,
            "duration": self.frames / 2,
            "total_num_frames": self.frames,
            "frames_indices": list(range(self.frames)),
            "video_backend": "opencv",
        }


Medium = Picture | Sound | Video
# Two sizes in a fixed grid or in as many patches as they fill; the last is scaled down.
PICTURES = (Picture(56, 56, 1), Picture(80, 60, 2), Picture(300, 200, 3))
VIDEOS = (Video(56, 56, 1, 8), Video(80, 60, 2, 3), Video(300, 200, 3, 4))
SOUNDS = (Sound(8000, 1), Sound(30000, 2), Sound(47999, 3))  # of at most three seconds
TORCHVISION = ("torchvision",)  # what most models need for images


@dataclass(frozen=True)
class Shown:
    """A text, media, a text; ``marks``: what stands for each medium in between; ``options``: of
    the processor on both sides, and of ``transformers``' model."""

    marks: tuple[str, ...]
    before: str
    media: tuple[Medium, ...]
    after: str
    options: tuple[tuple[str, Any], ...] = ()
    ids: ClassVar[str] = "input_ids"

    def __len__(self) -> int:
        return len(self.before) + len(self.media) + len(self.after)

    @property
    def text(self) -> str:
        return self.before + "".join(self.marks) + self.after

    def request(self) -> dict[str, Any]:
        """For the host."""
        options = {"mm_processor_kwargs": dict(self.options)} if self.options else {}
        return {"prompt": self.text, **_data(self.media), **options}

    def inputs(self, processor: Any) -> dict[str, Any]:
        """For ``transformers``' model, made by its processor."""
        given: dict[str, Any] = {}
        for medium in self.media:
            given.setdefault(medium.given, []).append(medium.make())
        if "audio" in given:
            given["sampling_rate"] = RATE
        if "videos" in given:
            given["video_metadata"] = [m.metadata for m in self.media if isinstance(m, Video)]
            given["do_sample_frames"] = False
        options = dict(self.options)
        inputs = dict(processor(text=self.text, return_tensors="pt", **given, **options))
        inputs.pop("labels", None)
        return {**inputs, **options}


def _data(media: Sequence[Medium]) -> dict[str, Any]:
    """Of a request for the host."""
    data: dict[str, list[Any]] = {}
    for medium in media:
        data.setdefault(medium.kind, []).append(medium.for_host())
    return {"multi_modal_data": data} if data else {}


@dataclass(frozen=True)
class Heard:
    """A sound for the encoder, the first tokens of its transcript for the decoder."""

    start: int  # the token that the host puts before them
    media: tuple[Sound, ...]
    tokens: tuple[int, ...]
    ids: ClassVar[str] = "decoder_input_ids"

    def __len__(self) -> int:
        return 1 + len(self.tokens)

    def request(self) -> dict[str, Any]:
        """For the host."""
        sound = {"prompt": "", "multi_modal_data": {"audio": (self.media[0].make(), RATE)}}
        return {
            "encoder_prompt": sound,
            "decoder_prompt": {"prompt_token_ids": list(self.tokens)},
        }

    def inputs(self, processor: Any) -> dict[str, Any]:
        """For ``transformers``' model, made by its processor."""
        import torch

        features = processor.feature_extractor(
            [self.media[0].make()], sampling_rate=RATE, return_tensors="pt"
        ).input_features
        return {
            "input_features": features,
            self.ids: torch.tensor([[self.start, *self.tokens]]),
        }


@dataclass(frozen=True)
class Spoken:
    """Tokens, a sound's, tokens, all of them said in numbers."""

    mark: tuple[int, ...]  # what stands for the sound
    before: tuple[int, ...]
    media: tuple[Medium, ...]
    after: tuple[int, ...]
    ids: ClassVar[str] = "input_ids"

    def __len__(self) -> int:
        return len(self.before) + len(self.after)

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.before, *self.mark, *self.after)

    def request(self) -> dict[str, Any]:
        """For the host."""
        return {"prompt_token_ids": list(self.tokens), **_data(self.media)}

    def inputs(self, processor: Any) -> dict[str, Any]:
        """For ``transformers``' model, made by its feature extractor."""
        import torch

        made = processor([sound.make() for sound in self.media], sampling_rate=RATE)
        return {**made, self.ids: torch.tensor([self.tokens])}


@dataclass(frozen=True)
class Drawn(Spoken):
    """The same with pictures, whose tokens ``mark`` has all."""

    def inputs(self, processor: Any) -> dict[str, Any]:
        """For ``transformers``' model; of the pictures, made by what it calls a processor."""
        import torch

        made = processor([picture.make() for picture in self.media]) if self.media else {}
        return {**made, self.ids: torch.tensor([self.tokens])}


Case = Shown | Heard | Spoken


def kinds(cases: Iterable[Case]) -> set[str]:
    """Of media in the requests."""
    return {medium.kind for case in cases for medium in case.media}


def with_others(case: Case) -> Case:
    """The same with other media of the same size."""
    return replace(case, media=tuple(replace(m, seed=m.seed + 7) for m in case.media))


def shown(mark: str, media: Sequence[Medium], at_once: int = 2) -> tuple[Case, ...]:
    """Six requests: one medium of each size (three), the first text with another medium of the same
    size, which only its content tells apart; two media, if so many are allowed ``at_once``; a text
    alone."""
    generator = random.Random(20)

    def text(length: int) -> str:
        return "".join(generator.choice(LETTERS) for _ in range(length))

    small, middle, large = media
    other = replace(small, seed=small.seed + 3)
    begin, end = text(5), text(8)

    def case(before: str, some: tuple[Medium, ...], after: str) -> Case:
        return Shown((mark,) * len(some), before, some, after)

    return (
        case(begin, (small,), end),
        case(text(40), (middle,), end),
        case(text(200), (large,), text(90)),
        case(begin, (other,), end),
        case(text(17), (other, middle)[:at_once], end),
        case(text(129), (), ""),
    )


def beside(mark: str, media: Sequence[Medium], picture: str = "") -> tuple[Case, ...]:
    """Three requests or four: one medium of each size, and the first of them behind a picture, if
    there is a mark of one."""
    begin, end = "What is in this?", "Answer in words."
    alone = [Shown((mark,), begin + "." * n, (medium,), end) for n, medium in enumerate(media)]
    mixed = Shown((picture, mark), begin, (PICTURES[0], media[0]), end)
    return (*alone, mixed) if picture else tuple(alone)


def heard(start: int, media: Sequence[Sound]) -> tuple[Case, ...]:
    """Six requests: as many sounds, transcripts that begin with one token and with a page's."""
    generator = random.Random(20)
    lengths = (4, 1, 140, 5, 9, 64)
    small, middle, large = media
    sounds = (small, middle, large, replace(small, seed=small.seed + 3), middle, large)
    return tuple(
        Heard(start, (sound,), tuple(generator.randrange(10, 1000) for _ in range(length)))
        for sound, length in zip(sounds, lengths, strict=True)
    )


def spoken(mark: Callable[[Sound], Sequence[int]], media: Sequence[Sound]) -> tuple[Case, ...]:
    """Six requests with a sound, as ``shown`` makes them; the fourth has the first's words; mark:
    tokens of a sound."""
    small, middle, large = media
    other = replace(small, seed=small.seed + 3)
    sounds = (small, middle, large, other, middle, large)
    return tuple(
        Spoken(tuple(mark(sound)), before, (sound,), after)
        for sound, (before, after) in zip(sounds, _words(), strict=True)
    )


def streamed(samples: int) -> tuple[Case, ...]:
    """Six requests of tokens alone, each of which, and of an answer's, hears so many samples more;
    the fourth has the first's tokens."""
    generator = random.Random(20)
    prompts = [tuple(generator.randrange(10, 1000) for _ in range(n)) for n in (13, 53, 298)]
    prompts += [prompts[0], *(prompts[2][:n] for n in (25, 130))]
    return tuple(
        Spoken((), prompt, (Sound(samples * (len(prompt) + 20), seed),), ())
        for seed, prompt in enumerate(prompts, 1)
    )


def drawn(
    mark: Callable[[Picture], Sequence[int]], pictures: Sequence[Picture]
) -> tuple[Case, ...]:
    """Six requests as ``shown`` makes them, in tokens; mark: those of a picture."""
    small, middle, large = pictures
    other = replace(small, seed=small.seed + 3)
    groups = ((small,), (middle,), (large,), (other,), (other, middle), ())
    return tuple(
        Drawn(tuple(token for one in group for token in mark(one)), before, group, after)
        for group, (before, after) in zip(groups, _words(), strict=True)
    )


def _words() -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Tokens before and after the media of six requests."""
    generator = random.Random(20)

    def text(length: int) -> tuple[int, ...]:
        return tuple(generator.randrange(10, 1000) for _ in range(length))

    begin, end = text(5), text(8)
    texts = ((begin, end), (text(40), end), (text(200), text(90)), (begin, end))
    return (*texts, (text(17), end), (text(129), text(1)))


@dataclass(frozen=True)
class MediaSpec(Spec):
    """processor: leaves the model's in a folder; cases: the requests to compare; more: those with
    other kinds of media; without: kinds that the host takes, too, and no request has.

    fixed: the host feeds its encoder a prompt at once, and keeps none of it in the prefix cache;
    chunk: tokens of a step, not less than those of an image that is computed at once;
    options: how the host has to read the checkpoint.
    """

    auto: str = ""
    processor: Callable[[Path], Any] = Path
    cases: tuple[Case, ...] = ()
    more: tuple[Case, ...] = ()
    without: tuple[str, ...] = ()
    fixed: bool = False
    chunk: int = 64
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def cached(self) -> bool:
        return super().cached and not self.fixed

    @property
    def requests(self) -> tuple[Case, ...]:
        """All of them."""
        return (*self.cases, *self.more)

    @property
    def media(self) -> set[str]:
        """The kinds that its requests have."""
        return kinds(self.requests)
