"""The names of MiniCPM-o's tokenizer for its tokens, which the host asks for."""

from typing import Any

from transformers import PreTrainedTokenizerFast


def _number_of(token: str) -> Any:
    return property(lambda tokenizer: tokenizer.convert_tokens_to_ids(token))


class MiniCPMTokenizer(PreTrainedTokenizerFast):
    audio_start, audio_end = "<|audio_start|>", "<|audio_end|>"
    im_start_id, im_end_id = _number_of("<image>"), _number_of("</image>")
    slice_start_id, slice_end_id = _number_of("<slice>"), _number_of("</slice>")
    audio_start_id, audio_end_id = _number_of(audio_start), _number_of(audio_end)
    spk_start_id, spk_end_id = _number_of("<|spk_bos|>"), _number_of("<|spk_eos|>")
