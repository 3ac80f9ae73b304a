"""llama.cpp through the C interface of llama-cpp-python, whose high-level class knows no batches.

All prompts go in together, in calls of at most n_batch tokens, then every sequence advances by one
token per call, as llama.cpp's own server batches. As there, what a sequence has in its cache stays,
and of its next prompt only what differs is computed. Greedy sampling is an argmax in numpy, cheaper
than llama.cpp's samplers, which first list all candidates.
"""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

from protocol import run_engine

BATCH_TOKENS = 2048


class LlamaCppEngine:
    def __init__(self, modules: Any, settings: dict[str, Any]) -> None:
        self.c, self.numpy = modules.llama_cpp, modules.numpy
        self.threads = settings["threads"]
        self.context_tokens = settings["context"]
        self.least_sequences = settings.get("sequences", 1)  # as --parallel of its server
        self.is_exact = settings.get("exact", False)  # attention in fp32 throughout
        self.c.llama_backend_init()
        params = self.c.llama_model_default_params()
        self.model = self.c.llama_model_load_from_file(settings["model"].encode(), params)
        if not self.model:
            raise RuntimeError(f"llama.cpp could not load {settings['model']}")
        self.vocab = self.c.llama_model_get_vocab(self.model)
        self.vocab_size = self.c.llama_vocab_n_tokens(self.vocab)
        self.context: Any = None
        self.context_shape = (0, 0)
        self.cached: dict[int, list[int]] = {}  # tokens by sequence, the last used one last
        self.batch = self.c.llama_batch_init(BATCH_TOKENS, 0, 1)
        self._use_context(1, self.context_tokens)
        self.eyes = self._open_eyes(settings["mmproj"]) if "mmproj" in settings else None
        built_for = re.findall(r"(\w+) = 1", self.c.llama_print_system_info().decode())
        self.versions = {
            "llama-cpp-python": self.c.__version__,
            "built for": " ".join(built_for),
        }

    def generate(self, prompts: list[list[int]], outputs: int) -> list[list[int]]:
        self._use_context(len(prompts), max(len(prompt) for prompt in prompts) + outputs)
        given: dict[int, list[int]] = {}  # by sequence
        for prompt in prompts:
            given[self._take(prompt, given)] = prompt
        results: dict[int, list[int]] = {sequence: [] for sequence in given}
        # (token, position, sequence, whether its logits are wanted)
        entries = [
            (prompt[position], position, sequence, position + 1 == len(prompt))
            for sequence, prompt in given.items()
            for position in range(len(self.cached[sequence]), len(prompt))
        ]
        for step in range(outputs):
            for sequence, token in self._decode(entries):
                results[sequence].append(token)
            entries = [
                (result[-1], len(given[sequence]) + step, sequence, True)
                for sequence, result in results.items()
            ]
        for sequence, result in results.items():
            self.cached[sequence] = given[sequence] + result[:-1]
        return list(results.values())

    def noise(self, medium: str, *sizes: int) -> Any:
        """A picture of so many rows and columns."""
        if medium != "image":
            raise RuntimeError(f"no {medium} is given to llama.cpp here")
        pixels = self.numpy.random.randint(0, 256, (*sizes, 3), self.numpy.uint8)
        data = (ctypes.c_uint8 * pixels.size).from_buffer(pixels)
        return self.mtmd.mtmd_bitmap_init(sizes[1], sizes[0], data)

    def see(self, picture: Any) -> None:
        """The logits behind a picture and a few words."""
        self._use_context(1, self.context_tokens)
        self._forget()
        words = self.mtmd.mtmd_default_marker() + b"what is this"
        text = self.mtmd.mtmd_input_text(words, len(words), False, True)
        chunks = self.mtmd.mtmd_input_chunks_init()
        pictures = (self.mtmd.mtmd_bitmap_p_ctypes * 1)(picture)
        status = self.mtmd.mtmd_tokenize(self.eyes, chunks, ctypes.byref(text), pictures, 1)
        end = self.c.llama_pos(0)
        status = status or self.mtmd.mtmd_helper_eval_chunks(
            self.eyes, self.context, chunks, 0, 0, BATCH_TOKENS, True, ctypes.byref(end)
        )
        self.mtmd.mtmd_input_chunks_free(chunks)
        self.mtmd.mtmd_bitmap_free(picture)
        if status != 0:
            raise RuntimeError(f"llama.cpp answered {status} to a picture")

    def _open_eyes(self, projector: str) -> Any:
        """What reads pictures by the file ``projector``."""
        from llama_cpp import mtmd_cpp

        self.mtmd = mtmd_cpp
        params = mtmd_cpp.mtmd_context_params_default()
        params.use_gpu = params.warmup = params.print_timings = False
        params.n_threads = self.threads
        eyes = mtmd_cpp.mtmd_init_from_file(projector.encode(), self.model, params)
        if not eyes:
            raise RuntimeError(f"llama.cpp could not load {projector}")
        return eyes

    def text(self, tokens: list[int]) -> str:
        room = ctypes.create_string_buffer(32 * len(tokens))
        array = (self.c.llama_token * len(tokens))(*tokens)
        count = self.c.llama_detokenize(
            self.vocab, array, len(tokens), room, len(room), False, True
        )
        return room.raw[: max(count, 0)].decode(errors="replace")

    def _use_context(self, sequences: int, tokens: int) -> None:
        """Room for so many sequences; the context is kept while it fits."""
        sequences = max(sequences, self.least_sequences)
        tokens = -(-tokens // 256) * 256
        if self.context_shape[0] != sequences or self.context_shape[1] < tokens:
            if self.context:
                self.c.llama_free(self.context)
            if sequences == self.least_sequences:
                tokens = max(tokens, self.context_tokens)
            params = self.c.llama_context_default_params()
            # A cache for each sequence: n_ctx is the sum of them, each a multiple of 256 tokens.
            params.n_seq_max = sequences
            params.n_ctx = sequences * tokens
            params.n_batch = BATCH_TOKENS
            if self.is_exact:
                params.type_k = params.type_v = self.c.GGML_TYPE_F32
                params.flash_attn_type = self.c.LLAMA_FLASH_ATTN_TYPE_DISABLED
            params.n_threads = params.n_threads_batch = self.threads
            self.context = self.c.llama_init_from_model(self.model, params)
            if not self.context:
                raise RuntimeError(f"llama.cpp made no context for {sequences} x {tokens} tokens")
            self.context_shape = (sequences, tokens)
            self._forget()

    def _forget(self) -> None:
        self.c.llama_memory_clear(self.c.llama_get_memory(self.context), True)
        self.cached = {sequence: [] for sequence in range(self.context_shape[0])}

    def _take(self, prompt: list[int], taken: Collection[int]) -> int:
        """The sequence with the most of the prompt in its cache, of equal ones the one unused for
        longest, rid of all else; none that others of the same step have taken.

        The last token's logits are wanted, so it does not count; nor does a part where none can be
        removed, as of recurrent states.
        """
        free = [sequence for sequence in self.cached if sequence not in taken]
        sequence = max(free, key=lambda which: _common(self.cached[which], prompt[:-1]))
        kept = prompt[: _common(self.cached.pop(sequence), prompt[:-1])]
        memory = self.c.llama_get_memory(self.context)
        if not (kept and self.c.llama_memory_seq_rm(memory, sequence, len(kept), -1)):
            kept = []
            self.c.llama_memory_seq_rm(memory, sequence, -1, -1)
        self.cached[sequence] = kept
        return sequence

    def _decode(self, entries: list[tuple[int, int, int, bool]]) -> list[tuple[int, int]]:
        """Run entries through the model; (sequence, next token) where logits were wanted."""
        next_tokens = []
        for begin in range(0, len(entries), BATCH_TOKENS):
            part = entries[begin : begin + BATCH_TOKENS]
            batch = self.batch
            batch.n_tokens = len(part)
            for i, (token, position, sequence, wanted) in enumerate(part):
                batch.token[i] = token
                batch.pos[i] = position
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = sequence
                batch.logits[i] = wanted
            status = self.c.llama_decode(self.context, batch)
            if status != 0:
                raise RuntimeError(f"llama_decode answered {status}")
            for i, (_, _, sequence, wanted) in enumerate(part):
                if wanted:
                    logits = self.c.llama_get_logits_ith(self.context, i)
                    row = self.numpy.ctypeslib.as_array(logits, (self.vocab_size,))
                    next_tokens.append((sequence, int(row.argmax())))
        return next_tokens


def _common(first: list[int], second: list[int]) -> int:
    """The number of tokens with which both begin."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def load() -> Any:
    import llama_cpp
    import numpy

    return SimpleNamespace(llama_cpp=llama_cpp, numpy=numpy)


if __name__ == "__main__":
    run_engine(load, LlamaCppEngine)
