"""A recurrent language model of LSTMs with projections (arXiv 1602.02410)."""

import jax
import jax.numpy as jnp
from jax import lax, named_scope

from parenvs.datasets.models.layers import embed
from parenvs.datasets.models.model import Array, Model, Tree, floats, integers
from parenvs.datasets.models.optimisers import adagrad


def lstm(
    layers: int = 2,
    cells: int = 8192,
    width: int = 1024,
    vocab: int = 793_471,
    samples: int = 8192,
    tokens: int = 20,
    batch_size: int = 128,
    name: str = "lstm",
) -> Model:
    """Return a recurrent language model; the defaults are BIG LSTM (arXiv 1602.02410, Table 1).

    It is trained with a sampled softmax: the true word against ``samples`` words that the whole
    batch shares (section 3.1), which are an input. Each layer is a loop over time, in which the
    same weights work on one token after another.

    Args:
        layers: LSTM layers.
        cells: Cells of a layer.
        width: Width to which a layer's output is projected, and of the embedding.
        vocab: Size of the vocabulary.
        samples: Words that the softmax is sampled with.
        tokens: Length of a sequence: steps of the loop.
        batch_size: Sequences in a batch.
        name: Instance name.
    """

    def init() -> Tree:
        layer = {
            "input": floats(width, 4 * cells),
            "recurrent": floats(width, 4 * cells),
            "bias": floats(4 * cells),
            "projection": floats(cells, width),
        }
        return {
            "embedding": floats(vocab, width),
            "lstm": {f"layer_{i}": layer for i in range(layers)},
            "softmax": {"kernel": floats(vocab, width), "bias": floats(vocab)},
        }

    def recurrence(weights: Tree, x: Array) -> Array:
        """Run a layer over (tokens, batch, width)."""
        gates = x @ weights["input"] + weights["bias"]  # of all tokens at once

        def step(state: tuple[Array, Array], given: Array) -> tuple[tuple[Array, Array], Array]:
            hidden, cell = state
            i, f, g, o = jnp.split(given + hidden @ weights["recurrent"], 4, axis=-1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = (jax.nn.sigmoid(o) * jnp.tanh(cell)) @ weights["projection"]
            return (hidden, cell), hidden

        start = jnp.zeros(x.shape[1:], x.dtype), jnp.zeros((x.shape[1], cells), x.dtype)
        return lax.scan(step, start, gates)[1]

    def loss(params: Tree, batch: Tree) -> Array:
        with named_scope("embedding"):
            x = embed(params["embedding"], batch["tokens"]).astype(jnp.bfloat16)
            x = x.transpose(1, 0, 2)
        with named_scope("lstm"):
            for i in range(layers):
                with named_scope(f"layer_{i}"):
                    x = recurrence(params["lstm"][f"layer_{i}"], x)
        with named_scope("softmax"):
            x, kernel = x.transpose(1, 0, 2), params["softmax"]["kernel"]
            true = embed(kernel, batch["labels"]).astype(x.dtype)
            logit = (x * true).sum(-1).astype(jnp.float32)
            logit += embed(params["softmax"]["bias"], batch["labels"])
            drawn = embed(kernel, batch["samples"]).astype(x.dtype)
            logits = jnp.einsum("btd,sd->bts", x, drawn).astype(jnp.float32)
            logits += embed(params["softmax"]["bias"], batch["samples"])
        with named_scope("loss"):
            return (jnp.logaddexp(jax.nn.logsumexp(logits, -1), logit) - logit).mean()

    return Model(
        name,
        f"LSTM language model, {layers} layers of {cells} cells, projected to {width}",
        "arXiv 1602.02410",
        init,
        loss,
        {
            "tokens": integers(batch_size, tokens),
            "labels": integers(batch_size, tokens),
            "samples": integers(samples),
        },
        batch_size,
        family="lstm",
        trained_as="arXiv 1602.02410, section 4.4: batch 128, 20 steps, Adagrad, 8,192 samples",
        mixed=True,
        kept=("embedding", "softmax"),
        optimiser=adagrad(),
    )
