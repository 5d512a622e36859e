"""Families of generated chains: the paper's random ones, and shapes of real models.

A family is a function of a random generator and a number of pivots n. It returns the arrays of a
chain in relative units, which ``draw`` in ``parenvs.datasets.pipeline.problems`` scales. The
model-like families are built from operations (rows of FLOPs, parameters and cut, relative to their
layer), which are merged into a few pivots per layer, like the operations of a graph made coarser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from parenvs.compiled import Array


class ChainArrays(NamedTuple):
    """Arrays of a generated chain, (n,) float64 each, in units of the family's own."""

    forward: Array  # time
    backward: Array  # time, in the unit of ``forward``
    cut: Array  # size of what crosses a cut right after the pivot
    parameters: Array  # size of the variables


Family = Callable[[Generator, int], ChainArrays]

COMPUTE, WEIGHTS, CUT = range(3)
"""Columns of operations: FLOPs, parameters, and the cut right behind."""
MIN_PIVOTS = 24
"""Smallest number of pivots that every family can make a chain of."""
MIN_VARIABLES = 8
"""Pivots with variables that every chain has at least: one for each stage of the longest plans."""
NOISE = 0.3
"""Largest standard deviation of the logarithm of the noise on a pivot's value."""


def uniform(rng: Generator, n: int) -> ChainArrays:
    """Draw independent values from U(low, 1), low from U(0, 0.5) (arXiv 2007.04069, sec. 4.5)."""
    return _independent(rng, n, lambda: rng.uniform(rng.uniform(0.0, 0.5), 1.0, n))


def normal(rng: Generator, n: int) -> ChainArrays:
    """Draw independent values from N(1, s), s from U(0.2, 1), clipped to [0.01, 4] (sec. 4.5)."""
    return _independent(rng, n, lambda: np.clip(rng.normal(1.0, rng.uniform(0.2, 1.0), n), 0.01, 4))


def binomial(rng: Generator, n: int) -> ChainArrays:
    """Draw independent counts from Bin(4..40, U(0.2, 0.8)), at least 1 (section 4.5)."""

    def sample() -> Array:
        drawn = rng.binomial(rng.integers(4, 41), rng.uniform(0.2, 0.8), n)
        return np.maximum(drawn, 1).astype(float)

    return _independent(rng, n, sample)


def transformer(rng: Generator, n: int) -> ChainArrays:
    """Draw equal layers between an embedding and a vocabulary head (BERT, GPT).

    Cuts inside a layer are larger than those at its end: attention scores, feed-forward width.
    """
    head, vocabulary = int(rng.integers(1, 5)), log_uniform(rng, 6, 90)
    layers = _stack(rng, np.concatenate([_attention(rng), _feed_forward(rng)]), n - 1 - head)
    front = _embedding(n - head - len(layers), vocabulary)
    return _chain(rng, np.concatenate([front, layers, _logits(rng, head, vocabulary)]))


def encoder_decoder(rng: Generator, n: int) -> ChainArrays:
    """Draw two kinds of layers (T5); the encoder's output crosses every cut of the decoder."""
    head, vocabulary = int(rng.integers(1, 5)), log_uniform(rng, 6, 90)
    # At least one pivot for the embedding on either side.
    body = n - head - 2
    in_encoder = round(rng.uniform(0.3, 0.7) * body)
    attention, forward = _attention(rng), _feed_forward(rng)
    encoder = _stack(rng, np.concatenate([attention, forward]), in_encoder)
    decoder = _stack(rng, np.concatenate([attention, attention, forward]), body - in_encoder)
    table = 0.0 if rng.random() < 0.5 else vocabulary  # the embedding is tied or not
    decoder_side = np.concatenate([[[0.01, table, 1.0]], decoder, _logits(rng, head, vocabulary)])
    # Tokens of the decoder per token of the encoder.
    decoder_side[:, [COMPUTE, CUT]] *= rng.uniform(0.3, 1.5)
    decoder_side[: len(decoder), CUT] += 1.0  # the encoder's output, up to its last reader
    front = _embedding(n - len(encoder) - len(decoder_side), vocabulary)
    return _chain(rng, np.concatenate([front, encoder, decoder_side]))


def cnn(rng: Generator, n: int) -> ChainArrays:
    """Draw a pyramid (VGG, ResNet): activations shrink, weights grow, FLOPs stay about even.

    A dense head holds up to 0.9 of the weights and almost none of the compute.
    """
    dense, loss = int(rng.integers(1, 6)), int(rng.integers(0, n // 5))
    body = n - 1 - dense - loss
    operations = np.array([[1.0, 1.0, 1.0], [0.01, 0.002, 1.0], [0.005, 0.0, 1.0]])
    if rng.random() >= 0.5:
        operations = _narrow_block(rng.uniform(0.25, 1.0), 0.25, 0.5)
    per_block = int(rng.integers(1, min(len(operations), body // 4) + 1))
    blocks = body // per_block
    groups = int(rng.integers(3, min(blocks, 5) + 1))
    counts = _counts(rng, blocks, groups)
    shrink, grow = rng.uniform(1.6, 2.4), rng.uniform(2.5, 4.5)
    pool = 0.25 if rng.random() < 0.5 else 1.0
    block = _merged(rng, operations, per_block)
    rows = [np.tile([0.1, 0.01, 1.0], (1 + body - blocks * per_block, 1))]
    for group, count in enumerate(counts):
        # FLOPs per pivot stay even, as activations shrink while weights grow.
        scale = [rng.lognormal(0.0, 0.2), grow**group, shrink**-group]
        section = np.tile(block * scale, (count, 1))
        section[-1, CUT] *= pool
        rows.append(section)
    pyramid = np.concatenate(rows)
    compute, weights, _ = pyramid.sum(axis=0)
    head = np.zeros((dense + loss, 3))
    head[:, CUT] = pyramid[-1, CUT] * log_uniform(rng, 0.005, 0.1)
    head[:dense, COMPUTE] = 1e-3 * compute * rng.random(dense)
    share = rng.uniform(0.05, 0.9)
    falling = np.sort(rng.dirichlet(np.ones(dense)))[::-1]
    head[:dense, WEIGHTS] = falling * share / (1 - share) * weights
    return _chain(rng, np.concatenate([pyramid, head]))


def bottleneck(rng: Generator, n: int) -> ChainArrays:
    """Draw blocks narrow-wide-narrow (MobileNet); half of the chains are a U with long skips."""
    expand = rng.uniform(2.0, 8.0)
    levels = int(rng.integers(3, 6))
    skips = rng.random() < 0.5
    level = np.arange(levels)
    if skips:
        level = np.concatenate([level, level[-2::-1]])
    per_block = int(rng.integers(2, min(6, (n - 2) // len(level)) + 1))
    blocks = (n - 2) // per_block
    shrink = rng.uniform(1.5, 2.2) if skips else rng.uniform(1.1, 1.8)
    block = _merged(rng, _narrow_block(expand, 0.45, 0.1), per_block)
    rows = [np.tile([0.05, 0.01, 1.0], (n - 1 - blocks * per_block, 1))]
    for depth, count in zip(level, _counts(rng, blocks, len(level)), strict=True):
        section = np.tile(block * [1.0, 4.0**depth, shrink**-depth], (count, 1))
        # Outputs of the levels above are kept for the way up.
        if skips:
            section[:, CUT] += (shrink ** -np.arange(depth)).sum()
        rows.append(section)
    rows.append(np.array([[0.05, 0.01, 1.0]]))
    return _chain(rng, np.concatenate(rows))


def heavy_head(rng: Generator, n: int) -> ChainArrays:
    """Draw an even chain; one to four pivots at an end have most weights, compute or both."""
    rows = np.ones((n, 3))
    rows[:, [COMPUTE, WEIGHTS]] *= rng.lognormal(0.0, 0.3, (n, 2))
    rows[:, WEIGHTS] *= rng.random(n) >= rng.uniform(0.0, 0.7)
    rows[:, CUT] = np.exp(np.cumsum(rng.normal(0.0, rng.uniform(0.0, 0.1), n)))
    count = int(rng.integers(1, 5))
    heavy = slice(0, count) if rng.random() < 0.5 else slice(n - count, n)
    heavy_columns = ((WEIGHTS,), (COMPUTE,), (COMPUTE, WEIGHTS))[rng.integers(3)]
    # Heavy pivots have weights, even where they were drawn without.
    rows[heavy, WEIGHTS] = rng.uniform(0.2, 1.0, count)
    for column, low, high in ((COMPUTE, 0.5, 0.8), (WEIGHTS, 0.5, 0.95)):
        if column in heavy_columns:
            # A share s of the total is s / (1 - s) of all others.
            share = rng.uniform(low, high)
            others = rows[:, column].sum() - rows[heavy, column].sum()
            rows[heavy, column] *= share / (1.0 - share) * others / rows[heavy, column].sum()
    return _chain(rng, rows)


FAMILIES: Mapping[str, Family] = {
    "uniform": uniform,
    "normal": normal,
    "binomial": binomial,
    "transformer": transformer,
    "encoder-decoder": encoder_decoder,
    "cnn": cnn,
    "bottleneck": bottleneck,
    "heavy-head": heavy_head,
}
"""Name -> family; each takes a random generator and a number of pivots >= ``MIN_PIVOTS``."""


# Operations are rows of (FLOPs, parameters, cut right behind it); the width of the layer is 1.
# Where a residual branch goes around an operation, its 1 is part of the cut.


def _attention(rng: Generator) -> Array:
    scores, mixing = log_uniform(rng, 0.5, 8.0), rng.uniform(0.1, 1.5)
    return np.array(
        [
            [0.02, 0.001, 2.0],  # norm
            [3.0, 3.0, 4.0],  # query, key, value
            [mixing, 0.0, 2.0 + scores],  # scores; the values cross too
            [0.01, 0.0, 2.0 + scores],  # softmax
            [mixing, 0.0, 2.0],  # values mixed
            [1.0, 1.0, 2.0],  # output
            [0.01, 0.0, 1.0],  # residual sum
        ]
    )


def _feed_forward(rng: Generator) -> Array:
    width = 4.0 if rng.random() < 0.7 else rng.uniform(2.0, 6.0)
    return np.array(
        [
            [0.02, 0.001, 2.0],  # norm
            [width, width, 1.0 + width],
            [0.02, 0.0, 1.0 + width],  # activation
            [width, width, 2.0],
            [0.01, 0.0, 1.0],  # residual sum
        ]
    )


def _embedding(count: int, vocabulary: float) -> Array:
    rows = np.tile([0.01, 0.0, 1.0], (count, 1))
    rows[0, WEIGHTS] = vocabulary
    rows[1::3, WEIGHTS] = 0.1
    return rows


def _logits(rng: Generator, count: int, vocabulary: float) -> Array:
    rows = np.tile([0.01, 0.0, log_uniform(rng, 4, 60)], (count, 1))
    rows[0, COMPUTE] = vocabulary
    rows[0, WEIGHTS] = vocabulary if rng.random() < 0.5 else 0.001
    return rows


def _narrow_block(width: float, outer: float, middle: float) -> Array:
    """Return the operations of a block of ResNet or MobileNet, ``width`` times as wide inside.

    ``outer`` and ``middle`` are the work and the weights of its convolutions.
    """
    inner = [0.005, 0.0, 1.0 + width]
    return np.array(
        [
            [outer, outer, 1.0 + width],
            inner,
            [middle, middle, 1.0 + width],
            inner,
            [outer, outer, 2.0],
            [0.005, 0.0, 1.0],  # residual sum
        ]
    )


def _stack(rng: Generator, layer: Array, max_pivots: int) -> Array:
    """Return equal layers end to end, (at most ``max_pivots``, 3).

    Either each layer becomes the same few pivots, or the whole stack is made coarser: then any
    operation can end a pivot, and most that do so end a layer.
    """
    if rng.random() < 0.7:
        per_layer = int(rng.integers(1, min(len(layer), max_pivots // 2) + 1))
        return np.tile(_merged(rng, layer, per_layer), (max_pivots // per_layer, 1))
    layers = int(rng.integers(max_pivots // 2, 2 * max_pivots))
    at_end = np.arange(layers * len(layer)) % len(layer) == len(layer) - 1
    return _merged(rng, np.tile(layer, (layers, 1)), max_pivots, np.where(at_end, 30.0, 1.0))


def _merged(rng: Generator, operations: Array, count: int, weights: Array | None = None) -> Array:
    """Merge consecutive of (m, 3) operations into pivots, (count, 3); the last ends the last pivot.

    ``weights``, (m,), are in proportion to the chances to end a pivot.
    """
    last = len(operations) - 1
    chances = None if weights is None else weights[:-1] / weights[:-1].sum()
    # The last operation always ends a pivot; of the others, count - 1 do.
    ends = np.append(np.sort(rng.choice(last, count - 1, replace=False, p=chances)), last)
    merged = np.add.reduceat(operations, np.append(0, ends[:-1] + 1), axis=0)
    merged[:, CUT] = operations[ends, CUT]
    return merged


def _counts(rng: Generator, total: int, parts: int) -> Array:
    return 1 + rng.multinomial(total - parts, rng.dirichlet(np.full(parts, 4.0)))


def log_uniform(rng: Generator, low: float, high: float) -> float:
    """Draw a number from ``low`` to ``high`` whose logarithm is uniform."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _independent(rng: Generator, n: int, sample: Callable[[], Array]) -> ChainArrays:
    rows = np.stack([sample(), sample(), sample()], axis=1)
    rows[:, WEIGHTS] *= rng.random(n) >= rng.uniform(0.0, 0.8)
    return _finished(rng, rows, 0.0, 0.0)


def _chain(rng: Generator, rows: Array) -> ChainArrays:
    """Return the arrays of a chain of ``rows``: most get noise on their times, some on sizes."""
    noise = rng.uniform(0.0, NOISE) if rng.random() < 0.7 else 0.0
    return _finished(rng, rows, noise, noise if rng.random() < 0.3 else 0.0)


def _finished(rng: Generator, rows: Array, time_noise: float, size_noise: float) -> ChainArrays:
    """Return a chain of ``rows``, (n, 3), with noise and ``MIN_VARIABLES`` or more variables.

    Noises are standard deviations of logarithms. Some pivots without variables cost no time; no
    bytes cross the cut behind the last pivot.
    """
    n = len(rows)
    forward = rows[:, COMPUTE] * rng.lognormal(0.0, time_noise, n)
    parameters, cut = (rows[:, k] * rng.lognormal(0.0, size_noise, n) for k in (WEIGHTS, CUT))
    costless = (parameters == 0) & (rng.random(n) < rng.uniform(0.0, 0.6))
    forward = np.where(costless, 0.0, forward)
    backward = rng.uniform(1.3, 2.2) * forward * rng.lognormal(0.0, time_noise, n)
    missing = MIN_VARIABLES - np.count_nonzero(parameters)
    # Like biases: small, but enough for a stage of its own.
    if missing > 0:
        empty = np.flatnonzero(parameters == 0)
        # All sizes are equal if no pivot has a variable.
        small = 0.01 * parameters.max() or 1.0
        parameters[rng.choice(empty, missing, replace=False)] = small
    cut[-1] = 0.0
    return ChainArrays(forward, backward, cut, parameters)
