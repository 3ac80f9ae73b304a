"""Models of the host that ``transformers`` has without their heads, and configs of a class that
published checkpoints bring as code of their own."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    BertForMaskedLM,
    BertModel,
    BertPreTrainedModel,
    GteConfig,
    GteForSequenceClassification,
    GteModel,
    JinaEmbeddingsV3Config,
    JinaEmbeddingsV3Model,
    JinaEmbeddingsV3PreTrainedModel,
    Lfm2Model,
    LlamaModel,
    LlamaPreTrainedModel,
    ModernBertModel,
    ModernBertPreTrainedModel,
    ModernVBertModel,
    ModernVBertPreTrainedModel,
    Qwen2Model,
    Qwen2PreTrainedModel,
    Qwen3ForCausalLM,
    Qwen3Model,
    Qwen3PreTrainedModel,
    XLMRobertaModel,
    XLMRobertaPreTrainedModel,
)
from transformers.modeling_outputs import (
    BaseModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv

from tests.zoo.deepseek_ocr import DeepseekOCRForCausalLM  # noqa: F401
from tests.zoo.deepseek_vl2 import DeepseekVLV2ForCausalLM  # noqa: F401
from tests.zoo.domyn import DomynEdgeForCausalLM  # noqa: F401
from tests.zoo.dory import DoryForCausalLM  # noqa: F401
from tests.zoo.dots import DotsOCRForCausalLM  # noqa: F401
from tests.zoo.glm4v import GLM4VForCausalLM  # noqa: F401
from tests.zoo.horizon import K2HorizonForCausalLM  # noqa: F401
from tests.zoo.isaac import IsaacForConditionalGeneration  # noqa: F401
from tests.zoo.kanana import KananaVForConditionalGeneration  # noqa: F401
from tests.zoo.keye import (
    KeyeForConditionalGeneration,  # noqa: F401
    KeyeVL1_5ForConditionalGeneration,  # noqa: F401
)
from tests.zoo.ling import (  # build looks for them here
    BailingMoeForCausalLM,  # noqa: F401
    BailingMoeV2_5ForCausalLM,  # noqa: F401
)
from tests.zoo.llama_nemotron_vl import (
    Eagle,  # noqa: F401
    LlamaNemotronVL,  # noqa: F401
    LlamaNemotronVLEmbed,  # noqa: F401
    LlamaNemotronVLForSequenceClassification,  # noqa: F401
)
from tests.zoo.llava_like import (
    BeeForConditionalGeneration,  # noqa: F401
    RForConditionalGeneration,  # noqa: F401
)
from tests.zoo.llava_onevision2 import LlavaOnevision2ForConditionalGeneration  # noqa: F401
from tests.zoo.minicpm import MiniCPMO, MiniCPMV  # noqa: F401
from tests.zoo.mixtures import (
    NemotronHPuzzleForCausalLM,  # noqa: F401
    PanguProMoEV2ForCausalLM,  # noqa: F401
    PanguUltraMoEForCausalLM,  # noqa: F401
    Param2MoEForCausalLM,  # noqa: F401
    SarvamMLAForCausalLM,  # noqa: F401
    Step3p5ForCausalLM,  # noqa: F401
    Step3TextForCausalLM,  # noqa: F401
)
from tests.zoo.molmo import Molmo2ForConditionalGeneration, MolmoForCausalLM  # noqa: F401
from tests.zoo.moss import MossTranscribeDiarizeForConditionalGeneration  # noqa: F401
from tests.zoo.nemotron_parse import NemotronParse  # noqa: F401
from tests.zoo.nemotron_vl import NemotronVL  # noqa: F401
from tests.zoo.nvlm import NVLMForConditionalGeneration  # noqa: F401
from tests.zoo.ovis2_5 import Ovis2_5  # noqa: F401
from tests.zoo.pangu_vl import OpenPanguVLForConditionalGeneration  # noqa: F401
from tests.zoo.phi3v import Phi3VForCausalLM  # noqa: F401
from tests.zoo.phi4v import Phi4ForCausalLMV  # noqa: F401
from tests.zoo.pooling_specs import DOCUMENT, QUERY
from tests.zoo.qwen_heads import (
    ColQwen3,  # noqa: F401
    ColQwen3_5,  # noqa: F401
    JinaVLForSequenceClassification,  # noqa: F401
    Qwen3VLTokens,  # noqa: F401
)
from tests.zoo.rebuilt import (
    DeciLMForCausalLM,  # noqa: F401
    DeepseekForCausalLM,  # noqa: F401
    IQuestLoopCoderForCausalLM,  # noqa: F401
    MistralLarge3ForCausalLM,  # noqa: F401
    Plamo3ForCausalLM,  # noqa: F401
    SolarForCausalLM,  # noqa: F401
)
from tests.zoo.step import (
    Step3VLForConditionalGeneration,  # noqa: F401
    StepVLForConditionalGeneration,  # noqa: F401
)
from tests.zoo.tokens import ANSWERS, SPECIAL
from tests.zoo.ultravox import UltravoxModel  # noqa: F401
from tests.zoo.voxtral_realtime import VoxtralRealtimeGeneration  # noqa: F401

# Of ColBERT's embeddings.  The config does not say it, as ColBERTv2's does not: told it, the host
# ends with "cannot assign module before Module.__init__() call".
WIDTH = 24
RANKING_WIDTH = 512  # of jina-reranker-v3's embeddings: the host looks for it in no config


class NewConfig(GteConfig):
    """Of gte-multilingual-base."""

    model_type = "new"


class XLMRobertaFlashConfig(JinaEmbeddingsV3Config):
    """Of jina-colbert-v2; there it has the type of XLM-RoBERTa."""

    model_type = "xlm-roberta-flash"


for config in (NewConfig, XLMRobertaFlashConfig):
    AutoConfig.register(config.model_type, config)


class Qwen2RewardModel(Qwen2PreTrainedModel):
    """Scores every token: Qwen2.5-Math's reward models."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.model = Qwen2Model(config)
        self.score = torch.nn.Sequential(
            torch.nn.Linear(size, size), torch.nn.ReLU(), torch.nn.Linear(size, config.num_labels)
        )
        self.post_init()

    def forward(self, input_ids: torch.Tensor) -> Any:
        """``input_ids`` [1, n]; [1, n, labels] by a head in fp32: a number, or probabilities."""
        states = self.model(input_ids).last_hidden_state
        scores = self.score.float()(states.float())
        return TokenClassifierOutput(logits=scores if scores.shape[-1] == 1 else scores.softmax(-1))


class LlamaRewardModel(LlamaPreTrainedModel):
    """Scores every token, between 0 and 1: InternLM2's reward models."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = LlamaModel(config)
        self.v_head = torch.nn.Linear(config.hidden_size, 1, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor) -> Any:
        """``input_ids`` [1, n]; [1, n, 1] by a head in fp32."""
        states = self.model(input_ids).last_hidden_state
        return TokenClassifierOutput(logits=self.v_head.float()(states.float()).sigmoid())


class ColBert(BertPreTrainedModel):
    """Embeds every token."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.linear = torch.nn.Linear(config.hidden_size, WIDTH, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor) -> Any:
        """``input_ids`` [1, n]; [1, n, WIDTH] of length 1 by a head in fp32."""
        return _embeddings(self.bert(input_ids).last_hidden_state, self.linear)


class ModernColBert(ModernBertPreTrainedModel):
    """Embeds every token."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = ModernBertModel(config)
        self.linear = torch.nn.Linear(config.hidden_size, WIDTH, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor) -> Any:
        """``input_ids`` [1, n]; [1, n, WIDTH] of length 1 by a head in fp32."""
        return _embeddings(self.model(input_ids).last_hidden_state, self.linear)


class ModernVColBert(ModernVBertPreTrainedModel):
    """Embeds every token, those of an image too."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = ModernVBertModel(config)
        self.custom_text_proj = torch.nn.Linear(config.text_config.hidden_size, WIDTH)
        self.post_init()

    def forward(self, **inputs: torch.Tensor) -> Any:
        """Of one text and its images; [1, n, WIDTH] of length 1 by a head in fp32."""
        return _embeddings(self.model(**inputs).last_hidden_state, self.custom_text_proj)


class JinaColBert(JinaEmbeddingsV3PreTrainedModel):
    """Embeds every token."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.roberta = JinaEmbeddingsV3Model(config, add_pooling_layer=False)
        self.linear = torch.nn.Linear(config.hidden_size, WIDTH, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor) -> Any:
        """``input_ids`` [1, n]; [1, n, WIDTH] of length 1 by a head in fp32."""
        return _embeddings(self.roberta(input_ids).last_hidden_state, self.linear)


class Lfm2Bidirectional(Lfm2Model):
    """Embeds a text whose tokens see what comes after them, too."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for i, layer in enumerate(self.layers):
            if layer.is_attention_layer:
                layer.self_attn.is_causal = False
            else:
                layer.conv = CenteredConv(config, i)


class CenteredConv(Lfm2ShortConv):
    """Of as many tokens before each as after it."""

    def forward(self, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
        """``hidden_states`` [1, n, hidden]; the same."""
        before, after, x = self.in_proj(hidden_states).transpose(1, 2).chunk(3, 1)
        weight, bias = self.conv.weight, self.conv.bias
        convolved = torch.nn.functional.conv1d(
            before * x, weight, bias, padding=weight.shape[-1] // 2, groups=len(weight)
        )
        return self.out_proj((after * convolved).transpose(1, 2))


class Lfm2ColBert(Lfm2Model):
    """Embeds every token, by a head that lies beside the model as sentence-transformers has it."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.linear = torch.nn.Linear(config.hidden_size, WIDTH, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor) -> Any:
        """``input_ids`` [1, n]; [1, n, WIDTH] of length 1 by a head in fp32."""
        return _embeddings(super().forward(input_ids).last_hidden_state, self.linear)

    def save_pretrained(self, folder: Path, **rest: Any) -> None:
        """The head apart."""
        from safetensors.torch import save_file

        weights = self.state_dict()
        head = {"linear.weight": weights.pop("linear.weight")}
        super().save_pretrained(folder, state_dict=weights, **rest)
        (folder / "1_Dense").mkdir()
        save_file(head, folder / "1_Dense" / "model.safetensors")
        _write(folder / "modules.json", [{"path": "1_Dense", "type": "pylate.models.Dense.Dense"}])
        _write(
            folder / "1_Dense" / "config.json",
            {"in_features": self.config.hidden_size, "out_features": WIDTH, "bias": False},
        )


class BgeM3(XLMRobertaPreTrainedModel):
    """Embeds a text, weighs its tokens, does both at once, and embeds the tokens."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.roberta = XLMRobertaModel(config, add_pooling_layer=False)
        self.sparse_linear = torch.nn.Linear(size, 1)
        self.colbert_linear = torch.nn.Linear(size, size)
        self.post_init()

    def forward(self, input_ids: torch.Tensor) -> Any:
        """``input_ids`` [1, n]; one row of numbers by heads in fp32: the first state, weights of
        tokens but begin and end, both once more, embeddings of all tokens but begin."""
        states = self.roberta(input_ids).last_hidden_state[0].float()
        begun = int(input_ids[0, 0] == self.config.bos_token_id)
        ended = int(input_ids[0, -1] == self.config.eos_token_id)
        inner = states[begun : len(states) - ended]
        text = torch.nn.functional.normalize(states[0], dim=-1)
        weights = self.sparse_linear.float()(inner).relu().flatten()
        tokens = _embeddings(states[begun:], self.colbert_linear).logits.flatten()
        return TokenClassifierOutput(logits=torch.cat([*[text, weights] * 2, tokens])[None])

    def save_pretrained(self, folder: Path, **rest: Any) -> None:
        """The heads apart."""
        self.roberta.save_pretrained(folder, **rest)
        for name in ("sparse_linear", "colbert_linear"):
            torch.save(self.get_submodule(name).state_dict(), folder / f"{name}.pt")


class Splade(BertForMaskedLM):
    """Weighs all words of its vocabulary."""

    def forward(self, input_ids: torch.Tensor) -> Any:
        """``input_ids`` [1, n]; [1, words]."""
        logits = super().forward(input_ids).logits
        return TokenClassifierOutput(logits=logits.relu().log1p().max(1).values)


class JinaRanking(Qwen3PreTrainedModel):
    """Embeds the tokens DOCUMENT, then QUERY."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.model = Qwen3Model(config)
        self.projector = torch.nn.Sequential(
            torch.nn.Linear(size, size // 2, bias=False),
            torch.nn.ReLU(),
            torch.nn.Linear(size // 2, RANKING_WIDTH, bias=False),
        )
        self.post_init()

    def forward(self, input_ids: torch.Tensor) -> Any:
        """``input_ids`` [1, n]; [1, so many, RANKING_WIDTH]."""
        states = self.model(input_ids).last_hidden_state
        found = torch.cat([states[input_ids == token] for token in (DOCUMENT, QUERY)])
        return TokenClassifierOutput(logits=self.projector(found)[None])


class VoyageEmbedding(Qwen3PreTrainedModel):
    """Projects what it makes of every token."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = Qwen3Model(config)
        self.linear = torch.nn.Linear(config.hidden_size, config.num_labels, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor) -> Any:
        """``input_ids`` [1, n]; states [1, n, labels]."""
        states = self.model(input_ids).last_hidden_state
        return BaseModelOutput(last_hidden_state=self.linear(states))


class NewGte(GteModel):
    """With frequencies as Alibaba's own code has them."""

    def __init__(self, config: Any, **rest: Any) -> None:
        super().__init__(_without_scaling(config), **rest)
        _scale(self, config)
        self.config = config


class NewGteForSequenceClassification(GteForSequenceClassification):
    """With frequencies as Alibaba's own code has them."""

    def __init__(self, config: Any) -> None:
        super().__init__(_without_scaling(config))
        _scale(self.gte, config)
        self.config = config


def _without_scaling(config: Any) -> Any:
    plain = copy.deepcopy(config)
    plain.rope_parameters = {**config.rope_parameters, "rope_type": "default"}
    return plain


def _scale(model: GteModel, config: Any) -> None:
    """A larger base, and all frequencies a little lower."""
    factor = config.rope_parameters["factor"]
    size = config.hidden_size // config.num_attention_heads
    base = config.rope_parameters["rope_theta"] * factor
    exponents = torch.arange(0, size, 2).float() / size
    model.rotary_emb.inv_freq = base**-exponents / factor ** (2 / size)


def _embeddings(states: torch.Tensor, linear: torch.nn.Linear) -> Any:
    embeddings = linear.float()(states.float())
    return TokenClassifierOutput(logits=torch.nn.functional.normalize(embeddings, dim=-1))


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


class Qwen3RerankerForSequenceClassification(Qwen3ForCausalLM):
    """Qwen3-Reranker: how likely "yes" is as the next token, if it is that or "no"."""

    def forward(self, input_ids: torch.Tensor, **others: Any) -> SequenceClassifierOutput:
        yes, no = (len(SPECIAL) + ANSWERS.index(word) for word in ("yes", "no"))
        last = super().forward(input_ids, **others).logits[:, -1]
        return SequenceClassifierOutput(logits=last[:, yes, None] - last[:, no, None])
