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
_FIRST_LATER = "experts_every"
"""From this field on they came later: with their defaults they are no part of fingerprints."""


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
        window: tokens that a token attends to, itself among them; 0 if it attends to the sample.
        full_every: 2 where every second block attends to the whole sample in spite of the window,
            and so on; 0 where all have the window. The first of as many blocks have it.
        sinks: whether every head has a learned logit beside those of tokens (attention sinks).
        expert_bias: whether experts' networks have biases though nothing else has.
        norm_bias: whether norms have biases where linear layers have.
        qk_norm: whether queries and keys of each head are normalized.
        router_bias: whether the router adds a number to every expert's score.
        next_tokens: tokens behind the next one that are predicted, too, each by a module of one
            more block behind a product of twice the width, and the head again (multi-token
            prediction, arXiv 2412.19437, section 2.2).
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
    window: Index = 0
    full_every: Index = 0
    sinks: bool = False
    expert_bias: bool = False
    norm_bias: bool = True
    qk_norm: bool = False
    router_bias: bool = False
    next_tokens: Index = 0
    source: str = ""

    def __post_init__(self) -> None:
        """Fill in defaults and raise errors for numbers that no model has."""
        check(self, f"shape {shown(self.name)}: ", UnknownInstanceError)
        fill = object.__setattr__
        fill(self, "kv_heads", self.kv_heads or self.heads)
        fill(self, "feed_forward", self.feed_forward or 4 * self.hidden)
        dense = self.dense_feed_forward, self.shared_experts, self.leading_dense
        is_alone = self.experts == 1
        rules = (
            (not self.head_width and self.hidden % self.heads,
             f"{self.heads} heads do not divide hidden {self.hidden}; give head_width"),
            (self.heads % self.kv_heads or self.active > self.experts,
             "kv_heads must divide heads, and active be at most experts"),
            (is_alone and (self.experts_every, *dense) != (1, 0, 0, 0),
             "experts_every, dense_feed_forward, leading_dense and shared_experts need experts"),
            (self.leading_dense >= self.layers,
             f"leading_dense {self.leading_dense} leaves no block of {self.layers} with experts"),
            (not self.key_rank and (self.query_rank or self.rope_width),
             "query_rank and rope_width need key_rank"),
            (self.key_rank and self.kv_heads != self.heads,
             "latent attention has as many kv_heads as heads"),
            (self.full_every and (self.full_every == 1 or not self.window),
             f"full_every {self.full_every} needs a window, and to be 0 or at least 2; leave out "
             "both where all blocks attend to the whole sample"),
            (is_alone and (self.router_bias or self.expert_bias),
             "router_bias and expert_bias need experts"),
            (self.dense_feed_forward and self.experts_every == 1 and not self.leading_dense,
             "dense_feed_forward needs experts_every of at least 2, or leading_dense"),
        )  # fmt: skip
        for is_broken, reason in rules:
            if is_broken:
                raise UnknownInstanceError(f"shape {shown(self.name)}: {reason}")
        fill(self, "head_width", self.head_width or self.hidden // self.heads)

    @property
    def fingerprint(self) -> str:
        """``sha256:...`` of the numbers; the name and the source are no part of it."""
        defaults = {item.name: item.default for item in fields(self)}
        later = list(defaults)[list(defaults).index(_FIRST_LATER) :]
        numbers = {
            key: value
            for key, value in asdict(self).items()
            if key not in ("name", "source") and not (key in later and defaults[key] == value)
        }
        text = json.dumps(numbers, sort_keys=True).encode()
        return f"sha256:{hashlib.sha256(text).hexdigest()}"

    @property
    def kinds(self) -> tuple[TransformerShape, ...]:
        """Shapes all of whose blocks are equal, one for each kind of block: dense ones first.

        Of each, those with a window stand before those that attend to the whole sample. It is the
        shape itself where all blocks are equal.
        """
        is_mixed = self.experts_every > 1 or self.leading_dense or self.full_every
        return self._alternatives if is_mixed else (self,)

    @property
    def kind_of(self) -> tuple[int, ...]:
        """(layers,) number of each block's kind in ``kinds``: the last of each few is special."""
        every, first, full = self.experts_every, self.leading_dense, self.full_every
        mixed, of_attention = every > 1 or first > 0, 2 if full else 1
        return tuple(
            of_attention * (mixed and i >= first and (i + 1) % every == 0)
            + (full > 0 and (i + 1) % full == 0)
            for i in range(self.layers)
        )

    @property
    def _alternatives(self) -> tuple[TransformerShape, ...]:
        plain: dict[str, Any] = {"experts_every": 1, "leading_dense": 0, "dense_feed_forward": 0}
        equal = replace(self, full_every=0, next_tokens=0, **plain)
        kinds: tuple[TransformerShape, ...] = (equal,)
        if self.experts_every > 1 or self.leading_dense:
            inner = self.dense_feed_forward or self.feed_forward
            absent: dict[str, Any] = {"experts": 1, "active": 1, "capacity": 1.0}
            absent |= {"shared_experts": 0, "router_bias": False, "expert_bias": False}
            kinds = replace(equal, feed_forward=inner, **absent), equal
        if self.full_every:
            kinds = tuple(x for kind in kinds for x in (kind, replace(kind, window=0)))
        return kinds

    @property
    def module(self) -> TransformerShape:
        """The shape of the block in a module that predicts a token behind the next one."""
        return self._alternatives[-1]

    @property
    def module_parameters(self) -> tuple[float, float]:
        """Parameters of such a module outside of its experts, and of these.

        It has a block, a product of the hidden state and an embedding, and three norms; embedding
        and head are the model's.
        """
        dense, experts = self.module.block_parameters
        return dense + 2.0 * self.hidden**2 + 3 * self.hidden * self.norm_rows, experts

    @property
    def norm_rows(self) -> int:
        """Vectors of parameters that a norm has."""
        return 2 if self.bias and self.norm_bias else 1

    def _summed(self, of_block: Callable[[TransformerShape], float]) -> float:
        kind_of = self.kind_of
        return sum(kind_of.count(i) * of_block(kind) for i, kind in enumerate(self.kinds))

    @property
    def block_parameters(self) -> tuple[float, float]:
        """Parameters of one block with experts: outside of the experts, and of all experts.

        A dense feed-forward network counts outside. For dense blocks among them see ``kinds``.
        """
        h, wide = self.hidden, self.heads * self.head_width
        inner = (2 if self.gated else 1) * self.feed_forward  # columns of the first matrices
        attention = sum(n * k for n, k in self.attention_products)
        network = (inner + self.feed_forward) * h
        if self.bias:
            attention += wide + 2 * self.kv_heads * self.head_width + h
        if self.bias or self.expert_bias:
            network += inner + h
        norms = 2 * h * self.norm_rows + self.query_rank + self.key_rank
        norms += 2 * self.head_width if self.qk_norm else 0
        attention += self.heads if self.sinks else 0
        if self.experts == 1:
            return float(attention + norms + network), 0.0
        router = (h + (1 if self.router_bias else 0)) * self.experts
        dense = attention + norms + router + self.shared_experts * network
        return float(dense), float(network * self.experts)

    @property
    def attention_products(self) -> list[tuple[int, int]]:
        """(n, k) of the products with weights in attention; of latent attention the first is whole.

        That one makes the latents on every rank; tensor parallelism divides all others.
        """
        h, wide = self.hidden, self.heads * self.head_width
        if not self.key_rank:
            return [(wide + 2 * self.kv_heads * self.head_width, h), (h, wide)]
        return [
            (self.latent_width, h),
            (self.heads * (self.head_width + self.rope_width), self.query_rank or h),
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
    def reach(self) -> float:
        """Tokens that a token of a block with a window attends to, those behind it counted, too.

        Without a window they are those of the sample. Causal masks leave half of them, whichever.
        """
        if not self.window or self.window >= self.sequence:
            return float(self.sequence)
        return self.window * ((2 - self.window / self.sequence) if self.causal else 1.0)

    @property
    def parameters(self) -> float:
        """All parameters: blocks, embedding, positions, head and the last norm."""
        h, tables = self.hidden, self.vocabulary * (1 if self.tied else 2) + self.positions
        blocks = self._summed(lambda kind: sum(kind.block_parameters))
        modules = self.next_tokens * sum(self.module_parameters) if self.next_tokens else 0.0
        return blocks + modules + h * (tables + self.norm_rows)

    def flops(self, samples: float, recompute: bool = False) -> float:
        """Model FLOPs of a training step, a multiply-add counted twice.

        Every product of the forward pass once, twice in the backward pass; attention over the
        whole square, as arXiv 2104.04473, equation 3, counts, or over windows.

        Args:
            samples: samples of the step.
            recompute: whether to count the forward pass of the blocks again, as that paper does.
        """
        head = 2 * self.sequence * self.hidden * self.vocabulary
        blocks = self._summed(lambda kind: kind.block_flops)
        modules = 0.0
        if self.next_tokens:
            joined = 4 * self.sequence * self.hidden**2
            modules = self.next_tokens * (self.module.block_flops + joined + head)
        return samples * ((4 if recompute else 3) * blocks + 3 * (head + modules))

    @property
    def block_flops(self) -> float:
        """FLOPs of one block with experts, forward, of one sample; see ``flops``."""
        h, s = self.hidden, self.sequence
        products = sum(n * k for n, k in self.attention_products)
        passed = self.active + self.shared_experts
        products += (3 if self.gated else 2) * h * self.feed_forward * passed
        return 2 * s * products + 4 * s * self.reach * self.heads * self.core_width

    def token_flops(self, samples: float) -> float:
        """Model FLOPs of a step as arXiv 2407.21783 counts: ``6 N + 6 l h s`` a token.

        N are the parameters that a token passes; attention counts its causal half.
        """
        passed = self._summed(_passed)
        passed += self.hidden * self.vocabulary * (1 if self.tied else 2)
        attention = 6 * self.heads * self.core_width * self._summed(lambda kind: kind.reach)
        if self.next_tokens:
            dense, experts = self.module_parameters
            own = dense + experts * self.active / self.experts + self.hidden * self.vocabulary
            passed += self.next_tokens * own
            attention += 6 * self.heads * self.core_width * self.module.reach * self.next_tokens
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
