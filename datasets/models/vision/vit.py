"""ViT, the transformer over patches of an image (arXiv 2010.11929)."""

import jax.numpy as jnp
from jax import named_scope

from parenvs.datasets.models.blocks import (
    attention,
    attention_shapes,
    cross_entropy,
    feed_forward,
    feed_forward_shapes,
    layer_norm,
    patches,
)
from parenvs.datasets.models.layers import dense, dense_shapes, norm_shapes
from parenvs.datasets.models.model import Array, Model, Tree, floats, integers
from parenvs.datasets.models.optimisers import adam
from parenvs.datasets.models.stack import run_stack, stack_shapes


def vit(
    layers: int = 32,
    width: int = 1280,
    hidden: int = 5120,
    heads: int = 16,
    patch: int = 14,
    image: int = 224,
    classes: int = 1000,
    batch_size: int = 4096,
    scanned: bool = False,
    name: str = "vit",
) -> Model:
    """Return a vision transformer; the defaults are ViT-H/14 (arXiv 2010.11929, Table 1).

    Args:
        layers: Encoder layers.
        width: Residual width.
        hidden: Width inside the feed-forward blocks.
        heads: Attention heads.
        patch: Height and width of a patch in pixels.
        image: Height and width of the RGB images.
        classes: Number of classes.
        batch_size: Images in a batch.
        scanned: Whether the layers are a loop over stacked weights.
        name: Instance name.
    """
    tokens = (image // patch) ** 2 + 1

    def init() -> Tree:
        layer = {
            "attention_norm": norm_shapes(width),
            "attention": attention_shapes(width),
            "ffn_norm": norm_shapes(width),
            "ffn": feed_forward_shapes(width, hidden),
        }
        return {
            "patches": dense_shapes(patch, patch, 3, width),
            "class": floats(1, 1, width),
            "positions": floats(1, tokens, width),
            "encoder": stack_shapes(layers, layer, scanned),
            "norm": norm_shapes(width),
            "predictions": dense_shapes(width, classes),
        }

    def block(weights: Tree, x: Array) -> Array:
        with named_scope("attention"):
            y = layer_norm(weights["attention_norm"], x)
            x += attention(weights["attention"], y, y, heads)
        with named_scope("ffn"):
            return x + feed_forward(weights["ffn"], layer_norm(weights["ffn_norm"], x))

    def loss(params: Tree, batch: Tree) -> Array:
        with named_scope("patches"):
            x = patches(params["patches"], batch["images"], patch)
            first = jnp.broadcast_to(params["class"], (batch_size, 1, width))
            x = jnp.concatenate([first, x], 1) + params["positions"]
        with named_scope("encoder"):
            x = run_stack(params["encoder"], x, block, layers, scanned)
        with named_scope("predictions"):
            logits = dense(params["predictions"], layer_norm(params["norm"], x[:, 0]))
        with named_scope("loss"):
            return cross_entropy(logits, batch["labels"])

    return Model(
        name,
        f"ViT, {layers} layers, width {width}, patches of {patch}x{patch} in {image}x{image}",
        "arXiv 2010.11929",
        init,
        loss,
        {"images": floats(batch_size, image, image, 3), "labels": integers(batch_size)},
        batch_size,
        family="vit",
        trained_as="arXiv 2010.11929, Table 3: batch 4,096, Adam with weight decay",
        mixed=True,
        optimiser=adam(decay=0.1),
    )
