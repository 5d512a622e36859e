"""VGG, the convolutional network (arXiv 1409.1556)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax, named_scope

from parenvs.datasets.models.layers import conv, cross_entropy, dense, dense_shapes
from parenvs.datasets.models.model import Array, Model, Tree, floats, integers


def vgg(
    blocks: Sequence[tuple[int, int]] = ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512)),
    hidden: int = 4096,
    classes: int = 1000,
    image: int = 224,
    batch_size: int = 64,
    name: str = "vgg",
) -> Model:
    """Return a VGG network; the defaults are VGG-19 (arXiv 1409.1556, Table 1, configuration E).

    Args:
        blocks: Number and width of the 3x3 convolutions of each block, which a 2x2 max pool ends.
        hidden: Width of fc1 and fc2.
        classes: Number of classes.
        image: Height and width of the RGB images.
        batch_size: Images in a batch.
        name: Instance name.
    """

    def init() -> Tree:
        params, features = {}, 3
        for block, (convolutions, width) in enumerate(blocks, 1):
            for i in range(1, convolutions + 1):
                params[f"block{block}_conv{i}"] = dense_shapes(3, 3, features, width)
                features = width
        flat = features * (image >> len(blocks)) ** 2
        return params | {
            "fc1": dense_shapes(flat, hidden),
            "fc2": dense_shapes(hidden, hidden),
            "predictions": dense_shapes(hidden, classes),
        }

    def loss(params: Tree, batch: Tree) -> Array:
        x = batch["images"]
        for block, (convolutions, _) in enumerate(blocks, 1):
            for i in range(1, convolutions + 1):
                with named_scope(f"block{block}_conv{i}"):
                    weights = params[f"block{block}_conv{i}"]
                    x = jax.nn.relu(conv(weights["kernel"], x) + weights["bias"])
            with named_scope(f"block{block}_pool"):
                x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = x.reshape(batch_size, -1)
        for layer in "fc1", "fc2":
            with named_scope(layer):
                x = jax.nn.relu(dense(params[layer], x))
        with named_scope("predictions"):
            logits = dense(params["predictions"], x)
        with named_scope("loss"):
            return cross_entropy(logits, batch["labels"])

    batch = {"images": floats(batch_size, image, image, 3), "labels": integers(batch_size)}
    depth = sum(convolutions for convolutions, _ in blocks) + 3
    description = f"VGG of {depth} layers, {image}x{image} images"
    return Model(name, description, "arXiv 1409.1556", init, loss, batch, batch_size, family="vgg")
