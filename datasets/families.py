"""Families of generated chains: the paper's random ones, and shapes of real models.

A family is a function of a random generator and a number of pivots. It returns the four arrays of a
chain, in relative units: ``draw`` in ``parenvs.datasets.generators`` scales them. The model-like
families are built from operations (rows of FLOPs, parameters and cut, relative to their layer) that
are merged into a few pivots a layer, as a graph is when it is made coarser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""(n,) float64 each: forward, backward, cut and parameters, in units of the family's own."""
Family = Callable[[np.random.Generator, int], Arrays]

LEAST_PIVOTS = 24
"""Fewest pivots that every family can be asked for."""
LEAST_VARIABLES = 8
"""Pivots with variables that every chain holds at least: one for each of the most stages."""
NOISE = 0.3
"""Largest standard deviation of the logarithm of the noise on a pivot's value."""


def uniform(rng: np.random.Generator, n: int) -> Arrays:
    """Independent values from U(low, 1), low from U(0, 0.5) (arXiv 2007.04069, section 4.5)."""
    return _independent(rng, n, lambda: rng.uniform(rng.uniform(0.0, 0.5), 1.0, n))


def normal(rng: np.random.Generator, n: int) -> Arrays:
    """Independent values from N(1, s), s from U(0.2, 1), clipped to [0.01, 4] (section 4.5)."""
    return _independent(rng, n, lambda: np.clip(rng.normal(1.0, rng.uniform(0.2, 1.0), n), 0.01, 4))


def binomial(rng: np.random.Generator, n: int) -> Arrays:
    """Independent counts from Bin(4..40, U(0.2, 0.8)), at least 1 (section 4.5)."""

    def sample() -> np.ndarray:
        drawn = rng.binomial(rng.integers(4, 41), rng.uniform(0.2, 0.8), n)
        return np.maximum(drawn, 1).astype(np.float64)

    return _independent(rng, n, sample)


def transformer(rng: np.random.Generator, n: int) -> Arrays:
    """Equal layers between an embedding and a vocabulary head (BERT, GPT).

    Inside a layer the cuts are larger than at its end: attention scores, feed-forward width.
    """
    head, vocabulary = int(rng.integers(1, 5)), _log_uniform(rng, 6, 90)
    layers = _stack(rng, np.concatenate([_attention(rng), _feed_forward(rng)]), n - 1 - head)
    front = _embedding(n - head - len(layers), vocabulary)
    return _chain(rng, np.concatenate([front, layers, _logits(rng, head, vocabulary)]))


def encoder_decoder(rng: np.random.Generator, n: int) -> Arrays:
    """Two kinds of layers (T5): the encoder's output crosses every cut of the decoder."""
    head, vocabulary = int(rng.integers(1, 5)), _log_uniform(rng, 6, 90)
    body = n - head - 2  # a pivot at least for the embedding on either side
    in_encoder = round(rng.uniform(0.3, 0.7) * body)
    attention, forward = _attention(rng), _feed_forward(rng)
    encoder = _stack(rng, np.concatenate([attention, forward]), in_encoder)
    decoder = _stack(rng, np.concatenate([attention, attention, forward]), body - in_encoder)
    table = 0.0 if rng.random() < 0.5 else vocabulary  # tied or not
    behind = np.concatenate([[[0.01, table, 1.0]], decoder, _logits(rng, head, vocabulary)])
    behind[:, [0, 2]] *= rng.uniform(0.3, 1.5)  # the decoder's tokens for one of the encoder's
    behind[: len(decoder), 2] += 1.0  # the last layer is the last to read the encoder's output
    front = _embedding(n - len(encoder) - len(behind), vocabulary)
    return _chain(rng, np.concatenate([front, encoder, behind]))


def cnn(rng: np.random.Generator, n: int) -> Arrays:
    """A pyramid (VGG, ResNet): activations shrink, weights grow, FLOPs stay about even.

    A dense head holds up to 0.9 of the weights and next to none of the compute.
    """
    dense, loss = int(rng.integers(1, 6)), int(rng.integers(0, n // 5))
    body = n - 1 - dense - loss
    operations = _plain_block() if rng.random() < 0.5 else _residual_block(rng)
    per_block = int(rng.integers(1, min(len(operations), body // 4) + 1))
    blocks = body // per_block
    groups = int(rng.integers(3, min(blocks, 5) + 1))
    counts = _counts(rng, blocks, groups)
    shrink, grow = rng.uniform(1.6, 2.4), rng.uniform(2.5, 4.5)
    pool = 0.25 if rng.random() < 0.5 else 1.0
    block = _merged(rng, operations, per_block)
    rows = [np.tile([0.1, 0.01, 1.0], (1 + body - blocks * per_block, 1))]
    for group, count in enumerate(counts):
        scale = [rng.lognormal(0.0, 0.2), grow**group, shrink**-group]
        section = np.tile(block * scale, (count, 1))
        section[-1, 2] *= pool
        rows.append(section)
    pyramid = np.concatenate(rows)
    compute, weights, _ = pyramid.sum(axis=0)
    head = np.zeros((dense + loss, 3))
    head[:, 2] = pyramid[-1, 2] * _log_uniform(rng, 0.005, 0.1)
    head[:dense, 0] = 1e-3 * compute * rng.random(dense)
    share = rng.uniform(0.05, 0.9)
    head[:dense, 1] = np.sort(rng.dirichlet(np.ones(dense)))[::-1] * share / (1 - share) * weights
    return _chain(rng, np.concatenate([pyramid, head]))


def bottleneck(rng: np.random.Generator, n: int) -> Arrays:
    """Blocks narrow-wide-narrow (MobileNet), half of them as a U with long skips (U-Net)."""
    expand = rng.uniform(2.0, 8.0)
    levels = int(rng.integers(3, 6))
    skips = rng.random() < 0.5
    level = np.arange(levels)
    if skips:
        level = np.concatenate([level, level[-2::-1]])
    per_block = int(rng.integers(2, min(6, (n - 2) // len(level)) + 1))
    blocks = (n - 2) // per_block
    shrink = rng.uniform(1.5, 2.2) if skips else rng.uniform(1.1, 1.8)
    block = _merged(rng, _wide_block(expand), per_block)
    rows = [np.tile([0.05, 0.01, 1.0], (n - 1 - blocks * per_block, 1))]
    for depth, count in zip(level, _counts(rng, blocks, len(level)), strict=True):
        section = np.tile(block * [1.0, 4.0**depth, shrink**-depth], (count, 1))
        if skips:  # the outputs of the levels above wait for the way up
            section[:, 2] += (shrink ** -np.arange(depth)).sum()
        rows.append(section)
    rows.append(np.array([[0.05, 0.01, 1.0]]))
    return _chain(rng, np.concatenate(rows))


def heavy_head(rng: np.random.Generator, n: int) -> Arrays:
    """An even chain with one to four pivots at an end that hold most weights, compute or both."""
    rows = np.ones((n, 3))
    rows[:, :2] *= rng.lognormal(0.0, 0.3, (n, 2))
    rows[:, 1] *= rng.random(n) >= rng.uniform(0.0, 0.7)
    rows[:, 2] = np.exp(np.cumsum(rng.normal(0.0, rng.uniform(0.0, 0.1), n)))
    count = int(rng.integers(1, 5))
    heavy = slice(0, count) if rng.random() < 0.5 else slice(n - count, n)
    which = int(rng.integers(3))  # 0 weights, 1 compute, 2 both
    rows[heavy, 1] = rng.uniform(0.2, 1.0, count)
    for column, low, high in ((0, 0.5, 0.8), (1, 0.5, 0.95)):
        if which in (2, 1 - column):
            share = rng.uniform(low, high)
            rest = rows[:, column].sum() - rows[heavy, column].sum()
            rows[heavy, column] *= share / (1.0 - share) * rest / rows[heavy, column].sum()
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
"""Every family by name; each takes a generator and at least ``LEAST_PIVOTS`` pivots."""


# Operations: rows of (FLOPs, parameters, cut right behind it), the layer's own width being 1.
# Where a residual branch goes around an operation, its 1 is part of the cut.


def _attention(rng: np.random.Generator) -> np.ndarray:
    scores, mixing = _log_uniform(rng, 0.5, 8.0), rng.uniform(0.1, 1.5)
    return np.array(
        [
            [0.02, 0.001, 2.0],  # norm
            [3.0, 3.0, 4.0],  # query, key, value
            [mixing, 0.0, 2.0 + scores],  # scores; the values wait
            [0.01, 0.0, 2.0 + scores],  # softmax
            [mixing, 0.0, 2.0],  # values mixed
            [1.0, 1.0, 2.0],  # output
            [0.01, 0.0, 1.0],  # residual sum
        ]
    )


def _feed_forward(rng: np.random.Generator) -> np.ndarray:
    wide = 4.0 if rng.random() < 0.7 else rng.uniform(2.0, 6.0)
    return np.array(
        [
            [0.02, 0.001, 2.0],  # norm
            [wide, wide, 1.0 + wide],
            [0.02, 0.0, 1.0 + wide],  # activation
            [wide, wide, 2.0],
            [0.01, 0.0, 1.0],  # residual sum
        ]
    )


def _embedding(count: int, vocabulary: float) -> np.ndarray:
    """The table, then positions, norms and masks; what the layers do not fill goes here."""
    rows = np.tile([0.01, 0.0, 1.0], (count, 1))
    rows[0, 1] = vocabulary
    rows[1::3, 1] = 0.1
    return rows


def _logits(rng: np.random.Generator, count: int, vocabulary: float) -> np.ndarray:
    """Logits over the vocabulary (the table is tied in half of the cases), softmax and loss."""
    rows = np.tile([0.01, 0.0, _log_uniform(rng, 4, 60)], (count, 1))
    rows[0, 0] = vocabulary
    rows[0, 1] = vocabulary if rng.random() < 0.5 else 0.001
    return rows


def _plain_block() -> np.ndarray:
    return np.array([[1.0, 1.0, 1.0], [0.01, 0.002, 1.0], [0.005, 0.0, 1.0]])


def _residual_block(rng: np.random.Generator) -> np.ndarray:
    narrow = rng.uniform(0.25, 1.0)
    inner = [0.005, 0.0, 1.0 + narrow]
    return np.array(
        [
            [0.25, 0.25, 1.0 + narrow],
            inner,
            [0.5, 0.5, 1.0 + narrow],
            inner,
            [0.25, 0.25, 2.0],
            [0.005, 0.0, 1.0],  # residual sum
        ]
    )


def _wide_block(expand: float) -> np.ndarray:
    inner = [0.005, 0.0, 1.0 + expand]
    return np.array(
        [
            [0.45, 0.45, 1.0 + expand],
            inner,
            [0.1, 0.1, 1.0 + expand],  # depthwise
            inner,
            [0.45, 0.45, 2.0],
            [0.005, 0.0, 1.0],  # residual sum
        ]
    )


def _stack(rng: np.random.Generator, layer: np.ndarray, most: int) -> np.ndarray:
    """(<= most, 3): layers end to end, each of the same few pivots, or as a long graph made coarse.

    Of a long graph any operation can be the end of a pivot, most are layers' ends.
    """
    if rng.random() < 0.7:
        per_layer = int(rng.integers(1, min(len(layer), most // 2) + 1))
        return np.tile(_merged(rng, layer, per_layer), (most // per_layer, 1))
    layers = int(rng.integers(most // 2, 2 * most))
    at_end = np.arange(layers * len(layer)) % len(layer) == len(layer) - 1
    return _merged(rng, np.tile(layer, (layers, 1)), most, np.where(at_end, 30.0, 1.0))


def _merged(
    rng: np.random.Generator, operations: np.ndarray, count: int, chance: np.ndarray | None = None
) -> np.ndarray:
    """(count, 3): consecutive operations merged; the cut behind the last one always stays."""
    last = len(operations) - 1
    share = None if chance is None else chance[:-1] / chance[:-1].sum()
    ends = np.append(np.sort(rng.choice(last, count - 1, replace=False, p=share)), last)
    merged = np.add.reduceat(operations, np.append(0, ends[:-1] + 1), axis=0)
    merged[:, 2] = operations[ends, 2]
    return merged


def _counts(rng: np.random.Generator, total: int, parts: int) -> np.ndarray:
    """(parts,) whole numbers >= 1 that add up to ``total``, at random."""
    return 1 + rng.multinomial(total - parts, rng.dirichlet(np.full(parts, 4.0)))


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _independent(rng: np.random.Generator, n: int, sample: Callable[[], np.ndarray]) -> Arrays:
    """Forward, parameters and cuts drawn apart; up to 0.8 of the pivots hold no variable."""
    rows = np.stack([sample(), sample(), sample()], axis=1)
    rows[:, 1] *= rng.random(n) >= rng.uniform(0.0, 0.8)
    return _finished(rng, rows, 0.0, 0.0)


def _chain(rng: np.random.Generator, rows: np.ndarray) -> Arrays:
    """Noise on what was built: on the times of most chains, on the sizes of some."""
    noise = rng.uniform(0.0, NOISE) if rng.random() < 0.7 else 0.0
    return _finished(rng, rows, noise, noise if rng.random() < 0.3 else 0.0)


def _finished(
    rng: np.random.Generator, rows: np.ndarray, time_noise: float, size_noise: float
) -> Arrays:
    """The four arrays: noise, pivots that cost nothing, enough variables, no cut at the end."""
    n = len(rows)
    forward = rows[:, 0] * rng.lognormal(0.0, time_noise, n)
    weights, cut = (rows[:, k] * rng.lognormal(0.0, size_noise, n) for k in (1, 2))
    free = (weights == 0) & (rng.random(n) < rng.uniform(0.0, 0.6))
    forward = np.where(free, 0.0, forward)
    backward = rng.uniform(1.3, 2.2) * forward * rng.lognormal(0.0, time_noise, n)
    missing = LEAST_VARIABLES - np.count_nonzero(weights)
    if missing > 0:  # biases: small, but a stage may stand on one
        empty = np.flatnonzero(weights == 0)
        least = 0.01 * weights.max() or 1.0  # where all are empty, equal ones
        weights[rng.choice(empty, missing, replace=False)] = least
    cut[-1] = 0.0
    return forward, backward, cut, weights
