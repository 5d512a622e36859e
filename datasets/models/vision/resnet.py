"""ResNet-50, the residual convolutional network (arXiv 1512.03385)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax, named_scope

from parenvs.datasets.models.blocks import cross_entropy
from parenvs.datasets.models.layers import conv, dense, dense_shapes, norm_shapes
from parenvs.datasets.models.model import Array, Model, Tree, floats, integers
from parenvs.datasets.models.optimisers import momentum

AVERAGE = 0.9
"""Share of the running statistics that stays in each step (arXiv 1706.02677, section 5.1)."""


def resnet(
    stages: Sequence[tuple[int, int]] = ((64, 3), (128, 4), (256, 6), (512, 3)),
    classes: int = 1000,
    image: int = 224,
    batch_size: int = 256,
    name: str = "resnet",
) -> Model:
    """Return a residual network; the defaults are ResNet-50 v1.5 (arXiv 1512.03385, Table 1).

    As in v1.5, the 3x3 convolution of a block has the stride. Batch normalisation keeps running
    means and variances, which the loss returns anew.

    Args:
        stages: Width of the 3x3 convolutions and number of blocks of each stage.
        classes: Number of classes.
        image: Height and width of the RGB images.
        batch_size: Images in a batch.
        name: Instance name.
    """

    def tree(unit: Sequence[int], make: bool) -> Tree:
        """Shapes of a convolution with its normalisation, or those of its statistics."""
        if make:
            return {"kernel": floats(*unit), "norm": norm_shapes(unit[-1])}
        return {"mean": floats(unit[-1]), "variance": floats(unit[-1])}

    def units(make: bool) -> Tree:
        result: Tree = {"stem": tree((7, 7, 3, stages[0][0]), make)}
        features = stages[0][0]
        for stage, (width, blocks) in enumerate(stages, 1):
            for i in range(blocks):
                result[f"stage{stage}_block{i}"] = block = {
                    "conv1": tree((1, 1, features, width), make),
                    "conv2": tree((3, 3, width, width), make),
                    "conv3": tree((1, 1, width, 4 * width), make),
                }
                if i == 0:
                    block["shortcut"] = tree((1, 1, features, 4 * width), make)
                features = 4 * width
        return result

    def init() -> Tree:
        return {**units(True), "predictions": dense_shapes(4 * stages[-1][0], classes)}

    def unit(weights: Tree, running: Tree, x: Array, stride: int = 1) -> tuple[Array, Tree]:
        """Convolve and normalise; return the new statistics too."""
        x = conv(weights["kernel"], x, stride)
        y = x.astype(jnp.float32)
        mean = y.mean((0, 1, 2))
        variance = jnp.square(y).mean((0, 1, 2)) - jnp.square(mean)
        new = {
            "mean": AVERAGE * running["mean"] + (1 - AVERAGE) * mean,
            "variance": AVERAGE * running["variance"] + (1 - AVERAGE) * variance,
        }
        scale = weights["norm"]["scale"] * lax.rsqrt(variance + 1e-5)
        return ((y - mean) * scale + weights["norm"]["bias"]).astype(x.dtype), new

    def loss(params: Tree, statistics: Tree, batch: Tree) -> tuple[Array, Tree]:
        new: Tree = {}
        with named_scope("stem"):
            images = batch["images"].astype(jnp.bfloat16)
            x, new["stem"] = unit(params["stem"], statistics["stem"], images, 2)
            padding = (0, 0), (1, 1), (1, 1), (0, 0)
            x = jax.nn.relu(x)
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), padding)
        for stage, (_, blocks) in enumerate(stages, 1):
            for i in range(blocks):
                key, stride = f"stage{stage}_block{i}", 2 if stage > 1 and i == 0 else 1
                weights, running, result = params[key], statistics[key], {}
                with named_scope(key):
                    y, result["conv1"] = unit(weights["conv1"], running["conv1"], x)
                    y = jax.nn.relu(y)
                    y, result["conv2"] = unit(weights["conv2"], running["conv2"], y, stride)
                    y = jax.nn.relu(y)
                    y, result["conv3"] = unit(weights["conv3"], running["conv3"], y)
                    if i == 0:
                        with named_scope("shortcut"):
                            x, result["shortcut"] = unit(
                                weights["shortcut"], running["shortcut"], x, stride
                            )
                    x = jax.nn.relu(x + y)
                new[key] = result
        with named_scope("predictions"):
            logits = dense(params["predictions"], x.mean((1, 2)))
        with named_scope("loss"):
            return cross_entropy(logits, batch["labels"]), new

    return Model(
        name,
        f"ResNet v1.5 of {3 * sum(n for _, n in stages) + 2} layers, {image}x{image} images",
        "arXiv 1512.03385",
        init,
        loss,
        {"images": floats(batch_size, image, image, 3), "labels": integers(batch_size)},
        batch_size,
        family="resnet",
        trained_as="arXiv 1706.02677, section 5.1: 256 images on 8 devices, momentum",
        mixed=True,
        optimiser=momentum(),
        statistics=lambda: units(False),
    )
