"""Small variants of the shipped models, one of each family, with random weights to run them on."""

import jax
import jax.numpy as jnp
import numpy as np
from multimodal_models import clip, dlrm, whisper

from parenvs.datasets import models
from parenvs.datasets.models.model import Model

DECODER = {"layers": 3, "width": 32, "heads": 4, "vocab": 100, "tokens": 16, "batch_size": 4}
LLAMA = DECODER | {"hidden": 48, "kv_heads": 2}
VIT = {"layers": 3, "width": 32, "hidden": 64, "patch": 4, "image": 16, "classes": 10}
SMALL = {
    "llama": (models.llama, LLAMA),
    "gpt": (models.gpt, DECODER),
    "mixtral": (models.mixtral, LLAMA | {"experts": 4, "group": 8}),
    "vit": (models.vit, VIT | {"heads": 4, "batch_size": 4}),
    "mixer": (models.mixer, VIT | {"token_hidden": 8, "batch_size": 4}),
    "lstm": (models.lstm, {"cells": 16, "width": 8, "vocab": 50, "samples": 20, "tokens": 5}),
    "dit": (models.dit, {"layers": 2, "width": 32, "heads": 4, "image": 8, "classes": 10}),
    "unet": (
        models.unet,
        {"widths": (32, 64), "attends": (True, False), "blocks": 1, "heads": 4, "image": 8},
    ),
    "resnet": (models.resnet, {"stages": ((8, 1), (16, 2)), "classes": 10, "image": 32}),
    "convnext": (models.convnext, {"stages": ((8, 1), (16, 1)), "classes": 10, "image": 16}),
    "clip": (
        clip,
        {"image_layers": 2, "image_width": 32, "text_layers": 2, "text_width": 32, "shared": 16}
        | {"patch": 4, "image": 16, "vocab": 50, "tokens": 8, "head": 8},
    ),
    "whisper": (
        whisper,
        {"layers": 2, "width": 32, "heads": 4, "frequencies": 8, "frames": 16, "vocab": 50}
        | {"tokens": 8},
    ),
    "dlrm": (dlrm, {"rows": (10, 20, 30), "width": 8, "bottom": (16, 8), "top": (16, 1)}),
}
"""Family -> the function that makes its models, and small sizes."""
SCANNED = ("llama", "gpt", "mixtral", "vit", "mixer")
"""Families whose layers can be a loop."""


def small(family: str, **options: object) -> Model:
    """A small model of a family."""
    make, sizes = SMALL[family]
    return make(**{"batch_size": 4, **sizes, **options})


def drawn(model: Model, seed: int = 0) -> tuple[object, ...]:
    """Arguments of a training step: random weights, moments of zero, statistics, a batch."""
    rng = np.random.default_rng(seed)

    def weight(shape: jax.ShapeDtypeStruct) -> jax.Array:
        if len(shape.shape) < 2:
            return jnp.asarray(1 + 0.1 * rng.normal(size=shape.shape), shape.dtype)
        return jnp.asarray(rng.normal(size=shape.shape) * shape.shape[-2] ** -0.5, shape.dtype)

    def given(key: str, shape: jax.ShapeDtypeStruct) -> jax.Array:
        if shape.dtype == jnp.int32:
            return jnp.asarray(rng.integers(0, 2 if key == "clicked" else 9, shape.shape))
        return jnp.asarray(rng.normal(size=shape.shape), shape.dtype)

    params = jax.tree.map(weight, model.params)
    state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), model.optimizer.init(model.params))
    batch = {key: given(key, shape) for key, shape in model.batch.items()}
    statistics = [jax.tree.map(lambda x: jnp.ones(x.shape), tree) for tree in model.shapes[1:]]
    return params, state, *statistics, batch
