import numpy as np
import pytest

from parenvs.datasets import generators
from parenvs.errors import ParenvsError
from parenvs.pipeline.batch import PointBatch
from parenvs.pipeline.points import PointSpace
from parenvs.pipeline.problem import Pipeline

RANGES = {"inside": generators.INSIDE, "outside": generators.OUTSIDE}


@pytest.fixture(scope="module", params=RANGES)
def spaces(request):
    rng = np.random.default_rng(1)
    drawn = [generators.draw(rng, ranges=RANGES[request.param]) for _ in range(60)]
    return [PointSpace.build(p.pipeline) for p in drawn]


def padded(row, length):
    return np.pad(row, (0, length + 1 - len(row)))[:length]


@pytest.mark.parametrize("seed", range(3))
def test_batch__plays_as_the_single_spaces_do(spaces, seed):
    batch, rng = PointBatch.stack(spaces), np.random.default_rng(seed)
    b = len(batch)
    point, unit = np.zeros(b, int), np.zeros(b, int)
    cuts, units = np.zeros((b, 7), int), np.zeros((b, 7), int)
    for stage in range(7):
        active = np.flatnonzero(batch.stages - 1 > stage)
        masks = batch.legal_points(stage, point, unit)
        for k in active:
            expected = spaces[k].legal_points(stage, point[k], unit[k])
            assert np.array_equal(masks[k], padded(expected, 128))
        end, after = point.copy(), unit.copy()
        end[active] = np.where(masks, rng.random(masks.shape), -1).argmax(axis=1)[active]
        masks = batch.legal_units(stage, point, unit, end)
        for k in active:
            expected = spaces[k].legal_units(stage, point[k], unit[k], end[k])
            assert np.array_equal(masks[k], padded(expected, 64))
            assert masks[k].any()
        after[active] = np.where(masks, rng.random(masks.shape), -1).argmax(axis=1)[active]
        point, unit = end, after
        cuts[:, stage], units[:, stage] = point, unit
    # What lies behind the last cut must not count.
    behind = np.arange(7) >= batch.stages[:, None] - 1
    cuts[behind], units[behind] = rng.integers(0, 128, behind.sum()), 3
    lengths = batch.lengths(cuts, units)
    for k, space in enumerate(spaces):
        last = space.stages - 1
        value = space.pipeline.values(*space.plan(cuts[k, :last], units[k, :last]))
        assert value == pytest.approx(1 / lengths[k], rel=1e-12)


def test_batch__take(spaces):
    batch = PointBatch.stack(spaces)
    some = batch.take(np.array([3, 3, 0]))
    assert len(some) == 3
    assert np.array_equal(some.seconds, batch.seconds[[3, 3, 0]])


def test_batch__other_cost_models_are_refused(spaces):
    pipeline = spaces[0].pipeline
    other = Pipeline(
        pipeline.profile, pipeline.cluster, pipeline.micro_batches, sync="parameter-server"
    )
    with pytest.raises(ParenvsError, match="sync"):
        PointBatch.stack([PointSpace.build(other.with_stages(spaces[0].stages))])
