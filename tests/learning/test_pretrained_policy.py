import itertools

import numpy as np
import pytest
import toys

from parenvs.agents.learning.pretrained.features import (
    POINT_FEATURES,
    UNIT_FEATURES,
    point_features,
    unit_features,
)
from parenvs.agents.learning.pretrained.outlook import LEVELS, outlook
from parenvs.agents.learning.pretrained.policy import Episodes
from parenvs.agents.learning.pretrained.situation import CONTEXT, Situation
from parenvs.cluster import Cluster
from parenvs.datasets.pipeline import generators
from parenvs.tasks.pipeline.load import load_profile
from parenvs.tasks.pipeline.points import PointSpace
from parenvs.tasks.pipeline.problem import Pipeline


def spaces(count, seed=0, ranges=generators.INSIDE):
    rng = np.random.default_rng(seed)
    drawn = [generators.draw(rng, ranges=ranges) for _ in range(count)]
    return [PointSpace.build(p.pipeline) for p in drawn]


@pytest.fixture(scope="module")
def episodes():
    return Episodes.of([*spaces(30), *spaces(10, 1, generators.OUTSIDE)])


def drawing(rng, seen=None):
    def choose(turn):
        if seen is not None:
            seen.append(turn)
        masks = turn.masks[turn.owner]
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
    behind = episodes.batch.stages - made // 2 - 1
    seen = {**episodes.constant, "outlook": episodes.outlooks[np.arange(b), behind]}
    return {**seen, "plan": plan, "step": made}


def test_play__legal_plans(episodes):
    cuts, units = episodes.play(drawing(np.random.default_rng(0)))
    lengths = episodes.lengths(cuts, units)
    assert (lengths >= 1).all()
    assert np.isfinite(lengths).all()


def test_play__several_episodes_of_a_problem_share_their_situations(episodes):
    seen, problems = [], np.array([3, 3, 3, 7, 3])
    cuts, units = episodes.play(drawing(np.random.default_rng(0), seen), problems)
    stages = episodes.batch.stages[problems]
    for number, turn in enumerate(seen):
        stage = number // 2
        active = turn.episodes
        assert active.tolist() == np.flatnonzero(stages - 1 > stage).tolist()
        before = [cuts[active, :stage], units[active, :stage]]
        if turn.kind == "units":
            before.append(cuts[active, stage : stage + 1])
        chosen = np.column_stack([problems[active], *before])
        distinct = {tuple(row) for row in chosen}
        assert len(turn.masks) == len(turn.context) == len(distinct)
        for situation in range(len(turn.masks)):
            assert len({tuple(row) for row in chosen[turn.owner == situation]}) == 1
        assert turn.masks.sum() == len(turn.rows)
    alone = [
        episodes.batch.take(problems[[row]]).lengths(cuts[[row]], units[[row]])[0]
        for row in range(len(problems))
    ]
    assert episodes.lengths(cuts, units, problems).tolist() == alone


def test_rows__are_finite_and_of_moderate_size(episodes):
    seen = []
    episodes.play(drawing(np.random.default_rng(0), seen))
    for turn in seen:
        features = POINT_FEATURES if turn.kind == "points" else UNIT_FEATURES
        assert turn.rows.shape == (turn.masks.sum(), features)
        assert turn.context.shape == (len(turn.masks), CONTEXT)
        assert turn.rows.dtype == turn.context.dtype == np.float32
        assert np.isfinite(turn.rows).all()
        assert np.isfinite(turn.context).all()
        assert np.abs(turn.rows).max() < 20


def test_torch_and_numpy__agree(episodes):
    torch = pytest.importorskip("torch")
    observation = situations(episodes, np.random.default_rng(0))
    here = Situation(observation)
    there = Situation({key: torch.from_numpy(value) for key, value in observation.items()})
    assert np.allclose(here.context(), there.context().numpy(), atol=2e-5)
    for compute, most in ((point_features, episodes.batch.points), (unit_features, [4] * 40)):
        owner = np.repeat(np.arange(40), most)
        column = np.concatenate([np.arange(n) for n in most])
        theirs = compute(there, torch.from_numpy(owner), torch.from_numpy(column)).numpy()
        assert np.allclose(compute(here, owner, column), theirs, atol=2e-5), compute


def test_features__of_the_environment_are_those_of_the_batch(episodes):
    """Played one by one through the environment, the rows are the same."""
    import gymnasium as gym

    import parenvs  # noqa: F401

    kwargs = {"instance": "t5-base", "cluster": "C"}
    cluster = Cluster.parse("C")
    space = PointSpace.build(Pipeline(load_profile("t5-base", cluster), cluster))
    seen, rng = [], np.random.default_rng(2)
    cuts, units = Episodes.of([space]).play(drawing(rng, seen))
    env = gym.make("PipelinePlan-v0", **kwargs)
    observation, info = env.reset()
    actions = [x for pair in zip(cuts[0, :3], units[0, :3] + 128, strict=True) for x in pair]
    for number, (action, turn) in enumerate(zip(actions, seen, strict=True)):
        one = {k: np.asarray(v)[None] for k, v in observation.items()}
        one["outlook"] = outlook(observation)[None, 4 - number // 2 - 1]
        legal = info["action_mask"].astype(bool)
        legal, rest = (
            (legal[:128], legal[128:]) if turn.kind == "points" else (legal[128:], legal[:128])
        )
        assert np.array_equal(legal, turn.masks[0])
        assert not rest.any()
        compute = point_features if turn.kind == "points" else unit_features
        column = np.flatnonzero(legal)
        mine = compute(Situation(one), column * 0, column)
        assert np.allclose(mine, turn.rows, atol=1e-6)
        assert np.allclose(Situation(one).context(), turn.context, atol=1e-6)
        observation, reward, *_, info = env.step(int(action))
    assert reward == pytest.approx(
        float(space.pipeline.values(*space.plan(cuts[0, :3], units[0, :3])))
    )


def test_point_features__by_hand():
    """Two equal servers of two devices, four equal points: a cut in the middle is balanced."""
    chain = toys.chain([1.0] * 4, [1.0] * 4, [8.0] * 4, [3.0] * 4)
    cluster = Cluster.parse(toys.shape(2, 2, 100.0, 10.0))
    space = PointSpace.build(Pipeline(chain, cluster, 2, 4))
    episodes = Episodes.of([space])
    seen = []
    episodes.play(lambda turn: (seen.append(turn), turn.masks.argmax(axis=1))[1])
    points, units = (
        dict(zip(np.flatnonzero(turn.masks[0]), turn.rows, strict=True)) for turn in seen
    )
    assert points[2][0] == pytest.approx(0.5)  # share of the work
    assert points[2][2] == pytest.approx(2 / 64)  # units for that share
    assert points[2][5] == pytest.approx(np.log(2))  # ln(1 + load), perfectly balanced: 1
    assert points[1][5] == pytest.approx(np.log(2))  # 1 of 4 units for a quarter of the work
    # 8 bytes there and back over 10 bytes/s, in seconds of one device: 8 s of work on 4 devices.
    assert points[2][9] == pytest.approx(np.log1p(2 * 0.8 / 2) / 2)
    # The chosen point is 1 (the first legal): one unit for two seconds is balanced.
    assert units[1][0] == pytest.approx(np.log(2))
    assert units[2][0] == pytest.approx(np.log(1.5))
    assert units[1][4] == 0.0  # one device has nothing to reduce
    # 2 * 3 bytes, half of them over the fast link of two devices, 4 micro-batches, second of 2.
    assert units[2][4] == pytest.approx(np.log1p(2 * 3 * 0.5 / 100 / 4 / 2), rel=1e-5)
    assert units[2][11] == 0.0  # a server ends there
    assert units[1][11] == 1.0


def test_outlook__least_bottleneck_of_all_plans():
    rng, equal = np.random.default_rng(0), []
    for _ in range(12):
        n = int(rng.integers(4, 8))
        chain = toys.chain(*rng.uniform(0.1, 1.0, (2, n)), rng.uniform(0, 30, n), [1.0] * n)
        cluster = Cluster.parse(toys.shape(int(rng.integers(3, 6)), 1, 100.0, 10.0))
        space = PointSpace.build(Pipeline(chain, cluster, 3, 4))
        observation = {key: value[0] for key, value in Episodes.of([space]).constant.items()}
        table, units, pipeline = outlook(observation), cluster.devices, space.pipeline
        second = pipeline.seconds_sum[-1] / units
        for k, first, unit in itertools.product((1, 2), range(1, n), range(1, units)):
            found = [
                max(
                    *np.diff(pipeline.seconds_sum[[*points, n]]) / np.diff([*edges, units]),
                    *(2 * pipeline.cut_before[p] / 10.0 for p in points[1:]),
                    0.0,
                )
                for points in itertools.product([first], *[range(first + 1, n)] * (k - 1))
                for edges in itertools.product([unit], *[range(unit + 1, units)] * (k - 1))
            ]
            least = min(found, default=np.inf) / second
            level = min(int((least > LEVELS[:-1] + 1e-5).sum()), len(LEVELS) - 1)
            assert table[k, first, unit] <= level
            if first + k < n and unit + k <= units:
                equal.append(table[k, first, unit] == level)
    assert np.mean(equal) > 0.95


def test_lookahead__of_two_stages_is_the_length():
    """With nothing left to decide behind it, the lookahead is exact: the choice is optimal."""
    from parenvs.agents.learning.pretrained.features import lookahead

    rng = np.random.default_rng(3)
    found = [s for s in spaces(60, 5) if s.stages == 2]
    assert len(found) > 5
    batch = Episodes.of(found)
    observation = {
        **batch.constant,
        "plan": np.full((len(found), 2, 7), -1.0, dtype=np.float32),
        "step": np.zeros(len(found), dtype=np.int64),
        "outlook": batch.outlooks[:, 1],
    }
    situation = Situation(observation)
    legal = batch.batch.legal_points(0, *np.zeros((2, len(found)), np.int64))
    end = np.where(legal, rng.random(legal.shape), -1).argmax(axis=1)
    units = batch.batch.legal_units(0, *np.zeros((2, len(found)), np.int64), end)
    for lengths in lookahead(situation, np.arange(len(found)), end):
        for row, space in enumerate(found):
            for unit in range(1, len(space.devices) - 1):
                value = space.pipeline.values(*space.plan(end[row : row + 1], np.array([unit])))
                if value > 0:
                    assert units[row, unit]
                    assert lengths[row, unit] == pytest.approx(1 / float(value), rel=1e-3)
                else:
                    assert lengths[row, unit] > 1e5


def test_network__the_same_without_torch(episodes):
    torch = pytest.importorskip("torch")
    from parenvs.agents.learning.pretrained.network import RatingNetwork
    from parenvs.agents.learning.pretrained.policy import PlanPolicy

    torch.manual_seed(0)
    network = RatingNetwork()
    policy = PlanPolicy(network.weights())
    seen = []
    episodes.play(drawing(np.random.default_rng(0), seen))
    for turn in seen:
        mine = policy.ratings(turn)
        inputs = map(torch.from_numpy, (turn.rows, turn.context, turn.masks.sum(axis=1)))
        with torch.no_grad():
            theirs = getattr(network, turn.kind)(*inputs).numpy()
        for row, legal in enumerate(turn.masks):
            assert np.allclose(mine[row, legal], theirs[row, : legal.sum()], atol=1e-5)
            assert (theirs[row, legal.sum() :] < -1e30).all()
        assert (mine[~turn.masks] == -np.inf).all()


def test_network__knows_no_order_and_no_neighbours():
    torch = pytest.importorskip("torch")
    from parenvs.agents.learning.pretrained.network import Rater

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
