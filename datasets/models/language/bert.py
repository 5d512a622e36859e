"""BERT, the encoder transformer with its two pre-training losses (arXiv 1810.04805)."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import named_scope

from parenvs.datasets.models.layers import (
    MASKED,
    attention,
    cross_entropy,
    dense,
    dense_shapes,
    embed,
    feed_forward,
    ffn_shapes,
    layer_norm,
    norm_shapes,
)
from parenvs.datasets.models.model import Array, Model, Tree, floats, integers


def bert(
    layers: int = 24,
    hidden: int = 1024,
    heads: int = 16,
    intermediate: int = 4096,
    vocab: int = 30522,
    positions: int = 512,
    tokens: int = 512,
    predictions: int = 76,
    batch_size: int = 64,
    name: str = "bert",
) -> Model:
    """Return BERT with its two pre-training losses; the defaults are BERT-large.

    Sizes are those of arXiv 1810.04805, section 3, and of its released uncased vocabulary. As in
    the released code, only the masked positions, 15 % of 512, go through the vocabulary's softmax.

    Args:
        layers: Encoder layers.
        hidden: Residual width.
        heads: Attention heads.
        intermediate: Hidden width of the feed-forward blocks.
        vocab: Size of the vocabulary.
        positions: Rows of the position table, at least ``tokens``.
        tokens: Length of a sequence.
        predictions: Masked positions of a sequence.
        batch_size: Sequences in a batch.
        name: Instance name.
    """

    def init() -> Tree:
        encoder = {
            f"layer_{i}": {
                "self": {key: dense_shapes(hidden, hidden) for key in "qkvo"},
                "self_norm": norm_shapes(hidden),
                "ffn_norm": norm_shapes(hidden),
                **ffn_shapes(hidden, intermediate),
            }
            for i in range(layers)
        }
        embeddings = {
            "words": floats(vocab, hidden),
            "positions": floats(positions, hidden),
            "types": floats(2, hidden),
            "norm": norm_shapes(hidden),
        }
        return {
            "embeddings": embeddings,
            "encoder": encoder,
            "pooler": dense_shapes(hidden, hidden),
            "next_sentence": dense_shapes(hidden, 2),
            "mlm": {
                **dense_shapes(hidden, hidden),
                "norm": norm_shapes(hidden),
                "output_bias": floats(vocab),
            },
        }

    def loss(params: Tree, batch: Tree) -> Array:
        tables, norm = params["embeddings"], partial(layer_norm, epsilon=1e-12)
        with named_scope("embeddings"):
            x = embed(tables["words"], batch["input_ids"]) + tables["positions"][:tokens]
            x = norm(tables["norm"], x + embed(tables["types"], batch["token_type_ids"]))
        with named_scope("encoder"):
            bias = (1.0 - batch["attention_mask"].astype(jnp.float32))[:, None, None, :] * MASKED
            for i in range(layers):
                weights = params["encoder"][f"layer_{i}"]
                with named_scope(f"layer_{i}"):
                    with named_scope("self"):
                        y = attention(weights["self"], x, x, heads, bias, (hidden // heads) ** -0.5)
                        x = norm(weights["self_norm"], x + y)
                    with named_scope("ffn"):
                        x = norm(weights["ffn_norm"], x + feed_forward(weights, x, jax.nn.gelu))
        with named_scope("next_sentence"):
            pooled = jnp.tanh(dense(params["pooler"], x[:, 0]))
            logits = dense(params["next_sentence"], pooled)
            sentence_loss = cross_entropy(logits, batch["nsp_labels"])
        with named_scope("mlm"):
            masked = jnp.take_along_axis(x, batch["mlm_positions"][..., None], axis=1, mode="clip")
            y = norm(params["mlm"]["norm"], jax.nn.gelu(dense(params["mlm"], masked)))
            logits = jnp.einsum("bth,vh->btv", y, tables["words"]) + params["mlm"]["output_bias"]
            return cross_entropy(logits, batch["mlm_labels"]) + sentence_loss

    sequences = "input_ids", "token_type_ids", "attention_mask"
    batch = {
        **{key: integers(batch_size, tokens) for key in sequences},
        **{key: integers(batch_size, predictions) for key in ("mlm_positions", "mlm_labels")},
        "nsp_labels": integers(batch_size),
    }
    description = f"BERT, {layers} layers, width {hidden}, FFN {intermediate}, {heads} heads"
    return Model(
        name, description, "arXiv 1810.04805", init, loss, batch, batch_size, family="bert"
    )
