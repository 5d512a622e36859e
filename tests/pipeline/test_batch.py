import numpy as np
import pytest

from parenvs.datasets.pipeline import generators
from parenvs.errors import ParenvsError
from parenvs.tasks.pipeline.batch import PointBatch
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.spaces import PointSpace

try:
    import torch
except ImportError:
    torch = None

RANGES = {"inside": generators.INSIDE, "outside": generators.OUTSIDE}
DEVICES = ["numpy"]
if torch is not None:
    DEVICES += ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(scope="module", params=RANGES)
def spaces(request):
    rng = np.random.default_rng(1)
    drawn = [generators.draw(rng, ranges=RANGES[request.param]) for _ in range(60)]
    return [PointSpace.build(p.pipeline) for p in drawn]


def padded(row, length):
    return np.pad(row, (0, length + 1 - len(row)))[:length]


@pytest.mark.thorough
@pytest.mark.parametrize("device", DEVICES)
def test_batch__plays_as_the_single_spaces_do(spaces, device):
    """Masks to the last bit, on arrays and on tensors; rows in any order."""
    rng = np.random.default_rng(0)

    def there(values):
        return values if device == "numpy" else torch.tensor(values, device=device)

    def host(values):
        return values if device == "numpy" else values.cpu().numpy()

    batch = PointBatch.stack(spaces)
    rows = np.append(rng.permutation(len(batch)), rng.integers(0, len(batch), 60))
    stages, there_rows, dynamics = batch.stages[rows], there(rows), batch.map(there)
    k = len(rows)
    point, unit = np.zeros(k, int), np.zeros(k, int)
    cuts, units = np.zeros((k, 7), int), np.zeros((k, 7), int)
    for step in range(7):
        active = np.flatnonzero(stages - 1 > step)
        # Numbers of stages that differ: those that are through ask about their last.
        stage = np.minimum(step, stages - 2)
        start = there(stage), there(point), there(unit)
        masks = host(dynamics.legal_points(*start, there_rows))
        for i in active:
            expected = spaces[rows[i]].legal_points(stage[i], point[i], unit[i])
            assert np.array_equal(masks[i], padded(expected, 128))
        end, after = point.copy(), unit.copy()
        end[active] = np.where(masks, rng.random(masks.shape), -1).argmax(axis=1)[active]
        masks = host(dynamics.legal_units(*start, there(end), there_rows))
        for i in active:
            expected = spaces[rows[i]].legal_units(stage[i], point[i], unit[i], end[i])
            assert np.array_equal(masks[i], padded(expected, 64))
            assert masks[i].any()
        after[active] = np.where(masks, rng.random(masks.shape), -1).argmax(axis=1)[active]
        point, unit = end, after
        cuts[:, step], units[:, step] = point, unit
    # What lies behind the last cut must not count.
    behind = np.arange(7) >= stages[:, None] - 1
    cuts[behind], units[behind] = rng.integers(0, 128, behind.sum()), 3
    plans = there(cuts), there(units), there_rows
    lengths, found = host(dynamics.lengths(*plans)), host(dynamics.values(*plans))
    for i, row in enumerate(rows):
        space, last = spaces[row], stages[i] - 1
        value = space.pipeline.values(*space.plan(cuts[i, :last], units[i, :last]))
        assert found[i] == (value if device == "numpy" else pytest.approx(value, rel=1e-12))
        assert lengths[i] == pytest.approx(1 / value, rel=1e-12)


@pytest.mark.thorough
def test_batch__take_and_put(spaces):
    batch = PointBatch.stack(spaces)
    chosen = batch.take(np.array([3, 3, 0]))
    assert len(chosen) == 3
    assert np.array_equal(chosen.seconds, batch.seconds[[3, 3, 0]])
    chosen.put(np.array([0, 2]), PointBatch.stack([spaces[5]]))
    chosen.put(slice(1, 2), PointBatch.stack([spaces[7]]))
    for name, values in vars(chosen).items():
        assert np.array_equal(values, getattr(batch, name)[[5, 7, 5]]), name


def test_batch__other_cost_models_are_refused(spaces):
    pipeline = spaces[0].pipeline
    other = Pipeline(
        pipeline.profile, pipeline.cluster, pipeline.micro_batches, sync="parameter-server"
    )
    with pytest.raises(ParenvsError, match="sync"):
        PointBatch.stack([PointSpace.build(other.with_stages(spaces[0].stages))])
