"""MLP-Mixer, which mixes patches by dense layers alone (arXiv 2105.01601)."""

from jax import named_scope

from parenvs.datasets.models.blocks import (
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


def mixer(
    layers: int = 24,
    width: int = 1024,
    token_hidden: int = 512,
    hidden: int = 4096,
    patch: int = 16,
    image: int = 224,
    classes: int = 1000,
    batch_size: int = 4096,
    scanned: bool = False,
    name: str = "mixer",
) -> Model:
    """Return an MLP-Mixer; the defaults are Mixer-L/16 (arXiv 2105.01601, Table 1).

    Args:
        layers: Mixer layers.
        width: Residual width.
        token_hidden: Width inside the blocks that mix tokens.
        hidden: Width inside the blocks that mix features.
        patch: Height and width of a patch in pixels.
        image: Height and width of the RGB images.
        classes: Number of classes.
        batch_size: Images in a batch.
        scanned: Whether the layers are a loop over stacked weights.
        name: Instance name.
    """
    tokens = (image // patch) ** 2

    def init() -> Tree:
        layer = {
            "tokens_norm": norm_shapes(width),
            "tokens": feed_forward_shapes(tokens, token_hidden),
            "features_norm": norm_shapes(width),
            "features": feed_forward_shapes(width, hidden),
        }
        return {
            "patches": dense_shapes(patch, patch, 3, width),
            "mixer": stack_shapes(layers, layer, scanned),
            "norm": norm_shapes(width),
            "predictions": dense_shapes(width, classes),
        }

    def block(weights: Tree, x: Array) -> Array:
        with named_scope("tokens"):
            y = layer_norm(weights["tokens_norm"], x).transpose(0, 2, 1)
            x += feed_forward(weights["tokens"], y).transpose(0, 2, 1)
        with named_scope("features"):
            return x + feed_forward(weights["features"], layer_norm(weights["features_norm"], x))

    def loss(params: Tree, batch: Tree) -> Array:
        with named_scope("patches"):
            x = patches(params["patches"], batch["images"], patch)
        with named_scope("mixer"):
            x = run_stack(params["mixer"], x, block, layers, scanned)
        with named_scope("predictions"):
            logits = dense(params["predictions"], layer_norm(params["norm"], x).mean(1))
        with named_scope("loss"):
            return cross_entropy(logits, batch["labels"])

    return Model(
        name,
        f"MLP-Mixer, {layers} layers, width {width}, patches of {patch}x{patch}",
        "arXiv 2105.01601",
        init,
        loss,
        {"images": floats(batch_size, image, image, 3), "labels": integers(batch_size)},
        batch_size,
        family="mixer",
        trained_as="arXiv 2105.01601, section 3: batch 4,096, Adam with weight decay",
        mixed=True,
        optimiser=adam(decay=0.1),
    )
