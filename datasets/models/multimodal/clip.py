"""CLIP, an encoder of images and one of texts, trained by contrast (arXiv 2103.00020)."""

import jax
import jax.numpy as jnp
from jax import lax, named_scope

from parenvs.datasets.models.blocks import (
    attention,
    attention_shapes,
    cross_entropy,
    feed_forward_shapes,
    layer_norm,
    patches,
)
from parenvs.datasets.models.layers import dense, embed, norm_shapes
from parenvs.datasets.models.model import Array, Model, Tree, floats, integers
from parenvs.datasets.models.optimisers import adam


def clip(
    image_layers: int = 24,
    image_width: int = 1024,
    text_layers: int = 12,
    text_width: int = 768,
    shared: int = 768,
    patch: int = 14,
    image: int = 224,
    vocab: int = 49408,
    tokens: int = 77,
    head: int = 64,
    batch_size: int = 32768,
    name: str = "clip",
) -> Model:
    """Return CLIP; the defaults are ViT-L/14 (arXiv 2103.00020, Table 20).

    The loss compares each image with each text of the batch, so that the batch cannot be split
    without an exchange. The text's feature is that of its last token, which has the highest id.

    Args:
        image_layers: Layers of the image encoder.
        image_width: Its residual width.
        text_layers: Layers of the text encoder.
        text_width: Its residual width.
        shared: Width of the features that are compared.
        patch: Height and width of a patch in pixels.
        image: Height and width of the RGB images.
        vocab: Size of the vocabulary.
        tokens: Length of a text.
        head: Width of an attention head.
        batch_size: Pairs of an image and a text in a batch.
        name: Instance name.
    """

    def stack(layers: int, width: int) -> Tree:
        layer = {
            "attention_norm": norm_shapes(width),
            "attention": attention_shapes(width),
            "ffn_norm": norm_shapes(width),
            "ffn": feed_forward_shapes(width, 4 * width),
        }
        return {f"layer_{i}": layer for i in range(layers)}

    def init() -> Tree:
        return {
            "image": {
                "patches": floats(patch, patch, 3, image_width),
                "class": floats(1, 1, image_width),
                "positions": floats(1, (image // patch) ** 2 + 1, image_width),
                "first_norm": norm_shapes(image_width),
                "encoder": stack(image_layers, image_width),
                "norm": norm_shapes(image_width),
                "projection": floats(image_width, shared),
            },
            "text": {
                "embedding": floats(vocab, text_width),
                "positions": floats(tokens, text_width),
                "encoder": stack(text_layers, text_width),
                "norm": norm_shapes(text_width),
                "projection": floats(text_width, shared),
            },
            "temperature": floats(1),
        }

    def encoded(weights: Tree, x: Array, causal: bool) -> Array:
        for i in range(len(weights)):
            layer = weights[f"layer_{i}"]
            with named_scope(f"layer_{i}"):
                with named_scope("attention"):
                    y = layer_norm(layer["attention_norm"], x)
                    x += attention(layer["attention"], y, y, x.shape[-1] // head, causal=causal)
                with named_scope("ffn"):
                    y = dense(layer["ffn"]["up"], layer_norm(layer["ffn_norm"], x))
                    x += dense(layer["ffn"]["down"], y * jax.nn.sigmoid(1.702 * y))
        return x

    def unit(x: Array) -> Array:
        y = x.astype(jnp.float32)
        return (y * lax.rsqrt(jnp.square(y).sum(-1, keepdims=True))).astype(x.dtype)

    def loss(params: Tree, batch: Tree) -> Array:
        with named_scope("image"):
            weights = params["image"]
            x = patches(weights["patches"], batch["images"], patch)
            first = jnp.broadcast_to(weights["class"], (batch_size, 1, image_width))
            x = jnp.concatenate([first, x], 1) + weights["positions"]
            x = encoded(weights["encoder"], layer_norm(weights["first_norm"], x), False)
            images = unit(layer_norm(weights["norm"], x[:, 0]) @ weights["projection"])
        with named_scope("text"):
            weights, ids = params["text"], batch["tokens"]
            y = embed(weights["embedding"], ids) + weights["positions"]
            y = layer_norm(weights["norm"], encoded(weights["encoder"], y, True))
            last = (ids == ids.max(-1, keepdims=True)).astype(y.dtype)
            y = jnp.einsum("btd,bt->bd", y, last)
            texts = unit(y @ weights["projection"])
        with named_scope("loss"):
            scale = jnp.exp(params["temperature"].astype(jnp.float32))
            logits = (images @ texts.T).astype(jnp.float32) * scale
            pairs = lax.iota(jnp.int32, batch_size)
            return (cross_entropy(logits, pairs) + cross_entropy(logits.T, pairs)) / 2

    return Model(
        name,
        f"CLIP, image {image_layers} layers of {image_width}, text {text_layers} of {text_width}",
        "arXiv 2103.00020",
        init,
        loss,
        {
            "images": floats(batch_size, image, image, 3),
            "tokens": integers(batch_size, tokens),
        },
        batch_size,
        family="clip",
        trained_as="arXiv 2103.00020, Table 18: batch 32,768, Adam with weight decay",
        mixed=True,
        optimiser=adam(4e-4, beta2=0.98, decay=0.2),
    )
