"""Families of generated chains: each looks like the models that it stands for."""

from collections import Counter

import numpy as np
import pytest
from cases import each

from parenvs.datasets.pipeline.families import FAMILIES, MIN_PIVOTS, MIN_VARIABLES


def chains(family: str, count: int = 40, n: int = 128):
    """Draw ``count`` chains of a family, each of ``n`` pivots."""
    return [FAMILIES[family](np.random.default_rng([3, i]), n) for i in range(count)]


@each("family", FAMILIES)
def test_families__lengths_and_values(family):
    for n in (MIN_PIVOTS, 25, 31, 64, 129, 1024):
        for arrays in chains(family, 10, n):
            forward, backward, cut, weights = arrays
            assert all(x.shape == (n,) and x.dtype == np.float64 for x in arrays)
            assert all((np.isfinite(x) & (x >= 0)).all() for x in arrays)
            assert np.count_nonzero(weights) >= MIN_VARIABLES
            assert cut[-1] == 0 and (cut[:-1] > 0).all()
            assert (forward[weights > 0] > 0).any()
            assert 1.1 < backward.sum() / forward.sum() < 2.8


def test_families__differ_in_what_they_vary():
    for family in FAMILIES:
        without = [np.mean(w == 0) for _, _, _, w in chains(family)]
        assert np.ptp(without) > 0.05, family
        free = [np.mean(f == 0) for f, _, _, _ in chains(family)]
        assert np.ptp(free) > 0.05, family


def test_families__random_ones_are_independent_along_the_chain():
    bounds = {"uniform": (0, 1), "normal": (0.01, 4), "binomial": (1, 40)}
    for family, (low, high) in bounds.items():
        for forward, _, cut, _ in chains(family):
            cut = cut[:-1]
            assert cut.min() >= low and cut.max() <= high
            assert abs(np.corrcoef(cut[1:], cut[:-1])[0, 1]) < 0.4
            assert abs(np.corrcoef(forward[:-1], cut)[0, 1]) < 0.4
    assert all((cut == np.rint(cut)).all() for _, _, cut, _ in chains("binomial"))
    spread = [np.std(cut[:-1]) for _, _, cut, _ in chains("uniform")]
    assert np.mean(spread) == pytest.approx(0.75 / np.sqrt(12), rel=0.1)
    clipped = [(cut[:-1] == 0.01).any() for _, _, cut, _ in chains("normal")]
    assert 0.2 < np.mean(clipped) < 1


def test_families__all_pivots_empty():
    """Where no pivot was drawn a variable, as many as needed get one, all of one size."""
    rng = np.random.default_rng(0)
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {
            "state": 183185391602104404077155816585884953174,
            "inc": 160502278706357643194801498428059812275,
        },
        "has_uint32": 0,
        "uinteger": 0,
    }
    *_, weights = FAMILIES["uniform"](rng, 25)
    assert np.count_nonzero(weights) == MIN_VARIABLES
    assert len(set(weights[weights > 0])) == 1


def test_families__transformer():
    counts = Counter()
    for forward, _, cut, weights in chains("transformer", 100):
        layers = cut[20:100]
        period = next((k for k in range(1, 13) if (layers[k:] == layers[:-k]).all()), 0)
        counts["equal layers"] += period > 0
        if period > 2:  # a cut inside each layer at least: the end is the narrowest
            assert layers.max() >= 1.9 * layers.min()
        counts["wide inside"] += layers.max() > 3 * layers.min()
        counts["embedding"] += weights[0] > 2 * np.median(weights[weights > 0])
        assert forward[0] < 1e-3 * forward.sum()
        counts["vocabulary"] += forward[-4:].max() > 2 * np.median(forward[forward > 0])
        counts["logits"] += cut[-6:].max() > 2.5 * np.median(layers)
    assert min(counts.values()) > 40


def test_families__encoder_decoder():
    crossing = 0
    for _, _, cut, _ in chains("encoder-decoder"):
        # Narrowest cuts are the layers' ends; the encoder's output adds to those of the decoder.
        encoder, decoder = cut[12:40].min(), cut[95:115].min()
        crossing += decoder > 1.15 * encoder
    assert crossing >= 36
    assert sum(c[95:115].min() > 1.15 * c[12:40].min() for _, _, c, _ in chains("transformer")) < 4


def test_families__cnn():
    body = np.arange(97)  # at most a quarter of the chain is dense head and loss
    trends = []
    for forward, _, cut, weights in chains("cnn"):
        with_weights = body[weights[body] > 0]
        size = np.corrcoef(np.log(cut[body]), body)[0, 1]
        growth = np.corrcoef(np.log(weights[with_weights]), with_weights)[0, 1]
        trends.append((size, growth))
        assert cut[:8].min() > 1.5 * cut[90:97].min()
        # FLOPs stay about even while the weights grow by an order of magnitude or more.
        compute = [forward[part].sum() for part in np.array_split(body, 4)]
        assert max(compute) < 6 * min(compute)
        assert forward[-1] < 0.01 * forward.sum()
    assert np.max(trends, axis=0)[0] < -0.4 and np.min(trends, axis=0)[1] > 0.3
    assert np.median(trends, axis=0) == pytest.approx([-0.9, 0.75], abs=0.15)


def test_families__cnn_dense_head():
    shares = []
    for forward, _, _, weights in chains("cnn", 100):
        heavy = weights.argmax()
        shares.append(weights[heavy] / weights.sum())
        if shares[-1] > 0.5:
            assert heavy >= 96 and forward[heavy] < 0.01 * forward.sum()
    assert np.mean(np.array(shares) > 0.5) > 0.1


def test_families__bottleneck():
    skips = 0
    for _, _, cut, weights in chains("bottleneck"):
        inner = cut[1:-2]
        steps = np.diff(inner)[np.diff(inner) != 0]
        assert np.count_nonzero(np.diff(np.sign(steps))) >= 0.25 * len(cut)  # narrow, wide, ...
        start, middle, end = (np.median(cut[part]) for part in np.split(np.arange(126), 3))
        if weights[-8:].max() < 0.3 * weights.max():  # a U: the deepest level is in the middle
            skips += 1
            assert end > 0.9 * middle and 0.4 < end / start < 2.5
        else:
            assert end < 0.95 * start
    assert 8 <= skips <= 32


def test_families__heavy_head():
    kinds = Counter()
    for forward, _, _, weights in chains("heavy-head", 60):
        for end in ("front", "back"):
            part = slice(0, 4) if end == "front" else slice(-4, None)
            if weights[part].sum() > 0.45 * weights.sum():
                kinds[end, "weights"] += 1
            if forward[part].sum() > 0.45 * forward.sum():
                kinds[end, "compute"] += 1
    assert len(kinds) == 4 and min(kinds.values()) >= 5
    assert kinds["front", "weights"] + kinds["back", "weights"] < 60
