"""Hugging Face models by small configurations, and inputs by name with labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

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


def _pixels() -> dict[str, Any]:
    random = torch.Generator().manual_seed(1)
    pixels = torch.randn(BATCH, 3, 32, 32, generator=random)
    return {"pixel_values": pixels, "labels": torch.randint(0, 2, (BATCH,), generator=random)}


def _causal(config: Any, model: Any, **more: Any) -> Callable[[], Any]:
    def make() -> Any:
        return model(config(**{**SMALL, "num_key_value_heads": 2, **more})).train()

    return make


def _other(config: Any, model: Any, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        return model(config(**options)).train()

    return make


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
}  # fmt: skip
for _name, (_make, _inputs) in MODELS.items():
    globals().update({_name: _make, f"{_name}_inputs": _inputs})
