"""Flax models of transformers 4.57.6 by small configurations, as training steps by Adam."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it calls its Flax models deprecated

import jax
import jax.numpy as jnp
import numpy as np
import optax
import transformers as hf
from flax.training.train_state import TrainState

WORDS, TOKENS, BATCH = 96, 16, 8
Batch = dict[str, Any]
SMALL: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 32, "tie_word_embeddings": False,
}  # fmt: skip
NONE = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8, "num_labels": 10,
}  # fmt: skip
GPT2 = hf.GPT2Config(
    vocab_size=WORDS, n_embd=32, n_layer=2, n_head=4, n_positions=32, resid_pdrop=0.0,
    embd_pdrop=0.0, attn_pdrop=0.0,
)  # fmt: skip
OPT = hf.OPTConfig(
    vocab_size=WORDS, hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4,
    max_position_embeddings=32, dropout=0.0, word_embed_proj_dim=32,
)  # fmt: skip
DISTILBERT = hf.DistilBertConfig(
    vocab_size=WORDS, dim=32, hidden_dim=64, n_layers=2, n_heads=4, dropout=0.0,
    attention_dropout=0.0, seq_classif_dropout=0.0, max_position_embeddings=32,
)  # fmt: skip


def _words(random: np.random.Generator) -> Batch:
    words = random.integers(1, WORDS, (BATCH, TOKENS), dtype=np.int32)
    return {"input_ids": words, "labels": words}


def _classes(random: np.random.Generator) -> Batch:
    return {**_words(random), "labels": random.integers(0, 2, BATCH, dtype=np.int32)}


def _pixels(random: np.random.Generator) -> Batch:
    pixels = random.normal(size=(BATCH, 3, 32, 32)).astype(np.float32)
    return {"pixel_values": pixels, "labels": random.integers(0, 10, BATCH, dtype=np.int32)}


MODELS: dict[str, tuple[Callable[..., Any], Any, Callable[[np.random.Generator], Batch]]] = {
    "flax_llama": (
        hf.FlaxLlamaForCausalLM, hf.LlamaConfig(**SMALL, num_key_value_heads=2), _words,
    ),
    "flax_mistral": (
        hf.FlaxMistralForCausalLM, hf.MistralConfig(**SMALL, num_key_value_heads=2), _words,
    ),
    "flax_gemma": (
        hf.FlaxGemmaForCausalLM,
        hf.GemmaConfig(**SMALL | {"tie_word_embeddings": True}, num_key_value_heads=2, head_dim=8),
        _words,
    ),
    "flax_gpt2": (hf.FlaxGPT2LMHeadModel, GPT2, _words),
    "flax_opt": (hf.FlaxOPTForCausalLM, OPT, _words),
    "flax_bert": (
        hf.FlaxBertForSequenceClassification, hf.BertConfig(**SMALL, **NONE), _classes,
    ),
    "flax_roberta": (
        hf.FlaxRobertaForSequenceClassification, hf.RobertaConfig(**SMALL, **NONE), _classes,
    ),
    "flax_distilbert": (hf.FlaxDistilBertForSequenceClassification, DISTILBERT, _classes),
    "flax_vit": (hf.FlaxViTForImageClassification, hf.ViTConfig(**VISION, **NONE), _pixels),
    "flax_beit": (
        hf.FlaxBeitForImageClassification, hf.BeitConfig(**VISION, **NONE, vocab_size=WORDS),
        _pixels,
    ),
}  # fmt: skip
"""Name -> class, configuration, and what gives a batch."""


@cache
def model(name: str) -> Any:
    """A model with random weights."""
    make, config, _ = MODELS[name]
    shape = {"input_shape": (1, 32, 32, 3)} if name in ("flax_vit", "flax_beit") else {}
    with jax.ensure_compile_time_eval():  # it may be asked for while a step is traced
        return make(config, seed=0, **shape)


def _step(name: str) -> Callable[[TrainState, Batch], tuple[TrainState, jax.Array]]:
    def step(state: TrainState, batch: Batch) -> tuple[TrainState, jax.Array]:
        inputs = {key: value for key, value in batch.items() if key != "labels"}

        def loss(params: Any) -> jax.Array:
            logits = model(name)(**inputs, params=params).logits
            labels = jax.nn.one_hot(batch["labels"], logits.shape[-1])
            return jnp.mean(optax.softmax_cross_entropy(logits, labels))

        value, gradients = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=gradients), value

    return step


def _inputs(name: str) -> Callable[[], tuple[TrainState, Batch]]:
    def inputs() -> tuple[TrainState, Batch]:
        state = TrainState.create(apply_fn=None, params=model(name).params, tx=optax.adam(1e-3))
        return state, MODELS[name][2](np.random.default_rng(1))

    return inputs


for _name in MODELS:
    globals().update({_name: _step(_name), f"{_name}_inputs": _inputs(_name)})
