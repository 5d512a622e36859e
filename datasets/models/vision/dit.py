"""DiT, a diffusion transformer over latent patches (arXiv 2212.09748)."""

import jax
import jax.numpy as jnp
from jax import named_scope

from parenvs.datasets.models.blocks import (
    attention,
    attention_shapes,
    feed_forward,
    feed_forward_shapes,
    layer_norm,
    log_features,
    patches,
)
from parenvs.datasets.models.layers import dense, dense_shapes, embed
from parenvs.datasets.models.model import Array, Model, Tree, floats, integers
from parenvs.datasets.models.optimisers import adam

FREQUENCIES = 256
"""Sines and cosines of a diffusion step."""


def dit(
    layers: int = 28,
    width: int = 1152,
    heads: int = 16,
    patch: int = 2,
    image: int = 32,
    features: int = 4,
    classes: int = 1000,
    batch_size: int = 256,
    name: str = "dit",
) -> Model:
    """Return a diffusion transformer; the defaults are DiT-XL/2 (arXiv 2212.09748, Table 1).

    Each layer is shifted, scaled and gated by the image's class and diffusion step (adaLN-Zero).
    Positions are sines, which are not learned. It predicts the noise and its variance, of which
    the loss here takes the first.

    Args:
        layers: Transformer layers.
        width: Residual width; feed-forward blocks are four times as wide.
        heads: Attention heads.
        patch: Height and width of a patch of latents.
        image: Height and width of the latents.
        features: Features of the latents.
        classes: Number of classes; one more stands for none.
        batch_size: Images in a batch.
        name: Instance name.
    """
    side = image // patch
    tokens = side * side

    def init() -> Tree:
        layer = {
            "attention": attention_shapes(width),
            "ffn": feed_forward_shapes(width, 4 * width),
            "modulation": dense_shapes(width, 6 * width),
        }
        return {
            "patches": dense_shapes(patch, patch, features, width),
            "step": {"in": dense_shapes(FREQUENCIES, width), "out": dense_shapes(width, width)},
            "classes": floats(classes + 1, width),
            "dit": {f"layer_{i}": layer for i in range(layers)},
            "final": {
                "modulation": dense_shapes(width, 2 * width),
                **dense_shapes(width, patch * patch * 2 * features),
            },
        }

    def modulated(x: Array, shift: Array, scale: Array) -> Array:
        return layer_norm({}, x, 1e-6) * (1 + scale[:, None]) + shift[:, None]

    def loss(params: Tree, batch: Tree) -> Array:
        with named_scope("patches"):
            x = patches(params["patches"], batch["latents"], patch)
            position = jnp.arange(tokens)
            sides = [log_features(part, width // 2) for part in (position // side, position % side)]
            x += jnp.concatenate(sides, -1).astype(x.dtype)
        with named_scope("condition"):
            y = log_features(batch["steps"], FREQUENCIES).astype(x.dtype)
            y = dense(params["step"]["out"], jax.nn.silu(dense(params["step"]["in"], y)))
            y = jax.nn.silu(y + embed(params["classes"], batch["labels"]))
        with named_scope("dit"):
            for i in range(layers):
                weights = params["dit"][f"layer_{i}"]
                with named_scope(f"layer_{i}"):
                    with named_scope("modulation"):
                        given = jnp.split(dense(weights["modulation"], y), 6, axis=-1)
                    with named_scope("attention"):
                        z = modulated(x, given[0], given[1])
                        z = attention(weights["attention"], z, z, heads)
                        x += given[2][:, None] * z
                    with named_scope("ffn"):
                        z = feed_forward(weights["ffn"], modulated(x, given[3], given[4]))
                        x += given[5][:, None] * z
        with named_scope("final"):
            shift, scale = jnp.split(dense(params["final"]["modulation"], y), 2, axis=-1)
            x = dense(params["final"], modulated(x, shift, scale))
            x = x.reshape(batch_size, side, side, patch, patch, 2 * features)[..., :features]
        with named_scope("loss"):
            noise = batch["noise"].reshape(batch_size, side, patch, side, patch, features)
            error = x.astype(jnp.float32) - noise.transpose(0, 1, 3, 2, 4, 5)
            return jnp.square(error).mean()

    latents = floats(batch_size, image, image, features)
    return Model(
        name,
        f"DiT, {layers} layers, width {width}, {patch}x{patch} patches of {image}x{image} latents",
        "arXiv 2212.09748",
        init,
        loss,
        {
            "latents": latents,
            "noise": latents,
            "steps": integers(batch_size),
            "labels": integers(batch_size),
        },
        batch_size,
        family="dit",
        trained_as="arXiv 2212.09748, section 4: batch 256, AdamW",
        mixed=True,
        optimiser=adam(1e-4),
    )
