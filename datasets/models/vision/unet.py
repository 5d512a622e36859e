"""The U-Net of a latent diffusion model, with attention to a text (arXiv 2112.10752)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import named_scope

from parenvs.datasets.models.blocks import (
    attention,
    attention_shapes,
    group_norm,
    layer_norm,
    log_features,
)
from parenvs.datasets.models.layers import conv, dense, dense_shapes, embed, norm_shapes
from parenvs.datasets.models.model import Array, Model, Tree, floats, integers
from parenvs.datasets.models.optimisers import adam

STEPS, FIRST, LAST = 1000, 0.00085, 0.012
"""Steps of the diffusion, and the variance of the noise that the first and the last one add."""


def unet(
    widths: Sequence[int] = (320, 640, 1280, 1280),
    attends: Sequence[bool] = (True, True, True, False),
    blocks: int = 2,
    heads: int = 8,
    image: int = 64,
    features: int = 4,
    text: tuple[int, int] = (77, 768),
    batch_size: int = 2048,
    name: str = "unet",
) -> Model:
    """Return a diffusion U-Net; the defaults are that of Stable Diffusion v1.

    It predicts the noise in latents. Text enters by attention from each place of the image to
    the encoded tokens, which come from elsewhere.

    Args:
        widths: Features at each level, from the largest images to the smallest.
        attends: Whether the blocks of a level have attention.
        blocks: Residual blocks of a level on the way down; there is one more on the way up.
        heads: Attention heads.
        image: Height and width of the latents.
        features: Features of the latents.
        text: Tokens and width of the encoded text.
        batch_size: Images in a batch.
        name: Instance name.
    """
    wide = 4 * widths[0]  # of the diffusion step's embedding

    def residual_shapes(inputs: int, outputs: int) -> Tree:
        result = {
            "norm1": norm_shapes(inputs),
            "conv1": dense_shapes(3, 3, inputs, outputs),
            "step": dense_shapes(wide, outputs),
            "norm2": norm_shapes(outputs),
            "conv2": dense_shapes(3, 3, outputs, outputs),
        }
        if inputs != outputs:
            result["shortcut"] = dense_shapes(1, 1, inputs, outputs)
        return result

    def transformer_shapes(width: int) -> Tree:
        return {
            "norm": norm_shapes(width),
            "in": dense_shapes(width, width),
            "self_norm": norm_shapes(width),
            "self": attention_shapes(width, "o"),
            "cross_norm": norm_shapes(width),
            "cross": attention_shapes(width, "o", text[1]),
            "ffn_norm": norm_shapes(width),
            "ffn": {
                "gate": dense_shapes(width, 4 * width),
                "up": dense_shapes(width, 4 * width),
                "down": dense_shapes(4 * width, width),
            },
            "out": dense_shapes(width, width),
        }

    def block_shapes(inputs: int, outputs: int, with_attention: bool) -> Tree:
        result = {"residual": residual_shapes(inputs, outputs)}
        if with_attention:
            result["transformer"] = transformer_shapes(outputs)
        return result

    def init() -> Tree:
        params: Tree = {
            "step": {"in": dense_shapes(widths[0], wide), "out": dense_shapes(wide, wide)},
            "stem": dense_shapes(3, 3, features, widths[0]),
        }
        skips, now = [widths[0]], widths[0]
        for level, width in enumerate(widths):
            for i in range(blocks):
                params[f"down{level}_block{i}"] = block_shapes(now, width, attends[level])
                now = width
                skips.append(now)
            if level + 1 < len(widths):
                params[f"down{level}_resize"] = dense_shapes(3, 3, now, now)
                skips.append(now)
        params["middle_block0"] = block_shapes(now, now, True)
        params["middle_block1"] = block_shapes(now, now, False)
        for level in reversed(range(len(widths))):
            for i in range(blocks + 1):
                params[f"up{level}_block{i}"] = block_shapes(
                    now + skips.pop(), widths[level], attends[level]
                )
                now = widths[level]
            if level:
                params[f"up{level}_resize"] = dense_shapes(3, 3, now, now)
        params["final"] = {"norm": norm_shapes(now), **dense_shapes(3, 3, now, features)}
        return params

    def convolved(weights: Tree, x: Array, stride: int = 1) -> Array:
        return conv(weights["kernel"], x, stride) + weights["bias"]

    def residual(weights: Tree, x: Array, step: Array) -> Array:
        y = convolved(weights["conv1"], jax.nn.silu(group_norm(weights["norm1"], x)))
        y += dense(weights["step"], step)[:, None, None]
        y = convolved(weights["conv2"], jax.nn.silu(group_norm(weights["norm2"], y)))
        return y + (convolved(weights["shortcut"], x) if "shortcut" in weights else x)

    def transformer(weights: Tree, x: Array, tokens: Array) -> Array:
        y = group_norm(weights["norm"], x, epsilon=1e-6).reshape(len(x), -1, x.shape[-1])
        y = dense(weights["in"], y)
        with named_scope("self"):
            z = layer_norm(weights["self_norm"], y)
            y += attention(weights["self"], z, z, heads)
        with named_scope("cross"):
            y += attention(weights["cross"], layer_norm(weights["cross_norm"], y), tokens, heads)
        with named_scope("ffn"):
            z, ffn = layer_norm(weights["ffn_norm"], y), weights["ffn"]
            y += dense(ffn["down"], dense(ffn["up"], z) * jax.nn.gelu(dense(ffn["gate"], z)))
        return x + dense(weights["out"], y).reshape(x.shape)

    def loss(params: Tree, batch: Tree) -> Array:
        tokens = batch["text"].astype(jnp.bfloat16)

        def run(key: str, x: Array, step: Array) -> Array:
            with named_scope(key):
                x = residual(params[key]["residual"], x, step)
                if "transformer" in params[key]:
                    with named_scope("transformer"):
                        x = transformer(params[key]["transformer"], x, tokens)
            return x

        with named_scope("noise"):
            added = np.linspace(FIRST**0.5, LAST**0.5, STEPS) ** 2
            signal = jnp.asarray(np.cumprod(1 - added), jnp.float32)
            signal = embed(signal, batch["steps"])[:, None, None, None]
            x = jnp.sqrt(signal) * batch["latents"] + jnp.sqrt(1 - signal) * batch["noise"]
            x = x.astype(jnp.bfloat16)
        with named_scope("step"):
            step = log_features(batch["steps"], widths[0]).astype(jnp.bfloat16)
            step = dense(params["step"]["in"], step)
            step = jax.nn.silu(dense(params["step"]["out"], jax.nn.silu(step)))
        with named_scope("stem"):
            x = convolved(params["stem"], x)
        skips = [x]
        for level in range(len(widths)):
            for i in range(blocks):
                x = run(f"down{level}_block{i}", x, step)
                skips.append(x)
            if level + 1 < len(widths):
                with named_scope(f"down{level}_resize"):
                    x = convolved(params[f"down{level}_resize"], x, 2)
                    skips.append(x)
        x = run("middle_block1", run("middle_block0", x, step), step)
        for level in reversed(range(len(widths))):
            for i in range(blocks + 1):
                x = run(f"up{level}_block{i}", jnp.concatenate([x, skips.pop()], -1), step)
            if level:
                with named_scope(f"up{level}_resize"):
                    x = convolved(params[f"up{level}_resize"], twice(x))
        with named_scope("final"):
            x = convolved(params["final"], jax.nn.silu(group_norm(params["final"]["norm"], x)))
        with named_scope("loss"):
            return jnp.square(x.astype(jnp.float32) - batch["noise"]).mean()

    latents = floats(batch_size, image, image, features)
    return Model(
        name,
        f"diffusion U-Net, widths {'-'.join(map(str, widths))}, {image}x{image} latents, text",
        "arXiv 2112.10752; Stable Diffusion v1 model card",
        init,
        loss,
        {
            "latents": latents,
            "noise": latents,
            "steps": integers(batch_size),
            "text": floats(batch_size, *text),
        },
        batch_size,
        family="unet",
        trained_as="Stable Diffusion v1 model card: batch 2,048, AdamW",
        mixed=True,
        optimiser=adam(1e-4, decay=0.01),
    )


def twice(x: Array) -> Array:
    """Return images (batch, height, width, features) twice as large, each pixel four times."""
    batch, height, width, features = x.shape
    x = jnp.broadcast_to(x[:, :, None, :, None], (batch, height, 2, width, 2, features))
    return x.reshape(batch, 2 * height, 2 * width, features)
