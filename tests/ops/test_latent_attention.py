"""Multi-head latent attention against its definition: keys and values of every head, expanded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from cpu_backend import ops
from cpu_backend.attention import kv_dtypes
from cpu_backend.attention.backend import StepMetadata
from cpu_backend.attention.latent import LatentAttentionImpl
from tests.ops.accuracy import assert_accurate
from tests.reference.attention import Masking, attend

BLOCK = 32


@dataclass(frozen=True)
class Sizes:
    heads: int
    latent: int
    rotated: int
    unrotated: int
    value: int

    @property
    def scale(self) -> float:
        return float((self.unrotated + self.rotated) ** -0.5)


SIZES = [Sizes(16, 512, 64, 32, 48), Sizes(5, 48, 32, 40, 24), Sizes(3, 72, 16, 17, 33)]


class Layer:
    """Random projections and the tokens of some sequences, [seq_len, ...] each, in one cache."""

    def __init__(
        self, sizes: Sizes, seq_lens: Sequence[int], dtype: torch.dtype, seeded: torch.Generator
    ) -> None:
        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=seeded).to(dtype)

        self.sizes, self.dtype, self.seq_lens = sizes, dtype, seq_lens
        self.to_keys = random(sizes.heads, sizes.latent, sizes.unrotated) / sizes.latent**0.5
        self.to_values = random(sizes.heads, sizes.latent, sizes.value) / sizes.latent**0.5
        self.queries = [random(n, sizes.heads, sizes.unrotated + sizes.rotated) for n in seq_lens]
        self.latents = [random(n, sizes.latent) for n in seq_lens]
        self.rotated = [random(n, 1, sizes.rotated) for n in seq_lens]
        self.impl = self.make("auto")
        self.impl.set_projections(self.to_keys, self.to_values.transpose(1, 2))
        width = max(-(-n // BLOCK) for n in seq_lens)
        self.blocks = torch.randperm(len(seq_lens) * width + 1, generator=seeded).int()
        self.block_table = self.blocks[:-1].view(-1, width)
        content = self.impl.key_dim + self.impl.value_dim
        self.cache = torch.full((len(self.blocks), BLOCK, content), float("nan"), dtype=dtype)

    def make(self, kv_cache_dtype: str) -> LatentAttentionImpl:
        size = self.sizes
        return LatentAttentionImpl(
            size.heads, size.latent + size.rotated, size.scale, 1, None, None, kv_cache_dtype,
            None, "decoder", None, kv_lora_rank=size.latent, qk_nope_head_dim=size.unrotated,
            v_head_dim=size.value, q_lora_rank=None,
        )  # fmt: skip

    def use_codes(self, kv_cache_dtype: str) -> None:
        """Begin anew with an empty cache of this type and the projections as they are now."""
        self.impl = self.make(kv_cache_dtype)
        self.impl.set_projections(self.to_keys, self.to_values.transpose(1, 2))
        channels = self.impl.key_dim + self.impl.value_dim
        content = kv_dtypes.token_bytes(kv_cache_dtype, self.dtype, channels)
        self.cache = torch.zeros(len(self.blocks), BLOCK, content, dtype=torch.uint8)

    def run(self, chunks: Sequence[tuple[int, int, int]], padding: int = 0) -> list[torch.Tensor]:
        """One step: of each sequence named the tokens [begin, end); ``padding`` tokens behind."""
        lengths = [end - begin for _, begin, end in chunks]
        starts = torch.tensor([0, *lengths]).cumsum(0).int()
        seq_lens = torch.tensor([end for *_, end in chunks]).int()
        table = self.block_table[[i for i, *_ in chunks]]
        slots = torch.full((int(starts[-1]) + padding,), -1)
        for row, (_, begin, end), first in zip(table.long(), chunks, starts, strict=False):
            at = torch.arange(begin, end)
            slots[first : first + end - begin] = row[at // BLOCK] * BLOCK + at % BLOCK
        plan = torch.ops._C.get_scheduler_metadata(
            len(chunks), self.sizes.heads, 1, self.impl.head_size, seq_lens, self.dtype, starts,
            True, -1, "", True, None,
        )  # fmt: skip
        tokens = int(starts[-1])
        step = StepMetadata(
            tokens, starts, seq_lens, table.contiguous(), slots, plan, True, None, None
        )

        def batch(per_sequence: list[torch.Tensor]) -> torch.Tensor:
            rows = torch.cat([per_sequence[i][begin:end] for i, begin, end in chunks])
            return torch.cat((rows, rows.new_ones(padding, *rows.shape[1:])))

        columns = self.sizes.heads * self.sizes.value
        output = torch.full((tokens + padding, columns), float("nan"), dtype=self.dtype)
        self.impl.forward(
            batch(self.queries), batch(self.latents), batch(self.rotated), self.cache, 1.0, step,
            output,
        )  # fmt: skip
        assert output[tokens:].isnan().all()
        return list(output[:tokens].split(lengths))

    def expanded(
        self,
        query: torch.Tensor,
        latents: torch.Tensor,
        rotated: torch.Tensor,
        *weights: torch.Tensor,
    ) -> torch.Tensor:
        """The definition, in the type of the arguments."""
        to_keys, to_values = weights
        unrotated = torch.einsum("jl,hlp->jhp", latents, to_keys)
        keys = torch.cat((unrotated, rotated.expand(-1, self.sizes.heads, -1)), -1)
        values = torch.einsum("jl,hlv->jhv", latents, to_values)
        if self.sizes.value < keys.shape[-1]:
            values = torch.nn.functional.pad(values, (0, keys.shape[-1] - self.sizes.value))
        out = attend(query, keys, values, self.sizes.scale, Masking())
        return out[..., : self.sizes.value].flatten(1)

    def check(self, sequence: int, begin: int, end: int, result: torch.Tensor) -> None:
        rounded = {torch.float32: 0.0, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
        in_integers = 2e-4 if self.impl.kv_cache_dtype == "int8_per_token_head" else 0.0
        assert_accurate(
            result,
            self.expanded,
            self.queries[sequence][begin:end],
            self.latents[sequence][:end],
            self.rotated[sequence][:end],
            self.to_keys,
            self.to_values,
            slack=rounded[self.dtype] + in_integers,  # of what lies between the products
        )


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_prompts_chunks_and_decodes_in_one_step(
    sizes: Sizes, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    layer = Layer(sizes, [70, 33, 1, 600], dtype, seeded)
    layer.run([(0, 0, 69), (3, 0, 590)])
    step = [(0, 69, 70), (1, 0, 33), (2, 0, 1), (3, 590, 600)]
    for chunk, result in zip(step, layer.run(step, padding=3), strict=True):
        layer.check(*chunk, result)


def test_a_result_depends_on_neither_batch_nor_chunks_nor_threads(
    dtype: torch.dtype, seeded: torch.Generator, threads: None
) -> None:
    torch.set_num_threads(2)
    layer = Layer(SIZES[1], [1100, 40], dtype, seeded)
    whole, other = layer.run([(0, 0, 1100), (1, 0, 40)])
    layer.check(0, 0, 1100, whole)
    for begin, end in [(0, 17), (17, 1050), (1050, 1051), (1051, 1100)]:
        [alone] = layer.run([(0, begin, end)])
        assert torch.equal(alone, whole[begin:end])
        _, together = layer.run([(1, 0, 40), (0, begin, end)])
        assert torch.equal(together, whole[begin:end])
    torch.set_num_threads(1)
    assert torch.equal(layer.run([(1, 0, 40)])[0], other)
    assert torch.equal(layer.run([(0, 1099, 1100)])[0], whole[1099:])


def test_slots_below_zero_are_not_written(dtype: torch.dtype, seeded: torch.Generator) -> None:
    layer = Layer(SIZES[2], [20], dtype, seeded)
    layer.run([(0, 0, 20)], padding=7)
    written = layer.cache.view(len(layer.blocks), -1).isnan().logical_not().sum(1)
    content = layer.impl.key_dim + layer.impl.value_dim
    assert sorted(written.tolist()) == [0, 20 * content]


def test_a_step_can_be_recorded(dtype: torch.dtype, seeded: torch.Generator) -> None:
    layer = Layer(SIZES[1], [40], dtype, seeded)
    layer.run([(0, 0, 30)])
    sizes = layer.sizes
    starts = torch.tensor([0, 1]).int()

    def step_at(position: int) -> StepMetadata:
        seq_lens = torch.tensor([position + 1]).int()
        slot = layer.block_table[0, position // BLOCK].long() * BLOCK + position % BLOCK
        plan = torch.ops._C.get_scheduler_metadata(
            1, sizes.heads, 1, layer.impl.head_size, seq_lens, dtype, starts, True, -1, "", True,
            None,
        )  # fmt: skip
        table = layer.block_table.contiguous()
        return StepMetadata(1, starts, seq_lens, table, slot[None], plan, True, None, None)

    query, latents, rotated = (
        rows[0][:1].clone() for rows in (layer.queries, layer.latents, layer.rotated)
    )

    def forward(step: StepMetadata) -> torch.Tensor:
        output = torch.empty(1, sizes.heads * sizes.value, dtype=dtype)
        layer.impl.forward(query, latents, rotated, layer.cache, 1.0, step, output)
        return output

    def data(step: StepMetadata) -> list[torch.Tensor]:
        return [
            step.query_start_loc, step.seq_lens, step.block_table, step.slot_mapping, step.plan
        ]  # fmt: skip

    first = step_at(30)
    recording = ops.StepRecording(data(first), [query, latents, rotated, layer.cache])
    with recording:
        recording.output = forward(first)
    assert recording.error == ""
    for position in (31, 32, 33):
        for rows, all_rows in (
            (query, layer.queries), (latents, layer.latents), (rotated, layer.rotated)
        ):  # fmt: skip
            rows.copy_(all_rows[0][position : position + 1])
        recording.fill_with_garbage()
        step = step_at(position)
        replayed = recording.replay(data(step)).clone()
        assert torch.equal(replayed, forward(step))


def exact_in(kv_cache_dtype: str, rows: torch.Tensor) -> torch.Tensor:
    """Rows near these that a cache of codes holds exactly, int8 with a scale of 1/16."""
    if kv_cache_dtype == "int8_per_token_head":
        exact = (rows * 40).round().clamp(-127, 127) / 16
        exact[..., 0] = 127 / 16
        return exact
    kind = torch.float8_e5m2 if kv_cache_dtype == "fp8_e5m2" else torch.float8_e4m3fn
    return rows.to(kind).to(rows.dtype)


@pytest.mark.parametrize("kv_cache_dtype", ["fp8", "fp8_e5m2", "int8_per_token_head"])
@pytest.mark.parametrize("sizes", SIZES[:2], ids=str)
def test_latents_in_eight_bits(
    sizes: Sizes, kv_cache_dtype: str, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    """Results over codes are those over what the codes stand for, however a prompt is cut."""
    layer = Layer(sizes, [170, 33], dtype, seeded)
    for rows in (*layer.latents, *layer.rotated):
        rows.copy_(exact_in(kv_cache_dtype, rows))
    layer.use_codes(kv_cache_dtype)
    chunks = [(0, 0, 170), (1, 0, 33)]
    whole, other = layer.run(chunks)
    for chunk, result in zip(chunks, (whole, other), strict=True):
        layer.check(*chunk, result)
    for begin, end in [(0, 101), (101, 169), (169, 170)]:
        [part] = layer.run([(0, begin, end)])
        assert torch.equal(part, whole[begin:end])


def test_the_largest_products_of_integers_do_not_overflow(seeded: torch.Generator) -> None:
    """Codes of 127 and queries of 32,767 throughout: half of the keys are as far as can be from the
    queries, and an overflow would take them for the nearest."""
    layer = Layer(SIZES[0], [20], torch.float32, seeded)
    layer.to_keys.fill_(1 / layer.sizes.latent)
    layer.queries[0].fill_(layer.sizes.unrotated / layer.sizes.latent)
    layer.queries[0][..., : layer.sizes.unrotated] = 1
    for rows in (*layer.latents, *layer.rotated):
        rows.fill_(127 / 16)
        rows[::2] *= -1
    layer.use_codes("int8_per_token_head")
    [result] = layer.run([(0, 0, 20)])
    layer.check(0, 0, 20, result)


@pytest.mark.parametrize(("heads", "n", "k"), [(1, 17, 5), (3, 48, 33), (16, 130, 64)])
@pytest.mark.parametrize("tokens", [0, 1, 7, 40])
def test_every_head_has_a_product_of_its_own(
    tokens: int, heads: int, n: int, k: int, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    weight = torch.randn(heads, k, n, generator=seeded).to(dtype).transpose(1, 2)
    x = torch.randn(tokens, heads + 1, k + 3, generator=seeded).to(dtype)[:, 1:, :k]
    buffer = torch.full((tokens, heads, n + 2), float("nan"), dtype=dtype)
    ops.PackedHeads(weight)(buffer[..., :n], x)
    assert buffer[..., n:].isnan().all()
    for head in range(heads):
        expected = ops.PackedLinear(weight[head])(x[:, head])
        assert torch.equal(buffer[:, head, :n], expected)
