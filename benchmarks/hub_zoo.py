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


def _auto(kind: Any, name: str, inputs: Callable[[], Any], **options: Any) -> tuple[Any, Any]:
    """A model of transformers by the name of its type, and its inputs."""
    return lambda: kind.from_config(hf.AutoConfig.for_model(name, **options)).train(), inputs


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
DEIT = {**VISION, "architectures": ["DeiTForImageClassification"]}
"""The type stands for a network that learns from a teacher, too."""
SWIN = {
    "image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
    "window_size": 4, "drop_path_rate": 0.0,
}  # fmt: skip
OF_CAUSAL: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": {}, "qwen2": {}, "qwen3": {"head_dim": 8}, "gemma2": {"head_dim": 8},
    "olmo2": {}, "phi3": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "gpt_neox": {"hidden_dropout": 0.0}, "mixtral": {"num_local_experts": 4},
}  # fmt: skip
"""Language models by type, and what their configurations have beside ``SMALL``."""
MODELS: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]]]] = {
    **{
        name: _auto(hf.AutoModelForCausalLM, name, _words, **SMALL, num_key_value_heads=2, **more)
        for name, more in OF_CAUSAL.items()
    },
    "gpt2": _auto(hf.AutoModelForCausalLM, "gpt2", _words, **GPT),
    "opt": _auto(
        hf.AutoModelForCausalLM, "opt", _words, vocab_size=WORDS, hidden_size=32, ffn_dim=64,
        num_hidden_layers=4, num_attention_heads=4, max_position_embeddings=32, dropout=0.0,
        word_embed_proj_dim=32, use_cache=False, tie_word_embeddings=False,
    ),
    "bloom": _auto(
        hf.AutoModelForCausalLM, "bloom", _words, vocab_size=WORDS, hidden_size=32, n_layer=4,
        n_head=4, use_cache=False, tie_word_embeddings=False,
    ),
    **{
        name: _auto(hf.AutoModelForSequenceClassification, name, _classes, **SMALL, **NONE, **more)
        for name, more in {"bert": {}, "roberta": {}, "electra": {"embedding_size": 32}}.items()
    },
    "distilbert": _auto(
        hf.AutoModelForSequenceClassification, "distilbert", _classes, vocab_size=WORDS, dim=32,
        hidden_dim=64, n_layers=4, n_heads=4, dropout=0.0, attention_dropout=0.0,
        seq_classif_dropout=0.0, max_position_embeddings=32,
    ),
    "t5": _auto(
        hf.AutoModelForSeq2SeqLM, "t5", _pairs, vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64,
        num_layers=2, num_heads=4, dropout_rate=0.0, use_cache=False, tie_word_embeddings=False,
        decoder_start_token_id=0,
    ),
    **{
        name: _auto(hf.AutoModelForImageClassification, name, _pixels, **options, **NONE)
        for name, options in {"vit": VISION, "deit": DEIT, "swin": SWIN}.items()
    },
    "convnext": _auto(
        hf.AutoModelForImageClassification, "convnext", _pixels, hidden_sizes=[16, 32],
        depths=[2, 2], num_stages=2, patch_size=4, image_size=32,
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
