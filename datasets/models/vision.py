"""Models of images: ConvNeXt, DiT, MLP-Mixer, ResNet, a diffusion U-Net and ViT."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, named_scope

import parenvs.datasets.models.blocks as nn
from parenvs.datasets.models.model import (
    Array,
    Model,
    Tree,
    adam,
    floats,
    integers,
    momentum,
    weight,
)  # fmt: skip


def convnext(
    stages: Sequence[tuple[int, int]] = ((192, 3), (384, 3), (768, 27), (1536, 3)),
    classes: int = 1000,
    image: int = 224,
    batch_size: int = 4096,
) -> Model:
    """Return a ConvNeXt; the defaults are ConvNeXt-L (arXiv 2201.03545, section 3).

    ``stages`` holds width and number of blocks of each stage.
    """

    def loss(params: Tree, batch: Tree) -> Array:
        x = batch["images"].astype(jax.numpy.bfloat16)
        for stage, (width, blocks) in enumerate(stages):
            key = f"stage{stage}_down"
            with named_scope(key):
                # The stem is normalized behind its convolution, later stages before theirs.
                weights = params[key]
                if stage:
                    x = nn.layer_norm(weights["norm"], x)
                    x = nn.conv(weights, x, width, 2, 2, "VALID")
                else:
                    x = nn.conv(weights, x, width, 4, 4, "VALID")
                    x = nn.layer_norm(weights["norm"], x)
            for i in range(blocks):
                key = f"stage{stage}_block{i}"
                with named_scope(key):
                    weights = params[key]
                    y = nn.conv(weights["depthwise"], x, width, 7, groups=width)
                    y = nn.layer_norm(weights["norm"], y)
                    y = nn.feed_forward(weights["ffn"], y, 4 * width)
                    x += weight(weights, "scale", width) * y
        norm = params["norm"]
        return nn.classified(params, batch, classes, lambda: nn.layer_norm(norm, x.mean((1, 2))))

    line = f"ConvNeXt, blocks {'-'.join(str(n) for _, n in stages)}, widest {stages[-1][0]}"
    trained_as = "arXiv 2201.03545, Table 5: batch 4,096, AdamW"
    batch = nn.labeled_images(batch_size, image)
    source = "arXiv 2201.03545"
    return Model("convnext", line, source, loss, batch, trained_as, adam(4e-3, decay=0.05))


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
) -> Model:
    """Return a diffusion transformer; the defaults are DiT-XL/2 (arXiv 2212.09748, Table 1).

    Each layer is shifted, scaled and gated by the image's class and diffusion step (adaLN-Zero).
    Positions are sines, which are not learned. It predicts the noise and its variance, of which
    the loss here takes the first. ``patch`` and ``image`` count latents of ``features`` features;
    one class beyond ``classes`` stands for none.
    """
    side = image // patch
    tokens = side * side

    def modulated(x: Array, shift: Array, scale: Array) -> Array:
        return nn.layer_norm(None, x, 1e-6) * (1 + scale[:, None]) + shift[:, None]

    def loss(params: Tree, batch: Tree) -> Array:
        with named_scope("patches"):
            x = nn.patches(params["patches"], batch["latents"], patch, width)
            position = jnp.arange(tokens)
            places = position // side, position % side
            sides = [nn.log_features(place, width // 2) for place in places]
            x += jnp.concatenate(sides, -1).astype(x.dtype)
        with named_scope("condition"):
            y = nn.log_features(batch["steps"], FREQUENCIES).astype(x.dtype)
            y = jax.nn.silu(nn.dense(params["step"]["in"], y, width))
            y = nn.dense(params["step"]["out"], y, width)
            table = weight(params, "classes", classes + 1, width)
            y = jax.nn.silu(y + nn.embed(table, batch["labels"]))

        def block(weights: Tree, x: Array) -> Array:
            with named_scope("modulation"):
                # adaLN-Zero: shift, scale and gate, of attention and feed-forward block.
                modulation = jnp.split(nn.dense(weights["modulation"], y, 6 * width), 6, axis=-1)
                shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = modulation
            with named_scope("attention"):
                z = modulated(x, shift, scale)
                z = nn.attention(weights["attention"], z, z, heads)
                x += gate[:, None] * z
            with named_scope("ffn"):
                z = modulated(x, ffn_shift, ffn_scale)
                z = nn.feed_forward(weights["ffn"], z, 4 * width)
                return x + ffn_gate[:, None] * z

        with named_scope("dit"):
            x = nn.run_stack(params["dit"], x, block, layers, scanned=False)
        with named_scope("final"):
            final = params["final"]
            shift, scale = jnp.split(nn.dense(final["modulation"], y, 2 * width), 2, axis=-1)
            x = nn.dense(final, modulated(x, shift, scale), patch * patch * 2 * features)
            x = x.reshape(batch_size, side, side, patch, patch, 2 * features)[..., :features]
        with named_scope("loss"):
            noise = batch["noise"].reshape(batch_size, side, patch, side, patch, features)
            return jnp.square(x.astype(jnp.float32) - noise.transpose(0, 1, 3, 2, 4, 5)).mean()

    line = (
        f"DiT, {layers} layers, width {width}, {patch}x{patch} patches of {image}x{image} latents"
    )
    trained_as = "arXiv 2212.09748, section 4: batch 256, AdamW"
    batch = {**nn.noised_latents(batch_size, image, features), "labels": integers(batch_size)}
    return Model("dit", line, "arXiv 2212.09748", loss, batch, trained_as, adam(1e-4))


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
) -> Model:
    """Return an MLP-Mixer; the defaults are Mixer-L/16 (arXiv 2105.01601, Table 1).

    Blocks that mix tokens have ``token_hidden`` inside, those that mix features ``hidden``.
    """

    def block(weights: Tree, x: Array) -> Array:
        with named_scope("tokens"):
            y = nn.layer_norm(weights["tokens_norm"], x).transpose(0, 2, 1)
            x += nn.feed_forward(weights["tokens"], y, token_hidden).transpose(0, 2, 1)
        with named_scope("features"):
            y = nn.layer_norm(weights["features_norm"], x)
            return x + nn.feed_forward(weights["features"], y, hidden)

    def loss(params: Tree, batch: Tree) -> Array:
        with named_scope("patches"):
            x = nn.patches(params["patches"], batch["images"], patch, width)
        with named_scope("mixer"):
            x = nn.run_stack(params["mixer"], x, block, layers, scanned)
        norm = params["norm"]
        return nn.classified(params, batch, classes, lambda: nn.layer_norm(norm, x).mean(1))

    line = f"MLP-Mixer, {layers} layers, width {width}, patches of {patch}x{patch}"
    trained_as = "arXiv 2105.01601, section 3: batch 4,096, Adam with weight decay"
    batch = nn.labeled_images(batch_size, image)
    return Model("mixer", line, "arXiv 2105.01601", loss, batch, trained_as, adam(decay=0.1))


AVERAGE = 0.9
"""Share of the running statistics that stays in each step (arXiv 1706.02677, section 5.1)."""


def resnet(
    stages: Sequence[tuple[int, int]] = ((64, 3), (128, 4), (256, 6), (512, 3)),
    classes: int = 1000,
    image: int = 224,
    batch_size: int = 256,
) -> Model:
    """Return a residual network; the defaults are ResNet-50 v1.5 (arXiv 1512.03385, Table 1).

    As in v1.5, the 3x3 convolution of a block has the stride. Batch normalization keeps running
    means and variances, which the loss returns anew. ``stages`` holds the width of the 3x3
    convolutions and the number of blocks of each stage.
    """

    def unit(
        weights: Tree, running: Tree, x: Array, width: int, size: int = 1, stride: int = 1
    ) -> tuple[Array, Tree]:
        """Convolve and normalize; return the new statistics too."""
        x = nn.conv(weights, x, width, size, stride, bias=False)
        y = x.astype(jnp.float32)
        mean = y.mean((0, 1, 2))
        # Var x = E x^2 - (E x)^2 reads x once.
        variance = jnp.square(y).mean((0, 1, 2)) - jnp.square(mean)
        new = {
            key: AVERAGE * weight(running, key, width) + (1 - AVERAGE) * value
            for key, value in (("mean", mean), ("variance", variance))
        }
        scale = weight(weights["norm"], "scale", width) * lax.rsqrt(variance + 1e-5)
        y = (y - mean) * scale + weight(weights["norm"], "bias", width)
        return y.astype(x.dtype), new

    def loss(params: Tree, statistics: Tree, batch: Tree) -> tuple[Array, Tree]:
        new: Tree = {}
        with named_scope("stem"):
            images = batch["images"].astype(jnp.bfloat16)
            width = stages[0][0]
            x, new["stem"] = unit(params["stem"], statistics["stem"], images, width, 7, 2)
            padding = (0, 0), (1, 1), (1, 1), (0, 0)
            x = jax.nn.relu(x)
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), padding)
        for stage, (width, blocks) in enumerate(stages, 1):
            for i in range(blocks):
                key, stride = f"stage{stage}_block{i}", 2 if stage > 1 and i == 0 else 1
                new[key] = {}

                def run(name: str, x: Array, *sizes: int, key: str = key) -> Array:
                    weights, running = params[key][name], statistics[key][name]
                    x, new[key][name] = unit(weights, running, x, *sizes)
                    return x

                with named_scope(key):
                    y = jax.nn.relu(run("conv1", x, width))
                    y = jax.nn.relu(run("conv2", y, width, 3, stride))
                    y = run("conv3", y, 4 * width)
                    if i == 0:
                        with named_scope("shortcut"):
                            x = run("shortcut", x, 4 * width, 1, stride)
                    x = jax.nn.relu(x + y)
        return nn.classified(params, batch, classes, lambda: x.mean((1, 2))), new

    line = f"ResNet v1.5 of {3 * sum(n for _, n in stages) + 2} layers, {image}x{image} images"
    trained_as = "arXiv 1706.02677, section 5.1: 256 images on 8 devices, momentum"
    batch = nn.labeled_images(batch_size, image)
    source = "arXiv 1512.03385"
    given = loss, batch, trained_as, momentum()
    return Model("resnet", line, source, *given, with_statistics=True)


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
    """
    wide = 4 * widths[0]  # of the diffusion step's embedding

    def residual(weights: Tree, x: Array, step: Array, width: int) -> Array:
        y = jax.nn.silu(nn.group_norm(weights["norm1"], x))
        y = nn.conv(weights["conv1"], y, width)
        y += nn.dense(weights["step"], step, width)[:, None, None]
        y = jax.nn.silu(nn.group_norm(weights["norm2"], y))
        y = nn.conv(weights["conv2"], y, width)
        return y + (x if x.shape[-1] == width else nn.conv(weights["shortcut"], x, width, 1))

    def transformer(weights: Tree, x: Array, tokens: Array) -> Array:
        width, attention = x.shape[-1], partial(nn.attention, heads=heads, biases="o")
        y = nn.group_norm(weights["norm"], x, epsilon=1e-6).reshape(len(x), -1, width)
        y = nn.dense(weights["in"], y, width)
        with named_scope("self"):
            z = nn.layer_norm(weights["self_norm"], y)
            y += attention(weights["self"], z, z)
        with named_scope("cross"):
            z = nn.layer_norm(weights["cross_norm"], y)
            y += attention(weights["cross"], z, tokens)
        with named_scope("ffn"):
            z, ffn = nn.layer_norm(weights["ffn_norm"], y), weights["ffn"]
            up = nn.dense(ffn["up"], z, 4 * width)
            z = up * jax.nn.gelu(nn.dense(ffn["gate"], z, 4 * width))
            y += nn.dense(ffn["down"], z, width)
        return x + nn.dense(weights["out"], y, width).reshape(x.shape)

    def loss(params: Tree, batch: Tree) -> Array:
        tokens = batch["text"].astype(jnp.bfloat16)
        with named_scope("noise"):
            added = np.linspace(FIRST**0.5, LAST**0.5, STEPS) ** 2
            signal = jnp.asarray(np.cumprod(1 - added), jnp.float32)
            signal = nn.embed(signal, batch["steps"])[:, None, None, None]
            # x_t = sqrt(a_t) x_0 + sqrt(1 - a_t) noise (arXiv 2006.11239, equation 4).
            x = jnp.sqrt(signal) * batch["latents"] + jnp.sqrt(1 - signal) * batch["noise"]
            x = x.astype(jnp.bfloat16)
        with named_scope("step"):
            step = nn.log_features(batch["steps"], widths[0]).astype(jnp.bfloat16)
            step = jax.nn.silu(nn.dense(params["step"]["in"], step, wide))
            step = jax.nn.silu(nn.dense(params["step"]["out"], step, wide))

        def block(key: str, x: Array, width: int, attends: bool) -> Array:
            with named_scope(key):
                x = residual(params[key]["residual"], x, step, width)
                if not attends:
                    return x
                with named_scope("transformer"):
                    return transformer(params[key]["transformer"], x, tokens)

        with named_scope("stem"):
            x = nn.conv(params["stem"], x, widths[0])
        # The way up reads each result of the way down, the last one first.
        skips = [x]
        for level, width in enumerate(widths):
            for i in range(blocks):
                x = block(f"down{level}_block{i}", x, width, attends[level])
                skips.append(x)
            if level + 1 < len(widths):
                with named_scope(f"down{level}_resize"):
                    x = nn.conv(params[f"down{level}_resize"], x, width, stride=2)
                skips.append(x)
        x = block("middle_block0", x, widths[-1], True)
        x = block("middle_block1", x, widths[-1], False)
        for level, width in reversed(list(enumerate(widths))):
            for i in range(blocks + 1):
                x = jnp.concatenate([x, skips.pop()], -1)
                x = block(f"up{level}_block{i}", x, width, attends[level])
            if level:
                with named_scope(f"up{level}_resize"):
                    x = nn.conv(params[f"up{level}_resize"], twice(x), width)
        with named_scope("final"):
            x = jax.nn.silu(nn.group_norm(params["final"]["norm"], x))
            x = nn.conv(params["final"], x, features)
        with named_scope("loss"):
            return jnp.square(x.astype(jnp.float32) - batch["noise"]).mean()

    line = f"diffusion U-Net, widths {'-'.join(map(str, widths))}, {image}x{image} latents, text"
    trained_as = "Stable Diffusion v1 model card: batch 2,048, AdamW"
    batch = {**nn.noised_latents(batch_size, image, features), "text": floats(batch_size, *text)}
    source = "arXiv 2112.10752; Stable Diffusion v1 model card"
    return Model("unet", line, source, loss, batch, trained_as, adam(1e-4, decay=0.01))


def twice(x: Array) -> Array:
    """Return images (batch, height, width, features) twice as large, each pixel four times."""
    batch, height, width, features = x.shape
    x = jnp.broadcast_to(x[:, :, None, :, None], (batch, height, 2, width, 2, features))
    return x.reshape(batch, 2 * height, 2 * width, features)


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
) -> Model:
    """Return a vision transformer; the defaults are ViT-H/14 (arXiv 2010.11929, Table 1)."""

    def loss(params: Tree, batch: Tree) -> Array:
        with named_scope("patches"):
            x = nn.patches(params["patches"], batch["images"], patch, width)
            first = jnp.broadcast_to(weight(params, "class", 1, 1, width), (batch_size, 1, width))
            x = jnp.concatenate([first, x], 1)
            x += weight(params, "positions", 1, x.shape[1], width)
        with named_scope("encoder"):
            layer = partial(nn.transformer_layer, heads=heads, hidden=hidden)
            x = nn.run_stack(params["encoder"], x, layer, layers, scanned)
        norm = params["norm"]
        return nn.classified(params, batch, classes, lambda: nn.layer_norm(norm, x[:, 0]))

    line = f"ViT, {layers} layers, width {width}, patches of {patch}x{patch} in {image}x{image}"
    trained_as = "arXiv 2010.11929, Table 3: batch 4,096, Adam with weight decay"
    batch = nn.labeled_images(batch_size, image)
    return Model("vit", line, "arXiv 2010.11929", loss, batch, trained_as, adam(decay=0.1))
