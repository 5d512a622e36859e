"""ConvNeXt, a convolutional network in the shape of a transformer (arXiv 2201.03545)."""

from collections.abc import Sequence

import jax
from jax import lax, named_scope

from parenvs.datasets.models.blocks import (
    cross_entropy,
    feed_forward,
    feed_forward_shapes,
    layer_norm,
)
from parenvs.datasets.models.layers import dense, dense_shapes, norm_shapes
from parenvs.datasets.models.model import Array, Model, Tree, floats, integers
from parenvs.datasets.models.optimisers import adam


def convnext(
    stages: Sequence[tuple[int, int]] = ((192, 3), (384, 3), (768, 27), (1536, 3)),
    classes: int = 1000,
    image: int = 224,
    batch_size: int = 4096,
    name: str = "convnext",
) -> Model:
    """Return a ConvNeXt; the defaults are ConvNeXt-L (arXiv 2201.03545, section 3).

    Args:
        stages: Width and number of blocks of each stage.
        classes: Number of classes.
        image: Height and width of the RGB images.
        batch_size: Images in a batch.
        name: Instance name.
    """

    def init() -> Tree:
        params: Tree = {}
        before = 3
        for stage, (width, blocks) in enumerate(stages):
            size = 2 if stage else 4
            params[f"stage{stage}_down"] = {
                "norm": norm_shapes(before if stage else width),
                **dense_shapes(size, size, before, width),
            }
            for i in range(blocks):
                params[f"stage{stage}_block{i}"] = {
                    "depthwise": dense_shapes(7, 7, 1, width),
                    "norm": norm_shapes(width),
                    "ffn": feed_forward_shapes(width, 4 * width),
                    "scale": floats(width),
                }
            before = width
        return {**params, "norm": norm_shapes(before), "predictions": dense_shapes(before, classes)}

    def convolved(weights: Tree, x: Array, stride: int, groups: int = 1) -> Array:
        padding, layout = ("SAME" if stride == 1 else "VALID"), ("NHWC", "HWIO", "NHWC")
        x = lax.conv_general_dilated(
            x,
            weights["kernel"],
            (stride, stride),
            padding,
            dimension_numbers=layout,
            feature_group_count=groups,
        )
        return x + weights["bias"]

    def loss(params: Tree, batch: Tree) -> Array:
        x = batch["images"].astype(jax.numpy.bfloat16)
        for stage, (width, blocks) in enumerate(stages):
            key = f"stage{stage}_down"
            with named_scope(key):
                if stage:
                    x = convolved(params[key], layer_norm(params[key]["norm"], x), 2)
                else:
                    x = layer_norm(params[key]["norm"], convolved(params[key], x, 4))
            for i in range(blocks):
                key = f"stage{stage}_block{i}"
                with named_scope(key):
                    weights = params[key]
                    y = layer_norm(weights["norm"], convolved(weights["depthwise"], x, 1, width))
                    x += weights["scale"] * feed_forward(weights["ffn"], y)
        with named_scope("predictions"):
            logits = dense(params["predictions"], layer_norm(params["norm"], x.mean((1, 2))))
        with named_scope("loss"):
            return cross_entropy(logits, batch["labels"])

    return Model(
        name,
        f"ConvNeXt, blocks {'-'.join(str(n) for _, n in stages)}, widest {stages[-1][0]}",
        "arXiv 2201.03545",
        init,
        loss,
        {"images": floats(batch_size, image, image, 3), "labels": integers(batch_size)},
        batch_size,
        family="convnext",
        trained_as="arXiv 2201.03545, Table 5: batch 4,096, AdamW",
        mixed=True,
        optimiser=adam(4e-3, decay=0.05),
    )
