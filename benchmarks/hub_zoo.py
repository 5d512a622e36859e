"""Models of transformers, torchvision and timm by small configurations, and inputs with labels.

A torchvision built for another PyTorch lacks compiled operators, which no model here calls: they
are declared, so that it can be imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
import transformers as hf
from torch import nn

try:
    import torchvision.models as tv
except RuntimeError:
    for _name in [x for x in sys.modules if x.startswith("torchvision")]:
        del sys.modules[_name]
    for _operator in ("nms", "qnms"):
        with suppress(RuntimeError):
            torch.library.define(f"torchvision::{_operator}", "(Tensor boxes) -> Tensor")
    import torchvision.models as tv
import timm

WORDS, TOKENS, BATCH = 96, 16, 8
SMALL: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 32, "use_cache": False,
    "tie_word_embeddings": False,
}  # fmt: skip


def _words() -> dict[str, Any]:
    random = torch.Generator().manual_seed(1)
    words = torch.randint(1, WORDS, (BATCH, TOKENS), generator=random)
    return {"input_ids": words, "labels": words}


def _classes() -> dict[str, Any]:
    random = torch.Generator().manual_seed(1)
    words = torch.randint(1, WORDS, (BATCH, TOKENS), generator=random)
    labels = torch.randint(0, 2, (BATCH,), generator=random)
    return {"input_ids": words, "attention_mask": torch.ones(BATCH, TOKENS), "labels": labels}


def _pictures(name: str, classes: int) -> dict[str, Any]:
    random = torch.Generator().manual_seed(1)
    pixels = torch.randn(BATCH, 3, 32, 32, generator=random)
    return {name: pixels, "labels": torch.randint(0, classes, (BATCH,), generator=random)}


_pixels, _scenes = partial(_pictures, "pixel_values", 2), partial(_pictures, "pixels", 10)


def _causal(config: Any, model: Any, **more: Any) -> Callable[[], Any]:
    return _other(config, model, **{**SMALL, "num_key_value_heads": 2, **more})


def _other(config: Any, model: Any, **options: Any) -> Callable[[], Any]:
    return lambda: model(config(**options)).train()


class Scored(nn.Module):
    """A network of class scores with a loss of its own."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy of pictures (B, 3, H, W) with classes (B,)."""
        return nn.functional.cross_entropy(self.network(pixels), labels)


def _scored(network: Callable[..., nn.Module], **options: Any) -> Callable[[], Any]:
    return lambda: Scored(network(**options)).train()


def _pairs() -> dict[str, Any]:
    words = _words()["input_ids"]
    return {"input_ids": words, "decoder_input_ids": words, "labels": words}


NONE = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GPT = {
    "vocab_size": WORDS, "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 32,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False,
    "tie_word_embeddings": False,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
MODELS: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]]]] = {
    "llama": (_causal(hf.LlamaConfig, hf.LlamaForCausalLM), _words),
    "mistral": (_causal(hf.MistralConfig, hf.MistralForCausalLM), _words),
    "qwen2": (_causal(hf.Qwen2Config, hf.Qwen2ForCausalLM), _words),
    "qwen3": (_causal(hf.Qwen3Config, hf.Qwen3ForCausalLM, head_dim=8), _words),
    "phi3": (
        _causal(hf.Phi3Config, hf.Phi3ForCausalLM, pad_token_id=0, bos_token_id=1, eos_token_id=2),
        _words,
    ),
    "gemma2": (_causal(hf.Gemma2Config, hf.Gemma2ForCausalLM, head_dim=8), _words),
    "olmo2": (_causal(hf.Olmo2Config, hf.Olmo2ForCausalLM), _words),
    "gpt_neox": (
        _causal(hf.GPTNeoXConfig, hf.GPTNeoXForCausalLM, hidden_dropout=0.0), _words,
    ),
    "gpt2": (_other(hf.GPT2Config, hf.GPT2LMHeadModel, **GPT), _words),
    "bert": (_other(hf.BertConfig, hf.BertForSequenceClassification, **SMALL, **NONE), _classes),
    "roberta": (
        _other(hf.RobertaConfig, hf.RobertaForSequenceClassification, **SMALL, **NONE), _classes,
    ),
    "electra": (
        _other(hf.ElectraConfig, hf.ElectraForSequenceClassification, **SMALL, **NONE,
               embedding_size=32), _classes,
    ),
    "vit": (_other(hf.ViTConfig, hf.ViTForImageClassification, **VISION, **NONE), _pixels),
    "deit": (_other(hf.DeiTConfig, hf.DeiTForImageClassification, **VISION, **NONE), _pixels),
    "mixtral": (
        _causal(hf.MixtralConfig, hf.MixtralForCausalLM, num_local_experts=4), _words,
    ),
    "opt": (
        _other(hf.OPTConfig, hf.OPTForCausalLM, vocab_size=WORDS, hidden_size=32, ffn_dim=64,
               num_hidden_layers=4, num_attention_heads=4, max_position_embeddings=32, dropout=0.0,
               word_embed_proj_dim=32, use_cache=False, tie_word_embeddings=False), _words,
    ),
    "bloom": (
        _other(hf.BloomConfig, hf.BloomForCausalLM, vocab_size=WORDS, hidden_size=32, n_layer=4,
               n_head=4, use_cache=False, tie_word_embeddings=False), _words,
    ),
    "distilbert": (
        _other(hf.DistilBertConfig, hf.DistilBertForSequenceClassification, vocab_size=WORDS,
               dim=32, hidden_dim=64, n_layers=4, n_heads=4, dropout=0.0, attention_dropout=0.0,
               seq_classif_dropout=0.0, max_position_embeddings=32), _classes,
    ),
    "t5": (
        _other(hf.T5Config, hf.T5ForConditionalGeneration, vocab_size=WORDS, d_model=32, d_kv=8,
               d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0, use_cache=False,
               tie_word_embeddings=False, decoder_start_token_id=0), _pairs,
    ),
    "swin": (
        _other(hf.SwinConfig, hf.SwinForImageClassification, image_size=32, patch_size=2,
               embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, drop_path_rate=0.0,
               **NONE), _pixels,
    ),
    "convnext": (
        _other(hf.ConvNextConfig, hf.ConvNextForImageClassification, hidden_sizes=[16, 32],
               depths=[2, 2], num_stages=2, patch_size=4, image_size=32), _pixels,
    ),
    "tv_resnet": (_scored(tv.resnet18, num_classes=10), _scenes),
    "tv_vit": (
        _scored(tv.VisionTransformer, image_size=32, patch_size=8, num_layers=4, num_heads=4,
                hidden_dim=32, mlp_dim=64, num_classes=10), _scenes,
    ),
    "tv_convnext": (
        _scored(tv.ConvNeXt, num_classes=10,
                block_setting=[tv.convnext.CNBlockConfig(16, 32, 2),
                               tv.convnext.CNBlockConfig(32, None, 2)]), _scenes,
    ),
    "tv_swin": (
        _scored(tv.SwinTransformer, patch_size=[2, 2], embed_dim=16, depths=[2, 2],
                num_heads=[2, 4], window_size=[4, 4], stochastic_depth_prob=0.0, num_classes=10),
        _scenes,
    ),
    "tv_squeezenet": (_scored(tv.squeezenet1_1, num_classes=10, dropout=0.0), _scenes),
    "timm_vit": (
        _scored(timm.models.VisionTransformer, img_size=32, patch_size=8, embed_dim=32, depth=4,
                num_heads=4, num_classes=10), _scenes,
    ),
    "timm_mixer": (
        _scored(timm.models.MlpMixer, img_size=32, patch_size=8, embed_dim=32, num_blocks=4,
                num_classes=10), _scenes,
    ),
    "timm_beit": (
        _scored(timm.models.beit.Beit, img_size=32, patch_size=8, embed_dim=32, depth=4,
                num_heads=4, num_classes=10), _scenes,
    ),
    "timm_convmixer": (
        _scored(timm.models.ConvMixer, dim=32, depth=4, patch_size=4, num_classes=10), _scenes,
    ),
}  # fmt: skip
for _name, (_make, _inputs) in MODELS.items():
    globals().update({_name: _make, f"{_name}_inputs": _inputs})
