"""Shapes of transformers: the few numbers from which their operations, bytes and FLOPs follow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any

from parenvs.errors import UnknownInstanceError, shown
from parenvs.fields import LARGEST_NUMBER, Count, Index, check, read, whole, words

MOST_LAYERS = 10_000
"""Largest number of layers."""
_POSITIVE = words("a positive number", gt=0, le=LARGEST_NUMBER)
_LATENT = ("query_rank", "key_rank", "rope_width")
_UNSEEN = {
    "experts_every": 1,
    **dict.fromkeys(("dense_feed_forward", "leading_dense", "shared_experts", *_LATENT), 0),
}
"""Fields that came later, and the values with which they are no part of fingerprints."""


@dataclass(frozen=True)
class TransformerShape:
    """A decoder or encoder of equal blocks: attention and a feed-forward network each.

    Attributes:
        name: of the model.
        layers: number of blocks.
        hidden: h, width of the residual stream.
        heads: a, attention heads.
        sequence: s, tokens of a sample.
        vocabulary: V, rows of the embedding.
        kv_heads: g, heads of keys and values (default: ``heads``).
        head_width: dh (default: hidden / heads).
        feed_forward: f, inner width of the feed-forward network (default: 4 h).
        gated: whether it has a gate (SwiGLU): three matrices instead of two.
        dropout: whether dropout masks are drawn and kept.
        bias: whether linear layers have biases, and norms too.
        causal: whether a token attends to those before it only.
        tied: whether embedding and head share their weights.
        positions: rows of a learned table of positions; 0 if there is none.
        experts: feed-forward networks in each block, 1 for a dense model.
        active: experts that each token passes.
        capacity: tokens that an expert has room for over the mean.
        experts_every: 2 where every second block has experts and the others one dense network
            each, and so on; 1 where all have them. The first of as many blocks are dense.
        leading_dense: blocks at the front that have a dense network, whatever stands behind.
        dense_feed_forward: inner width of those dense networks (0: ``feed_forward``).
        shared_experts: networks as wide as an expert, in each block with experts, that every token
            passes beside its ``active`` ones.
        query_rank: width to which queries are compressed in latent attention (arXiv 2405.04434,
            section 2.1); 0 if they are not.
        key_rank: width to which keys and values are compressed together; 0 without latent
            attention.
        rope_width: width of each head's rotated part, beside ``head_width``, in latent attention.
        source: where the numbers are from.
    """

    name: str
    layers: Annotated[int, whole(1, MOST_LAYERS)]
    hidden: Count
    heads: Count
    sequence: Count
    vocabulary: Count
    kv_heads: Index = 0
    head_width: Index = 0
    feed_forward: Index = 0
    gated: bool = False
    dropout: bool = True
    bias: bool = True
    causal: bool = True
    tied: bool = True
    positions: Index = 0
    experts: Count = 1
    active: Count = 1
    capacity: Annotated[int, _POSITIVE] | Annotated[float, _POSITIVE] = 1.0
    experts_every: Count = 1
    dense_feed_forward: Index = 0
    leading_dense: Index = 0
    shared_experts: Index = 0
    query_rank: Index = 0
    key_rank: Index = 0
    rope_width: Index = 0
    source: str = ""

    def __post_init__(self) -> None:
        """Fill in defaults and raise errors for numbers that no model has."""
        check(self, f"shape {shown(self.name)}: ", UnknownInstanceError)
        fill = object.__setattr__
        fill(self, "kv_heads", self.kv_heads or self.heads)
        fill(self, "feed_forward", self.feed_forward or 4 * self.hidden)
        if not self.head_width:
            if self.hidden % self.heads:
                raise UnknownInstanceError(
                    f"shape {shown(self.name)}: {self.heads} heads do not divide hidden "
                    f"{self.hidden}; give head_width"
                )
            fill(self, "head_width", self.hidden // self.heads)
        if self.heads % self.kv_heads or self.active > self.experts:
            raise UnknownInstanceError(
                f"shape {shown(self.name)}: kv_heads must divide heads, and active be at most "
                "experts"
            )
        behind = self.dense_feed_forward, self.shared_experts, self.leading_dense
        if self.experts == 1 and (self.experts_every, *behind) != (1, 0, 0, 0):
            raise UnknownInstanceError(
                f"shape {shown(self.name)}: experts_every, dense_feed_forward, leading_dense and "
                "shared_experts need experts"
            )
        if self.leading_dense >= self.layers:
            raise UnknownInstanceError(
                f"shape {shown(self.name)}: leading_dense {self.leading_dense} leaves no block of "
                f"{self.layers} with experts"
            )
        if not self.key_rank and (self.query_rank or self.rope_width):
            raise UnknownInstanceError(
                f"shape {shown(self.name)}: query_rank and rope_width need key_rank"
            )
        if self.key_rank and self.kv_heads != self.heads:
            raise UnknownInstanceError(
                f"shape {shown(self.name)}: latent attention has as many kv_heads as heads"
            )
        if self.experts_every == 1 and not self.leading_dense and self.dense_feed_forward:
            raise UnknownInstanceError(
                f"shape {shown(self.name)}: dense_feed_forward needs experts_every of at least 2, "
                "or leading_dense"
            )

    @property
    def fingerprint(self) -> str:
        """``sha256:...`` of the numbers; the name and the source are no part of it."""
        numbers = {
            key: value
            for key, value in asdict(self).items()
            if key not in ("name", "source") and _UNSEEN.get(key) != value
        }
        text = json.dumps(numbers, sort_keys=True).encode()
        return f"sha256:{hashlib.sha256(text).hexdigest()}"

    @property
    def kinds(self) -> tuple[TransformerShape, ...]:
        """Shapes all of whose blocks are equal, one for each kind of block: dense ones first.

        It is the shape itself where all blocks are equal.
        """
        if self.experts_every == 1 and not self.leading_dense:
            return (self,)
        equal = replace(self, experts_every=1, dense_feed_forward=0, leading_dense=0)
        inner = self.dense_feed_forward or self.feed_forward
        dense: dict[str, Any] = {"experts": 1, "active": 1, "capacity": 1.0, "shared_experts": 0}
        return replace(equal, feed_forward=inner, **dense), equal

    @property
    def kind_of(self) -> tuple[int, ...]:
        """(layers,) number of each block's kind in ``kinds``: the last of each few has experts."""
        every, first = self.experts_every, self.leading_dense
        last = len(self.kinds) - 1
        return tuple(last if i >= first and (i + 1) % every == 0 else 0 for i in range(self.layers))

    def _summed(self, of_block: Callable[[TransformerShape], float]) -> float:
        """Sum a figure over all blocks."""
        kind_of = self.kind_of
        return sum(kind_of.count(i) * of_block(kind) for i, kind in enumerate(self.kinds))

    @property
    def block_parameters(self) -> tuple[float, float]:
        """Parameters of one block with experts: outside of the experts, and of all experts.

        A dense feed-forward network counts outside. For dense blocks among them see ``kinds``.
        """
        h, f, wide = self.hidden, self.feed_forward, self.heads * self.head_width
        narrow = self.kv_heads * self.head_width
        attention = sum(n * k for n, k in self.attention_products)
        one = (3 if self.gated else 2) * h * f
        norms = 2 * h
        if self.bias:
            attention += wide + 2 * narrow + h
            one += f + h
            norms *= 2
        norms += self.query_rank + self.key_rank
        if self.experts == 1:
            return float(attention + norms + one), 0.0
        dense = attention + norms + h * self.experts + self.shared_experts * one
        return float(dense), float(one * self.experts)

    @property
    def attention_products(self) -> list[tuple[int, int]]:
        """(n, k) of the products with weights in attention; of latent attention the first is whole.

        That one makes the latents on every rank; tensor parallelism divides all others.
        """
        h, wide = self.hidden, self.heads * self.head_width
        if not self.key_rank:
            return [(wide + 2 * self.kv_heads * self.head_width, h), (h, wide)]
        queries = self.heads * (self.head_width + self.rope_width)
        return [
            (self.latent_width, h),
            (queries, self.query_rank or h),
            (2 * wide, self.key_rank),
            (h, wide),
        ]

    @property
    def latent_width(self) -> int:
        """Width of the latents, of queries, of keys and values, and the keys' rotated part."""
        return self.query_rank + self.key_rank + self.rope_width

    @property
    def core_width(self) -> float:
        """Mean width of a head in both products of the attention core."""
        return self.head_width + self.rope_width / 2 if self.rope_width else self.head_width

    @property
    def parameters(self) -> float:
        """All parameters: blocks, embedding, positions, head and the last norm."""
        h, tables = self.hidden, self.vocabulary * (1 if self.tied else 2) + self.positions
        blocks = self._summed(lambda kind: sum(kind.block_parameters))
        return blocks + h * (tables + (2 if self.bias else 1))

    def flops(self, samples: float, recompute: bool = False) -> float:
        """Model FLOPs of a training step, a multiply-add counted twice.

        Every product of the forward pass once, twice in the backward pass; attention over the
        whole square, as arXiv 2104.04473, equation 3, counts.

        Args:
            samples: samples of the step.
            recompute: whether to count the forward pass of the blocks again, as that paper does.
        """
        head = 2 * self.sequence * self.hidden * self.vocabulary
        blocks = self._summed(lambda kind: kind.block_flops)
        return samples * ((4 if recompute else 3) * blocks + 3 * head)

    @property
    def block_flops(self) -> float:
        """FLOPs of one block with experts, forward, of one sample; see ``flops``."""
        h, s = self.hidden, self.sequence
        products = sum(n * k for n, k in self.attention_products)
        passed = self.active + self.shared_experts
        products += (3 if self.gated else 2) * h * self.feed_forward * passed
        return 2 * s * products + 4 * s * s * self.heads * self.core_width

    def token_flops(self, samples: float) -> float:
        """Model FLOPs of a step as arXiv 2407.21783 counts: ``6 N + 6 l h s`` a token.

        N are the parameters that a token passes; attention counts its causal half.
        """
        passed = self._summed(_passed)
        passed += self.hidden * self.vocabulary * (1 if self.tied else 2)
        attention = 6 * self.layers * self.heads * self.core_width * self.sequence
        return samples * self.sequence * (6 * passed + attention)

    def to_json(self) -> dict[str, Any]:
        """Return the shape as an object of JSON types, without what has its default."""
        defaults = {item.name: item.default for item in fields(self)}
        derived = {"kv_heads": self.heads, "head_width": self.hidden // self.heads}
        return {
            name: value
            for name, value in asdict(self).items()
            if value not in (defaults[name], derived.get(name))
        }

    @classmethod
    def from_json(cls, content: Any, where: str = "shape") -> TransformerShape:
        """Make a shape of an object of JSON types.

        Raises:
            UnknownInstanceError: a key is missing or unknown, or a number is impossible.
        """
        return read(cls, content, where, UnknownInstanceError)


def _passed(kind: TransformerShape) -> float:
    """Parameters of a block that a token passes."""
    dense, experts = kind.block_parameters
    return dense + experts * kind.active / kind.experts
