"""Operations of transformer blocks: seconds, parameters and kept bytes on one device.

Everything is elementwise over arrays of plans. Sections, tables and figures in the docstrings are
those of arXiv 2205.05198 (Korthikanti and others) unless another paper is named; attention is
fused or not by the stack.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import namedtuple
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from parenvs.cluster import FUSED_LOSS, LOSS, OTHER, PASSES, PERMUTE, ROLES, WEIGHT
from parenvs.compiled import Array, Figure
from parenvs.tasks.hybrid.plan import RECOMPUTE_MODES
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.stack import LOW, SELECTIVE, TILE, Machine

NORM_BYTES = {True: (4.0, 6.0), False: (36.0, 74.0)}
"""Bytes per element that a norm moves forward and backward: as one kernel, or as PyTorch's own.

Without a kernel, forward: a cast to fp32 (2 + 4), the square (4 + 4), its mean (4), the product
with the root (4 + 4), a cast (4 + 2), the weight (2 + 2). Backward: the weight (10), a cast (6),
the root (8 + 16), the square (16), the sum (12), a cast (6).
"""


class Split(NamedTuple):
    """How a layer is split over devices; each field a number or an array over plans.

    Attributes:
        tp: t, ranks that share every matrix.
        samples: b, samples of a micro-batch in one replica.
        context: ranks that share the tokens of a sample.
        sequence_parallel: whether the tp ranks share what lies between the matrices, too.
        expert: data-parallel ranks among which experts are dealt out.
        expert_tp: ranks that share every matrix of an expert; 0: ``tp``.
    """

    tp: Figure
    samples: Figure
    context: Figure = 1
    sequence_parallel: Figure = False
    expert: Figure = 1
    expert_tp: Figure = 0

    @property
    def of_expert(self) -> Figure:
        """Ranks that share every matrix of an expert."""
        if isinstance(self.expert_tp, int) and self.expert_tp == 0:
            return self.tp
        return np.where(np.equal(self.expert_tp, 0), self.tp, self.expert_tp)

    @property
    def shared(self) -> Figure:
        """Ranks that share the residual stream of a sample's tokens: tp under sequence parallel."""
        return np.where(self.sequence_parallel, self.tp, 1)


class LayerSeconds(NamedTuple):
    """Seconds of one layer and micro-batch on one device.

    Attributes:
        forward: kernels of the forward pass.
        backward: kernels of the backward pass, nothing recomputed.
        forward_exchange: collectives of the forward pass that nothing hides.
        backward_exchange: those of the backward pass.
        attention: kernels of the forward pass that selective recomputation runs again.
        last: the layer's last product in the forward pass, whose result no backward pass needs.
    """

    forward: Figure
    backward: Figure
    forward_exchange: Figure = 0.0
    backward_exchange: Figure = 0.0
    attention: Figure = 0.0
    last: Figure = 0.0


class Layer(ABC):
    """A layer of a chain: what it takes and holds on a device, split in any way."""

    @abstractmethod
    def seconds(self, machine: Machine, split: Split) -> LayerSeconds:
        """Return the seconds of one micro-batch."""

    def weight_seconds(self, machine: Machine, split: Split) -> Figure:
        """Return the seconds of the backward pass's products that make gradients of weights."""
        return 0.0

    @abstractmethod
    def parameters(self, split: Split) -> tuple[Figure, Figure]:
        """Return the parameters on a device: those every replica holds, and its experts'."""

    def trained(self, split: Split) -> tuple[Figure, Figure]:
        """Return those of ``parameters`` that are trained."""
        return self.parameters(split)

    def different_weights(self, split: Split) -> Figure:
        """Return the numbers of the weights of products on a device, those of one shape once."""
        return 0.0

    @abstractmethod
    def saved_bytes(self, machine: Machine, split: Split, mode: str) -> Figure:
        """Return the bytes that a micro-batch keeps for the backward pass, by recomputation."""

    def working_bytes(self, machine: Machine, split: Split) -> Figure:
        """Return the bytes that exist only while the layer itself runs."""
        return 0.0


FIGURES = len(LayerSeconds._fields) + len(RECOMPUTE_MODES) + 7
"""Numbers of a layer of which all that formulas ask of it is looked up, see ``figures_of``."""


def figures_of(
    layer: Layer, machine: Machine, split: Split, shape: Any, splits_backward: bool = True
) -> Array:
    """(16, ...) figures of a layer under splits; ``shape`` is the rest.

    They are the fields of ``LayerSeconds``, bytes kept by ``RECOMPUTE_MODES``, working bytes,
    parameters of all replicas and of experts, those that are trained, numbers of different weights,
    and seconds of weight gradients, which are left out unless backward passes are split.
    """
    figures = np.empty((FIGURES, *shape))
    saved = (layer.saved_bytes(machine, split, mode) for mode in RECOMPUTE_MODES)
    parts = (
        *layer.seconds(machine, split), *saved, layer.working_bytes(machine, split),
        *layer.parameters(split), *layer.trained(split), layer.different_weights(split),
        layer.weight_seconds(machine, split) if splits_backward else 0.0,
    )  # fmt: skip
    for line, part in zip(figures, parts, strict=True):
        line[:] = part
    return figures


Chain = namedtuple(
    "Chain", ("kinds", "embedding", "head", "tied_parameters", "tied_share"), defaults=(1.0,)
)
"""What formulas ask of a chain: its layers, or their ``figures_of`` plans."""


def matmul_seconds(
    machine: Machine, m: Figure, n: Figure, k: Figure, batch: Figure = 1, result: float = 0.0,
    role: str = "",
) -> Figure:  # fmt: skip
    """Seconds of ``batch`` products of (m, k) by (k, n): FLOPs or bytes, whichever takes longer.

    ``result``: bytes that an element of the product moves (default: those of a write); ``role``:
    one of ``parenvs.cluster.ROLES``. Where products like it were measured, it has their rate.
    Fewer tiles than multiprocessors leave some of these idle; where the stack says so, the last
    wave of tiles does too, and tiles at the edges count as whole ones.
    """
    # A multiply-add is two FLOPs.
    flops = 2.0 * m * n * k * batch
    if machine.multiprocessors:
        # A multiprocessor computes one tile of the result at a time.
        tiles = np.ceil(np.asarray(m) / TILE) * np.ceil(np.asarray(n) / TILE) * batch
        if machine.stack.waves:
            whole = np.ceil(tiles / machine.multiprocessors) * machine.multiprocessors
            flops = whole * 2.0 * TILE * TILE * k
        else:
            # With idle multiprocessors it takes as long as with one tile for each of them.
            flops = flops * np.maximum(1.0, machine.multiprocessors / tiles)
    written = (result or machine.width) * m * n
    size = batch * (machine.width * (m * k + k * n) + written)
    seconds = roofline_seconds(machine, flops, size)
    if machine.measured is None:
        return seconds
    share = machine.measured.product_share(machine.precision, role, batch, m, k, n)
    rate = share * machine.device.peak(machine.precision)
    return np.where(np.isnan(share), seconds, 2.0 * m * n * k * batch / rate)


def roofline_seconds(machine: Machine, flops: Figure, size: Figure) -> Figure:
    """Seconds of a kernel of FLOPs and bytes, whichever take longer."""
    return np.maximum(flops / machine.flops, size / machine.memory_bw) + machine.launch


def kernel_seconds(machine: Machine, size: Figure, kind: str = OTHER) -> Figure:
    """Seconds of an elementwise kernel that reads and writes ``size`` bytes at 2 an element."""
    bandwidth, launch = machine.memory_bw, machine.launch
    if machine.measured is not None and kind in machine.measured.traffic:
        share, launch = machine.measured.traffic[kind]
        bandwidth = share * machine.device.memory_bw
    return size * (machine.width / 2) / bandwidth + launch


class _Product(NamedTuple):
    """Products of (m, k) by (k, n), ``times`` kernels of ``batch`` each.

    ``part`` tells apart what makes queries, keys and values (``"in"``, of latent attention from
    ``"latent"``), what follows attention, and the networks.
    """

    part: str
    m: Figure
    n: Figure
    k: Figure
    times: Figure = 1.0
    batch: Figure = 1

    @property
    def sizes(self) -> dict[str, tuple[Figure, Figure, Figure]]:
        """Role -> m, n and k of Y = X W, dX = dY W^T and dW = X^T dY."""
        _, m, n, k, *_ = self
        return dict(zip(ROLES, ((m, n, k), (m, k, n), (k, n, m)), strict=True))

    def seconds(self, machine: Machine) -> list[Figure]:
        """Return the seconds of the products of ``sizes``, of the same FLOPs each."""
        # A product that adds to gradients in fp32 reads and writes them.
        summed = 0.0 if machine.stack.accumulate_bytes else 8.0
        return [
            self.times
            * matmul_seconds(machine, *size, self.batch, summed if role == WEIGHT else 0.0, role)
            for role, size in self.sizes.items()
        ]


@dataclass(frozen=True)
class _ShapeLayer(Layer):
    """A layer of a transformer of a shape."""

    shape: TransformerShape

    def tokens(self, split: Split) -> Figure:
        """Tokens of a micro-batch on a device."""
        return self.shape.sequence * split.samples / split.context

    def _gather(self, machine: Machine, split: Split) -> Figure:
        """Seconds in which tp ranks gather the residual stream, or scatter sums of it."""
        size = machine.width * self.tokens(split) * self.shape.hidden
        return machine.links.all_gather(size, split.tp, 1)

    def _stream(self, split: Split) -> Figure:
        """Numbers of the residual stream of a micro-batch on a device."""
        return self.tokens(split) * self.shape.hidden / split.shared


@dataclass(frozen=True)
class TransformerBlock(_ShapeLayer):
    """One block: norm, attention, norm, feed-forward network."""

    def _widths(self, split: Split) -> tuple[Figure, Figure]:
        """Width of queries, and of keys (as of values), on a device; few heads are copied."""
        shape = self.shape
        queries = shape.heads * shape.head_width / split.tp
        # More ranks than heads of keys: each rank holds a copy of a whole head.
        keys = np.maximum(shape.kv_heads * shape.head_width / split.tp, shape.head_width)
        return queries, keys

    def products(self, machine: Machine | None, split: Split) -> list[_Product]:
        """The products with weights, in the order of the forward pass; None: as is measured."""
        shape, tokens = self.shape, self.tokens(split)
        queries, keys = self._widths(split)
        inner, routed = shape.feed_forward / split.tp, tokens
        twice, wide = 2 if shape.gated else 1, 1
        # As is measured, the two products of a gated network are one kernel.
        if machine is None or machine.measured is not None:
            twice, wide = 1, twice
        times: Figure = 1.0
        networks: Figure = 1
        if shape.experts > 1:
            networks = shape.experts / split.expert
            # Tokens are spread evenly over experts, padded to the capacity.
            routed = tokens * shape.active * shape.capacity / networks
            if split.of_expert is not split.tp:  # ranks of tp send their own share of the tokens
                routed = routed * split.of_expert / split.tp
            if machine is not None and not machine.stack.grouped:
                # Without a grouped kernel every expert is a product of its own.
                times, networks = networks, 1
        if shape.key_rank:
            whole, up, keyed, out = shape.attention_products
            products = [
                _Product("latent", tokens, *whole),
                _Product("in", tokens, up[0] / split.tp, up[1]),
                _Product("in", tokens, keyed[0] / split.tp, keyed[1]),
                _Product("out", tokens, out[0], out[1] / split.tp),
            ]
        else:
            products = [
                _Product("in", tokens, queries + 2 * keys, shape.hidden),
                _Product("out", tokens, shape.hidden, queries),
            ]
        if shape.shared_experts:
            common = shape.shared_experts * inner
            products.append(_Product("shared", tokens, wide * common, shape.hidden, twice))
            products.append(_Product("shared", tokens, shape.hidden, common))
        if shape.experts > 1:
            inner = shape.feed_forward / split.of_expert
        first = _Product("up", routed, wide * inner, shape.hidden, times * twice, networks)
        products.append(first)
        products.append(_Product("down", routed, shape.hidden, inner, times, networks))
        return products

    def different_weights(self, split: Split) -> Figure:
        """See ``Layer.different_weights``; the weights of gate and network are one."""
        shape = self.shape
        queries, keys = self._widths(split)
        width = (2 if shape.gated else 1) + 1
        networks = [width * shape.hidden * shape.feed_forward / split.of_expert]
        if shape.shared_experts:
            networks.append(
                width * shape.hidden * shape.shared_experts * shape.feed_forward / split.tp
            )
        attention = (2 * queries + 2 * keys) * shape.hidden
        if shape.key_rank:
            attention = sum(m * n for m, n in shape.attention_products) / split.tp
        return attention + sum(networks)

    def weight_seconds(self, machine: Machine, split: Split) -> Figure:
        return sum(product.seconds(machine)[2] for product in self.products(machine, split))

    def seconds(self, machine: Machine, split: Split) -> LayerSeconds:
        """See ``Layer.seconds``; the operations are those of hybrid layers in docs/hybrid.md."""
        shape, tokens = self.shape, self.tokens(split)
        forward = backward = 0.0
        last: Figure = 0.0
        weight_gradients: dict[str, Figure] = {}
        for product in self.products(machine, split):
            last, input_gradient, weight_gradient = product.seconds(machine)
            forward += last
            backward += weight_gradient + input_gradient
            done = weight_gradients.get(product.part, 0.0)
            weight_gradients[product.part] = done + weight_gradient
        beside = forward, backward
        stream = self._stream(split)
        inner = tokens * shape.feed_forward / split.tp * (shape.active + shape.shared_experts)
        dropped = 1.0 if shape.dropout else 0.0
        gate_forward, gate_backward = (6, 10) if shape.gated else (4, 6)
        # Two norms; bytes per element are those of a read and a write at 2 bytes.
        norm_forward, norm_backward = NORM_BYTES[machine.stack.fused_norms]
        forward += 2 * kernel_seconds(machine, norm_forward * stream)
        # The activation reads two inputs if gated, else one, and writes one.
        forward += kernel_seconds(machine, gate_forward * inner)
        # Two residual sums, with the dropout's mask of one byte.
        forward += 2 * kernel_seconds(machine, (6 + dropped) * stream)
        backward += 2 * kernel_seconds(machine, norm_backward * stream)
        backward += kernel_seconds(machine, gate_backward * inner)
        backward += 2 * kernel_seconds(machine, (4 + dropped) * stream)
        if machine.measured is not None and not shape.positions:
            # Queries and keys are rotated. Shares of stacks fit whole steps, and have it in them.
            turned = kernel_seconds(machine, 4 * tokens * sum(self._widths(split)))
            forward, backward = forward + turned, backward + turned
        if shape.experts > 1 and machine.permute_passes:
            copies = stream * shape.active * shape.capacity
            passes = machine.permute_passes
            if shape.bias or shape.expert_bias:
                passes = passes + machine.stack.bias_passes
            permuted = kernel_seconds(machine, 2 * passes * copies, PERMUTE)
            forward, backward = forward + permuted, backward + permuted
        attention, attention_backward, again = self._attention(machine, split)
        exchange = self._exchange(machine, split, weight_gradients, attention, beside)
        if machine.stack.selective == SELECTIVE[1]:  # all but attention and every second product
            again = again + forward - beside[0] / 2
        return LayerSeconds(
            forward + attention, backward + attention_backward, *exchange, again, last
        )

    def _attention(self, machine: Machine, split: Split) -> tuple[Figure, Figure, Figure]:
        """Seconds of the attention core forward and backward, and of its recomputation."""
        shape, width = self.shape, self.shape.core_width
        heads = split.samples * shape.heads / split.tp
        queries: Figure = shape.sequence / split.context
        keys: Figure = shape.sequence
        if machine.attention_flops is not None:
            keys = shape.reach
            # QK^T and PV are 4 FLOPs a score and channel; a causal mask leaves half of them.
            square = (2.0 if shape.causal else 4.0) * queries * keys * width * heads
            traffic = 4 * machine.width * queries * width * heads / machine.memory_bw
            speed = machine.attention_flops * (machine.stack.sink_share if shape.sinks else 1.0)
            core = np.maximum(square / speed, traffic)
            # Backward, fused kernels make the scores again: five products for two (arXiv
            # 2307.08691).
            passes = (
                self._measured_attention(machine, split, which, times * square, times * core)
                for which, times in zip(PASSES, (1.0, 2.5), strict=True)
            )
            return *passes, 0.0
        scores = heads * queries * keys
        scored = matmul_seconds(machine, queries, keys, shape.head_width + shape.rope_width, heads)
        summed = matmul_seconds(machine, queries, shape.head_width, keys, heads)
        dropping = kernel_seconds(machine, 5 * scores) if shape.dropout else 0.0
        core = scored + summed + kernel_seconds(machine, 4 * scores) + dropping
        backward = 2 * (scored + summed) + kernel_seconds(machine, 6 * scores) + dropping
        return core, backward, core

    def attention_size(self, split: Split) -> tuple[Figure, ...]:
        """The shape of attention on a device, as ``Measured`` has it."""
        shape = self.shape
        # Ranks of a context do as much as on whole samples with fewer heads.
        ranks = split.tp * split.context
        kv_heads = shape.heads if shape.key_rank else shape.kv_heads
        heads = np.maximum(shape.heads / ranks, 1), np.maximum(kv_heads / ranks, 1)
        widths = shape.head_width + shape.rope_width, shape.head_width
        return split.samples, shape.reach, *heads, *widths

    def _measured_attention(
        self, machine: Machine, split: Split, which: str, flops: Figure, otherwise: Figure
    ) -> Figure:
        """Seconds of fused attention in a pass, by its FLOPs where its share of the peak is known.

        All scores count in the share, those that a causal mask leaves out, too.
        """
        if machine.measured is None:
            return otherwise
        precision = "bf16" if machine.precision in LOW else machine.precision
        share = machine.measured.attention_share(precision, which, *self.attention_size(split))
        seconds = 2 * flops / (share * machine.device.peak(precision))
        return np.where(np.isnan(share), otherwise, seconds)

    def _exchange(
        self,
        machine: Machine,
        split: Split,
        weight_gradients: dict[str, Figure],
        attention: Figure,
        products: tuple[Figure, Figure],
    ) -> tuple[Figure, Figure]:
        """Seconds of collectives that nothing hides, forward and backward.

        Weight gradients are seconds by part of the layer; ``products`` are all with weights, both
        passes.
        """
        shape, stack, links = self.shape, machine.stack, machine.links
        tokens = self.tokens(split)
        gather = self._gather(machine, split)
        gathers: Figure = 4  # two of attention, two of networks
        if shape.experts > 1 and not shape.shared_experts and split.of_expert is not split.tp:
            gathers = np.where(split.of_expert == split.tp, 4, 2)  # tokens go to whole experts
        forward = gathers * gather * (1 - stack.tensor_overlap)
        if stack.backward_overlap:
            # Input gradients are summed while the weight gradients of the same matrix are made;
            # sequence parallelism also gathers the gradients of outputs, in front of both.
            behind = [(weight_gradients["in"], 1), (weight_gradients["up"], gathers / 2 - 1)]
            summed = sum(n * stack.exposed(2 * gather, product) for product, n in behind)
            scattered = sum(n * stack.exposed(gather, product) for product, n in behind)
            shared = gathers / 2 * gather * (1 - stack.tensor_overlap) + scattered
            backward = np.where(split.sequence_parallel, shared, summed)
        else:
            backward = gathers * gather
            if stack.regather:
                # A rank keeps its share of a product's input, and gathers it for weight gradients.
                again = gathers / 2 * gather * (1 - stack.tensor_overlap)
                backward = backward + np.where(split.sequence_parallel, again, 0.0)
        # Keys and values, and the rotated part of latent attention.
        passed = 2 * self._widths(split)[1] + shape.heads * shape.rope_width / split.tp
        blocks = machine.width * tokens * passed
        ring = links.all_gather(blocks * split.context, split.context, split.tp)
        # Blocks of keys and values pass beside the attention core (ring attention).
        forward = forward + np.maximum(0.0, ring - attention)
        backward = backward + np.maximum(0.0, 2 * ring - 2.5 * attention)
        if shape.experts > 1:
            size = machine.width * tokens * shape.hidden * shape.capacity / split.shared
            group = split.expert, split.of_expert
            if stack.two_levels:
                once = stack.once_a_server
                sent = machine.exchanges.dispatch(size, shape.active, *group, once)
            else:
                sent = machine.exchanges.all_to_all(size * shape.active, *group)
            # To the experts and back.
            dealt = 2 * sent
            hidden = [stack.expert_overlap * np.minimum(dealt, beside) for beside in products]
            forward, backward = forward + dealt - hidden[0], backward + dealt - hidden[1]
        return forward, backward

    def parameters(self, split: Split) -> tuple[Figure, Figure]:
        """See ``Layer.parameters``: matrices are divided by tp, norms and output biases are not."""
        shape = self.shape
        dense, experts = shape.block_parameters
        # What every tp rank holds: norms, output biases, routers and latents.
        whole = 2.0 * shape.hidden * shape.norm_rows + (2.0 * shape.hidden if shape.bias else 0.0)
        if shape.experts > 1:
            whole += shape.hidden * (shape.experts - (1 if shape.bias else 0))
            whole += shape.experts if shape.router_bias else 0
        if shape.qk_norm:
            whole += 2 * shape.head_width
        if shape.key_rank:
            whole += shape.hidden * shape.latent_width + shape.query_rank + shape.key_rank
        # Heads of keys and values that tp ranks hold copies of count for each rank.
        copied = self._widths(split)[1] * split.tp - shape.kv_heads * shape.head_width
        copied = 2 * copied * (shape.hidden + (1 if shape.bias else 0))
        per_device = (dense - whole + copied) / split.tp + whole
        return per_device, experts / split.of_expert / split.expert

    def saved_bytes(self, machine: Machine, split: Split, mode: str) -> Figure:
        """See ``Layer.saved_bytes``; equations 2 to 6 and their form for gated networks."""
        shape, width, tp = self.shape, machine.width, split.tp
        tokens, h = self.tokens(split), self.shape.hidden
        if mode == "full":
            return width * tokens * h / split.shared
        fused = machine.attention_flops is not None
        if mode == "selective" and machine.stack.selective == SELECTIVE[1]:
            return self._of_operations(machine, split)
        queries = shape.heads * shape.head_width
        keys = np.maximum(shape.kv_heads * shape.head_width, shape.head_width * tp)
        stream = (4 * width + (2 if shape.dropout else 0)) * h / split.shared
        if not machine.stack.fused_norms:
            # Of each norm its input in fp32, and its result before the weight.
            stream = stream + 2 * (4 + 2) * h / split.shared
        if shape.key_rank:
            stream = stream + width * shape.latent_width / split.shared
        if shape.experts > 1:
            # Tokens in the order of experts, which grouped products read.
            copies = shape.active * shape.capacity * split.of_expert / tp
            stream = stream + width * h * copies
        passed = shape.active + shape.shared_experts
        inner = (3 if shape.gated else 2) * shape.feed_forward * passed
        if mode == "selective" and shape.gated:
            # Selective recomputation makes the activation's product with the gate anew.
            inner = 2 * shape.feed_forward * passed
        rotated = 2 * shape.heads * shape.rope_width  # of queries and keys
        within = width * (2 * queries + 2 * keys + rotated + inner) / tp
        if fused:
            # Fused attention keeps one fp32 log-sum-exp per token and head.
            within = within + 4 * shape.heads / tp
        elif mode == "none":
            # Scores by softmax, dropout's mask of a byte and its output: 5 a s^2 b at 2 bytes.
            kept = 2 * width + 1 if shape.dropout else width
            within = within + kept * shape.heads * shape.sequence / tp
        return tokens * (stream + within)

    def _of_operations(self, machine: Machine, split: Split) -> Figure:
        """Bytes that are kept if every second product's output, and attention's, is not made anew.

        The layer's input is kept, too (PyTorch's selective checkpoints, torchtitan's ``op``).
        """
        shape, tokens = self.shape, self.tokens(split)
        core = shape.heads * shape.head_width
        networks = (2 if shape.gated else 1) * shape.feed_forward
        inner = sum(n for n, _ in shape.attention_products[:-1])
        inner += networks * (shape.active + shape.shared_experts)
        stream = (1 + 2 / 2) * shape.hidden / split.shared
        kept = machine.width * (stream + (inner / 2 + core) / split.tp) + 4 * shape.heads / split.tp
        return tokens * kept


def kernels_of(
    shape: TransformerShape, split: Split
) -> tuple[list[tuple[Any, ...]], tuple[int, ...]]:
    """Return the products and the attention that a layer runs, as ``Measured`` has their shapes.

    The head's products are among them.
    """
    block = TransformerBlock(shape)
    words = _Product("", block.tokens(split), shape.vocabulary / split.tp, shape.hidden)
    found = []
    for product in (*block.products(None, split), words):
        for role, (m, n, k) in product.sizes.items():
            found.append((role, *map(int, (product.batch, m, k, n))))
    return list(dict.fromkeys(found)), tuple(map(int, block.attention_size(split)))


@dataclass(frozen=True)
class Embedding(_ShapeLayer):
    """The table of tokens, and of positions, in front of the first block."""

    def seconds(self, machine: Machine, split: Split) -> LayerSeconds:
        """See ``Layer.seconds``: one lookup, whose parts tp ranks sum."""
        gather = self._gather(machine, split)
        forward = np.where(split.sequence_parallel, 1, 2) * gather
        backward = np.where(split.sequence_parallel, gather, 0.0)
        return LayerSeconds(
            kernel_seconds(machine, 4 * self._stream(split)), 0.0, forward, backward
        )

    def parameters(self, split: Split) -> tuple[Figure, Figure]:
        shape = self.shape
        return shape.hidden * (shape.vocabulary / split.tp + shape.positions), 0.0

    def saved_bytes(self, machine: Machine, split: Split, mode: str) -> Figure:
        """See ``Layer.saved_bytes``: a mask if there is dropout (section 4.3)."""
        return self._stream(split) * (1.0 if self.shape.dropout else 0.0)


@dataclass(frozen=True)
class Head(_ShapeLayer):
    """The product with the vocabulary and the loss, behind the last block.

    Modules that predict tokens behind the next one stand beside it; see ``next_tokens`` of shapes.
    """

    def seconds(self, machine: Machine, split: Split) -> LayerSeconds:
        tokens, words = self.tokens(split), self.shape.vocabulary / split.tp
        hidden, count = self.shape.hidden, self.shape.next_tokens
        product, input_gradient, weights = _Product("", tokens, words, hidden).seconds(machine)
        loss = LOSS if machine.stack.logit_bytes else FUSED_LOSS
        forward = product + kernel_seconds(machine, 10 * tokens * words, loss)
        backward = input_gradient + weights + kernel_seconds(machine, 8 * tokens * words, loss)
        # The input is gathered, or whole; its gradient is scattered, or summed, in both cases.
        gather = self._gather(machine, split)
        ahead = np.where(split.sequence_parallel, gather, 0.0)
        again = 2 if machine.stack.regather else 1
        behind = np.where(split.sequence_parallel, again, 2) * gather
        if not count:
            return LayerSeconds(forward, backward, ahead, behind)
        block = TransformerBlock(self.shape.module).seconds(machine, split)
        joined = _Product("", tokens, hidden / split.tp, 2 * hidden).seconds(machine)
        return LayerSeconds(
            forward + count * (forward + block.forward + joined[0]),
            backward + count * (backward + block.backward + joined[1] + joined[2]),
            ahead + count * (ahead + block.forward_exchange),
            behind + count * (behind + block.backward_exchange),
        )

    def weight_seconds(self, machine: Machine, split: Split) -> Figure:
        words = self.shape.vocabulary / split.tp
        size = self.shape.hidden, words, self.tokens(split)
        return matmul_seconds(machine, *size, role=WEIGHT)

    def parameters(self, split: Split) -> tuple[Figure, Figure]:
        """See ``Layer.parameters``: the last norm is counted with it."""
        shape = self.shape
        head = shape.hidden * (shape.vocabulary / split.tp + shape.norm_rows)
        if not shape.next_tokens:
            return head, 0.0
        dense, experts = TransformerBlock(shape.module).parameters(split)
        joined = 2 * shape.hidden**2 / split.tp + 3 * shape.hidden * shape.norm_rows
        return head + shape.next_tokens * (dense + joined), shape.next_tokens * experts

    def saved_bytes(self, machine: Machine, split: Split, mode: str) -> Figure:
        """See ``Layer.saved_bytes``: input of the norm and of the product (section 4.3)."""
        tokens, count = self.tokens(split), self.shape.next_tokens
        head = 2 * machine.width * tokens * self.shape.hidden / split.shared
        if not count:
            return head
        block = TransformerBlock(self.shape.module).saved_bytes(machine, split, mode)
        return head + count * (2 * head + block)

    def working_bytes(self, machine: Machine, split: Split) -> Figure:
        """See ``Layer.working_bytes``: logits, again in fp32 for the loss, and more."""
        size = machine.width + 4 + machine.stack.logit_bytes
        return size * self.tokens(split) * self.shape.vocabulary / split.tp
