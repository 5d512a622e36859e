import numpy as np
import pytest

from parenvs.agents.plan_features import (
    CONTEXT,
    POINT_FEATURES,
    UNIT_FEATURES,
    Situation,
    point_features,
    unit_features,
)
from parenvs.agents.plan_policy import Episodes
from parenvs.cluster import Cluster
from parenvs.datasets import generators
from parenvs.instances import load_profile
from parenvs.judge import plan_values
from parenvs.pipeline import Pipeline
from parenvs.plan_space import PlanSpace


def spaces(count, seed=0, ranges=generators.INSIDE):
    rng = np.random.default_rng(seed)
    drawn = [generators.draw(rng, ranges=ranges) for _ in range(count)]
    return [PlanSpace.build(p.pipeline, p.stages) for p in drawn]


@pytest.fixture(scope="module")
def episodes():
    return Episodes.of([*spaces(30), *spaces(10, 1, generators.OUTSIDE)])


def drawing(rng, seen=None):
    def choose(kind, rows, context, masks, active):
        if seen is not None:
            seen.append((kind, rows, context, masks, active))
        return np.where(masks, rng.random(masks.shape), -1).argmax(axis=1)

    return choose


def situations(episodes, rng):
    """Observations, as the environment gives them, from the middle of random episodes."""
    b = len(episodes.batch)
    cuts, units = episodes.play(drawing(rng))
    plan = np.full((b, 2, 7), -1.0, dtype=np.float32)
    made = rng.integers(0, 2 * (episodes.batch.stages - 1))
    for row in range(b):
        points, devices = -(-made[row] // 2), made[row] // 2
        plan[row, 0, :points] = cuts[row, :points] / 128
        plan[row, 1, :devices] = units[row, :devices] / 64
    return {**episodes.constant, "plan": plan, "step": made}, cuts, units


def test_play__legal_plans(episodes):
    cuts, units = episodes.play(drawing(np.random.default_rng(0)))
    lengths = episodes.batch.lengths(cuts, units)
    assert (lengths >= 1).all()
    assert np.isfinite(lengths).all()


def test_rows__are_finite_and_of_moderate_size(episodes):
    seen = []
    episodes.play(drawing(np.random.default_rng(0), seen))
    for kind, rows, context, masks, active in seen:
        features = POINT_FEATURES if kind == "points" else UNIT_FEATURES
        most = episodes.batch.points if kind == "points" else episodes.batch.units
        assert rows.shape == (len(active), most[active].max(), features)
        assert masks.shape == rows.shape[:2]
        assert context.shape == (len(active), CONTEXT)
        assert rows.dtype == context.dtype == np.float32
        assert np.isfinite(rows).all()
        assert np.isfinite(context).all()
        assert np.abs(rows[masks]).max() < 20


def test_torch_and_numpy__agree(episodes):
    torch = pytest.importorskip("torch")
    observation, *_ = situations(episodes, np.random.default_rng(0))
    here = Situation(observation)
    there = Situation({key: torch.from_numpy(value) for key, value in observation.items()})
    for compute in (point_features, unit_features, Situation.context):
        assert np.allclose(compute(here), compute(there).numpy(), atol=2e-5), compute


def test_features__of_the_environment_are_those_of_the_batch(episodes):
    """Played one by one through the environment, the rows are the same."""
    import gymnasium as gym

    import parenvs  # noqa: F401

    kwargs = {"instance": "t5-base", "cluster": "C"}
    cluster = Cluster.parse("C")
    space = PlanSpace.build(Pipeline(load_profile("t5-base", cluster), cluster))
    seen, rng = [], np.random.default_rng(2)
    cuts, units = Episodes.of([space]).play(drawing(rng, seen))
    env = gym.make("PipelinePlan-v0", **kwargs)
    observation, info = env.reset()
    actions = [x for pair in zip(cuts[0, :3], units[0, :3] + 128, strict=True) for x in pair]
    for action, (kind, rows, context, masks, _) in zip(actions, seen, strict=True):
        situation = Situation({k: np.asarray(v)[None] for k, v in observation.items()})
        mine = point_features(situation) if kind == "points" else unit_features(situation)
        legal = info["action_mask"].astype(bool)
        legal = legal[:128] if kind == "points" else legal[128:]
        legal, rest = np.split(legal, [masks.shape[1]])
        assert np.array_equal(legal, masks[0])
        assert not rest.any()
        assert np.allclose(mine[0][legal], rows[0][legal], atol=1e-6)
        assert np.allclose(situation.context(), context, atol=1e-6)
        observation, reward, *_, info = env.step(int(action))
    assert reward == pytest.approx(
        float(plan_values(space.pipeline, *space.plan(cuts[0, :3], units[0, :3])))
    )


def test_point_features__by_hand():
    """Two equal servers of two devices, four equal points: a cut in the middle is balanced."""
    import toys

    chain = toys.chain([1.0] * 4, [1.0] * 4, [8.0] * 4, [3.0] * 4)
    cluster = Cluster.parse(toys.shape(2, 2, 100.0, 10.0))
    space = PlanSpace.build(Pipeline(chain, cluster, 4), 2)
    episodes = Episodes.of([space])
    rows, context = [], []
    episodes.play(lambda kind, r, c, m, a: (rows.append(r), context.append(c), m.argmax(axis=1))[2])
    points = rows[0][0]
    assert points[2, 0] == pytest.approx(0.5)  # share of the work
    assert points[2, 2] == pytest.approx(2 / 64)  # units for that share
    assert points[2, 5] == pytest.approx(np.log(2))  # ln(1 + load), perfectly balanced: 1
    assert points[1, 5] == pytest.approx(np.log(2))  # 1 of 4 units for a quarter of the work
    # 8 bytes there and back over 10 bytes/s, in seconds of one device: 8 s of work on 4 devices.
    assert points[2, 9] == pytest.approx(np.log1p(2 * 0.8 / 2) / 2)
    # The chosen point is 1 (the first legal): one unit for two seconds is balanced.
    units = rows[1][0]
    assert units[1, 0] == pytest.approx(np.log(2))
    assert units[2, 0] == pytest.approx(np.log(1.5))
    assert units[1, 4] == 0.0  # one device has nothing to reduce
    # 2 * 3 bytes, half of them over the fast link of two devices, 4 micro-batches, second of 2.
    assert units[2, 4] == pytest.approx(np.log1p(2 * 3 * 0.5 / 100 / 4 / 2), rel=1e-5)
    assert units[2, 11] == 0.0  # a server ends there
    assert units[1, 11] == 1.0


def test_lookahead__of_two_stages_is_the_length():
    """With nothing left to decide behind it, the lookahead is exact: the choice is optimal."""
    from parenvs.agents.plan_features import lookahead

    rng = np.random.default_rng(3)
    found = [s for s in spaces(60, 5) if s.stages == 2]
    assert len(found) > 5
    batch = Episodes.of(found)
    observation = {
        **batch.constant,
        "plan": np.full((len(found), 2, 7), -1.0, dtype=np.float32),
        "step": np.zeros(len(found), dtype=np.int64),
    }
    situation = Situation(observation)
    legal = batch.batch.legal_points(0, *np.zeros((2, len(found)), np.int64))
    end = np.where(legal, rng.random(legal.shape), -1).argmax(axis=1)
    units = batch.batch.legal_units(0, *np.zeros((2, len(found)), np.int64), end)
    for lengths in lookahead(situation, end[:, None]):
        for row, space in enumerate(found):
            for unit in range(1, len(space.devices) - 1):
                value = plan_values(
                    space.pipeline, *space.plan(end[row : row + 1], np.array([unit]))
                )
                if value > 0:
                    assert units[row, unit]
                    assert lengths[row, 0, unit] == pytest.approx(1 / float(value), rel=1e-3)
                else:
                    assert lengths[row, 0, unit] > 1e5


def test_network__the_same_without_torch(episodes):
    torch = pytest.importorskip("torch")
    from parenvs.agents.plan_network import PlanNetwork
    from parenvs.agents.plan_policy import PlanPolicy

    torch.manual_seed(0)
    network = PlanNetwork()
    policy = PlanPolicy(network.weights())
    seen = []
    episodes.play(drawing(np.random.default_rng(0), seen))
    for kind, rows, context, masks, _ in seen:
        mine = policy.ratings(kind, rows, context, masks)
        inputs = map(torch.from_numpy, (rows[masks], context, masks.sum(axis=1)))
        with torch.no_grad():
            theirs = getattr(network, kind)(*inputs).numpy()
        for row, legal in enumerate(masks):
            assert np.allclose(mine[row, legal], theirs[row, : legal.sum()], atol=1e-5)
            assert (theirs[row, legal.sum() :] < -1e30).all()
        assert (mine[~masks] == -np.inf).all()


def test_network__knows_no_order_and_no_neighbours():
    torch = pytest.importorskip("torch")
    from parenvs.agents.plan_network import Rater

    torch.manual_seed(0)
    rater = Rater(POINT_FEATURES)
    rows, context = torch.randn(12, POINT_FEATURES), torch.randn(2, CONTEXT)
    count = torch.tensor([9, 3])
    before = rater(rows, context, count)
    assert before.shape == (2, 9)
    order = torch.randperm(9)
    moved = torch.cat([rows[:9][order], rows[9:]])
    assert torch.allclose(rater(moved, context, count)[0], before[0, order], atol=1e-6)
    other = torch.cat([rows[:9], torch.randn(3, POINT_FEATURES)])
    after = rater(other, context, count)
    assert torch.allclose(after[0], before[0], atol=1e-6)
    assert not torch.allclose(after[1, :3], before[1, :3])
