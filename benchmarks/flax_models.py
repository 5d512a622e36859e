"""Training steps of six public Flax models, written as in the examples of `transformers`.

The models are those of `transformers` 4.57.6, the last that has Flax models, with their published
sizes. Nothing is downloaded and no weight is allocated. Needs what ``public_models.py`` names.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it calls its Flax models deprecated

import jax
import jax.numpy as jnp
import optax
import transformers as hf
from flax.training import train_state

from programs import BATCH, FROZEN, OPTIMISER, SCALAR, STATISTICS, VARIABLE, Program

Batch = dict[str, Any]
Loss = Callable[[jax.Array, Batch], jax.Array]
Split = tuple[tuple[str, int], ...]
"""Globs over the paths of variables, each with the dimension to partition."""


class TrainState(train_state.TrainState):
    """Weights, optimiser state, and the key of dropout or the statistics of batch normalisation."""

    dropout_rng: Any = None
    batch_stats: Any = None


@dataclass(frozen=True)
class PublicModel:
    """A public model, and how people train it.

    Attributes:
        name: short name.
        source: name at the Hugging Face Hub of the model whose sizes it has.
        flax: the class of `transformers`.
        config: configuration with the published sizes.
        batch: abstract arrays of one batch.
        loss: loss from the logits and the batch.
        megatron: the plan that an expert writes by hand: attention split by heads, the feed-forward
            network by its hidden width (arXiv 1909.08053, section 3), other networks by their
            dense layers.
        frozen: top names of weights whose gradient the model itself stops.
    """

    name: str
    source: str
    flax: Any
    config: Any
    batch: Batch
    loss: Loss
    megatron: Split
    frozen: tuple[str, ...] = ()

    def program(self) -> Program:
        """The step, its abstract arguments (a train state and a batch), and what they are."""
        model = self.flax(self.config, _do_init=False)
        key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
        weights = jax.eval_shape(partial(model.init_weights, input_shape=model.input_shape), key)
        with_statistics = "batch_stats" in weights
        create = partial(TrainState.create, apply_fn=model.__call__, tx=optax.adamw(1e-4))
        if with_statistics:
            state = jax.eval_shape(lambda x: create(**x), weights)
            compute_loss = partial(loss_with_statistics, self.loss)
        else:
            state = jax.eval_shape(lambda x, y: create(params=x, dropout_rng=y), weights, key)
            compute_loss = partial(loss_with_dropout, self.loss)
        known = {"dropout_rng": SCALAR, "batch_stats": STATISTICS}
        truth = state.replace(
            step=SCALAR,
            params={name: FROZEN if name in self.frozen else VARIABLE for name in state.params},
            opt_state=OPTIMISER,
            **{name: role for name, role in known.items() if getattr(state, name) is not None},
        )

        def gradients(state: TrainState, batch: Batch) -> Any:
            compute = jax.value_and_grad(compute_loss, has_aux=True)
            return compute(state.params, state, batch)

        def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Batch]:
            (loss, changes), gradient = gradients(state, batch)
            return state.apply_gradients(grads=gradient, **changes), {"loss": loss}

        return Program(
            train_step,
            (state, dict(self.batch)),
            (truth, BATCH),
            lambda state, batch: compute_loss(state.params, state, batch),
            gradients,
        )


def loss_with_dropout(
    loss: Loss, params: Any, state: TrainState, batch: Batch
) -> tuple[jax.Array, Batch]:
    """The loss of a model with dropout, and the key of the next step."""
    key, new_key = jax.random.split(state.dropout_rng)
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    logits = state.apply_fn(**inputs, params=params, dropout_rng=key, train=True)[0]
    return loss(logits, batch), {"dropout_rng": new_key}


def loss_with_statistics(
    loss: Loss, params: Any, state: TrainState, batch: Batch
) -> tuple[jax.Array, Batch]:
    """The loss of a model with batch normalisation, and its new running statistics."""
    weights = {"params": params, "batch_stats": state.batch_stats}
    outputs, statistics = state.apply_fn(batch["pixel_values"], params=weights, train=True)
    return loss(outputs.logits, batch), {"batch_stats": statistics["batch_stats"]}


def cross_entropy(logits: jax.Array, batch: Batch) -> jax.Array:
    """Mean cross entropy of the labels."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
    return losses.mean()


def next_token(logits: jax.Array, batch: Batch) -> jax.Array:
    """Mean cross entropy of each token given those before it."""
    labels = batch["input_ids"][:, 1:]
    return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], labels).mean()


def masked_tokens(logits: jax.Array, batch: Batch) -> jax.Array:
    """Mean cross entropy of the masked tokens; the label of the others is -100."""
    mask = jnp.where(batch["labels"] >= 0, 1.0, 0.0)
    labels = jnp.maximum(batch["labels"], 0)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels) * mask
    return losses.sum() / mask.sum()


def integers(*shape: int) -> jax.ShapeDtypeStruct:
    """An abstract array of int32."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def images(count: int) -> Batch:
    """A batch of labelled images."""
    pixels = jax.ShapeDtypeStruct((count, 3, 224, 224), jnp.float32)
    return {"pixel_values": pixels, "labels": integers(count)}


def split(columns: str, rows: str, bias: bool = True) -> Split:
    """Layers split by outputs (``columns``, with their bias) and by inputs (``rows``).

    Args:
        columns: globs over the paths of layers whose kernels are (inputs, outputs), in one string.
        rows: the same.
        bias: whether the layers have a bias.
    """
    by_columns = [(f"*{layer}/kernel", 1) for layer in columns.split()]
    by_columns += [(f"*{layer}/bias", 0) for layer in columns.split() if bias]
    return (*by_columns, *((f"*{layer}/kernel", 0) for layer in rows.split()))


def gpt2() -> PublicModel:
    """GPT-2 of 124 M parameters; its kernels are (outputs, inputs), query, key and value in one."""
    tokens = integers(8, 1024)
    return PublicModel(
        "gpt2",
        "openai-community/gpt2",
        hf.FlaxGPT2LMHeadModel,
        hf.GPT2Config(),
        {"input_ids": tokens, "attention_mask": tokens},
        next_token,
        (
            ("*/attn/c_attn/*", 0),
            ("*/attn/c_proj/kernel", 1),
            ("*/mlp/c_fc/*", 0),
            ("*/mlp/c_proj/kernel", 1),
        ),
    )


def llama() -> PublicModel:
    """A Llama of the sizes of TinyLlama, 1.1 B parameters."""
    tokens = integers(4, 2048)
    return PublicModel(
        "llama",
        "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        hf.FlaxLlamaForCausalLM,
        hf.LlamaConfig(
            hidden_size=2048,
            intermediate_size=5632,
            num_hidden_layers=22,
            num_attention_heads=32,
            num_key_value_heads=4,
            max_position_embeddings=2048,
        ),
        {"input_ids": tokens, "attention_mask": tokens},
        next_token,
        split(
            "/self_attn/[qkv]_proj /mlp/gate_proj /mlp/up_proj", "/o_proj /down_proj", bias=False
        ),
    )


ENCODER = split(
    "/attention/*/query /attention/*/key /attention/*/value /intermediate/dense", "/output/dense"
)
"""The plan for the layers of BERT, RoBERTa and ViT."""


def vit() -> PublicModel:
    """ViT-base with patches of 16 pixels."""
    return PublicModel(
        "vit",
        "google/vit-base-patch16-224",
        hf.FlaxViTForImageClassification,
        hf.ViTConfig(num_labels=1000, hidden_dropout_prob=0.1),
        images(64),
        cross_entropy,
        ENCODER,
    )


def resnet50() -> PublicModel:
    """ResNet-50, with running statistics."""
    return PublicModel(
        "resnet50",
        "microsoft/resnet-50",
        hf.FlaxResNetForImageClassification,
        hf.ResNetConfig(num_labels=1000),
        images(64),
        cross_entropy,
        split("/classifier/1", ""),
    )


def bart() -> PublicModel:
    """BART-base."""
    source, target = integers(16, 512), integers(16, 128)
    return PublicModel(
        "bart",
        "facebook/bart-base",
        hf.FlaxBartForConditionalGeneration,
        hf.BartConfig(
            d_model=768,
            encoder_layers=6,
            decoder_layers=6,
            encoder_attention_heads=12,
            decoder_attention_heads=12,
            encoder_ffn_dim=3072,
            decoder_ffn_dim=3072,
            vocab_size=50265,
        ),
        {
            "input_ids": source,
            "attention_mask": source,
            "decoder_input_ids": target,
            "decoder_attention_mask": target,
            "labels": target,
        },
        cross_entropy,
        split("_attn/[qkv]_proj /fc1", "_attn/out_proj /fc2"),
        frozen=("final_logits_bias",),
    )


def roberta() -> PublicModel:
    """RoBERTa-base with the head of its pretraining."""
    tokens = integers(32, 128)
    return PublicModel(
        "roberta",
        "FacebookAI/roberta-base",
        hf.FlaxRobertaForMaskedLM,
        hf.RobertaConfig(
            vocab_size=50265,
            max_position_embeddings=514,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
        ),
        {"input_ids": tokens, "attention_mask": tokens, "labels": tokens},
        masked_tokens,
        ENCODER,
    )


MODELS = {model.__name__: model for model in (gpt2, llama, vit, resnet50, bart, roberta)}
"""Name -> what makes the model."""
