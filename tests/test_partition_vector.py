"""The batched partition environments: SyncVectorEnv of single ones, to the last bit."""

import copy
import pickle
import time
import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import partition_toys as toys
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from parenvs import partition_answers
from parenvs.envs.partition_vector import DataParallelVectorEnv, OperatorPartitionVectorEnv
from parenvs.errors import ParenvsError
from parenvs.partition_answers import Changes, answers_of

OPERATOR, BATCH = "OperatorPartition-v0", "DataParallel-v0"
CLASSES = {OPERATOR: OperatorPartitionVectorEnv, BATCH: DataParallelVectorEnv}
MODES = ("NextStep", "SameStep", "Disabled")
SETTINGS = [  # environment, arguments
    (OPERATOR, {}),
    (OPERATOR, {"reward": "step_time"}),
    (OPERATOR, {"linkage": False}),
    (OPERATOR, {"linkage": False, "masked": True}),
    (OPERATOR, {"linkage": False, "masked": True, "reward": "step_time"}),
    (BATCH, {}),
    (BATCH, {"masked": False, "reward": "step_time"}),
]


def name_of(setting):
    return "-".join([setting[0].split("-")[0], *map(str, setting[1].values())])


settings = pytest.mark.parametrize("setting", SETTINGS, ids=name_of)


def assert_same(one, other, where=""):
    """Equal structure, types, shapes and bytes."""
    if isinstance(one, (dict, tuple)):
        assert type(one) is type(other)
        assert len(one) == len(other)
        for key in one if isinstance(one, dict) else range(len(one)):
            assert_same(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, np.ndarray) and one.dtype == object:
        assert one.shape == other.shape
        for a, b in zip(one, other, strict=True):
            assert_same(a, b, where)
    else:
        assert type(one) is type(other), where
        one, other = np.asarray(one), np.asarray(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape), where
        assert one.tobytes() == other.tobytes(), (where, one, other)


def both(setting, count, mode="NextStep", **kwargs):
    """SyncVectorEnv of single environments, and the batched environment."""
    name, own = setting
    one = partial(CLASSES[name].single, **own, **kwargs)
    singles = SyncVectorEnv([one] * count, autoreset_mode=mode)
    return singles, gym.make_vec(name, num_envs=count, autoreset_mode=mode, **own, **kwargs)


def draw(rng, masks, wrong=0.02):
    """Mostly legal actions, some that the mask forbids, a few that are none."""
    ones = rng.choice([0.1, 0.5, 0.9], len(masks))
    actions = (rng.random(len(masks)) < ones).astype(np.int64)
    legal = masks[np.arange(len(masks)), actions] | (rng.random(len(masks)) < wrong)
    actions = np.where(legal, actions, 1 - actions)
    strange = rng.random(len(masks)) < wrong / 4
    actions[strange] = rng.choice([-1, 2, 3, -(2**63), 2**63 - 1], strange.sum())
    return actions


def compare(singles, envs, steps, seed=0, wrong=0.02):
    """Step both alike and compare everything; number of episodes that ended."""
    rng, ended = np.random.default_rng(seed), 0
    disabled = envs.metadata["autoreset_mode"] == AutoresetMode.DISABLED
    assert_same(singles.reset(seed=seed), envs.reset(seed=seed))
    for _ in range(steps):
        masks = envs.action_masks()
        assert masks.dtype == bool
        actions = draw(rng, masks, wrong)
        theirs, mine = singles.step(actions), envs.step(actions)
        assert_same(theirs, mine)
        assert np.array_equal(envs.action_masks(), singles.call("action_masks"))
        ended += int(mine[2].sum())
        mask = rng.random(envs.num_envs) < 0.05
        if disabled:
            mask |= mine[2]
        if mask.any() and (disabled or rng.random() < 0.1):
            assert_same(*(x.reset(options={"reset_mask": mask.copy()}) for x in (singles, envs)))
            assert np.array_equal(envs.action_masks(), singles.call("action_masks"))
    for index in rng.integers(0, envs.num_envs, 3).tolist():
        assert envs.plan(index) == singles.envs[index].plan()
    return ended


@settings
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["vgg-19", "t5-base", "bert-48"])
def test_vector__equals_single_environments(name, mode, setting):
    singles, envs = both(setting, 12, mode, instance=name)
    assert compare(singles, envs, 300) > 10


@settings
@pytest.mark.parametrize("mode", MODES)
def test_vector__equals_single_environments_on_a_toy(tmp_path, mode, setting):
    (tmp_path / "toy.txt").write_text(toys.MLP)
    kwargs = {"instance": str(tmp_path / "toy.txt"), "cluster": toys.toy_cluster(2)}
    assert compare(*both(setting, 30, mode, **kwargs), 100) > 300


@pytest.mark.parametrize("seed", range(12))
def test_vector__equals_single_environments_on_random_programs(tmp_path, seed):
    """Graphs that nobody chose, by tables, by lists of changes, and in small blocks."""
    rng, varied = np.random.default_rng(seed), 0
    path = tmp_path / "random.txt"
    for steps in (8, 16, 30):
        problem = None
        while problem is None or len(problem.decidable("variables")) < 3:
            text, rules = toys.random_text(rng, steps), str(rng.choice(["shardy", "automap"]))
            problem = toys.problem_of(text, 2, rules)
        path.write_text(text)
        kwargs = {"instance": str(path), "cluster": toys.toy_cluster(2), "rules": rules}
        for setting in SETTINGS[:5]:
            mode = str(rng.choice(MODES))
            singles, envs = both(setting, 9, mode, **kwargs)
            varied += envs.answers.varies is not None
            assert compare(singles, envs, 40, seed, wrong=0.05) > 9
            with pytest.MonkeyPatch.context() as patch:
                limit = rng.choice(["TABLE_BYTES", "BLOCK_BYTES"])
                patch.setattr(partition_answers, str(limit), 1)
                envs.answers = answers_of.__wrapped__(envs.space)
                compare(singles, envs, 20, seed)
    assert varied or seed  # rewards that depend on what is open do occur


@settings
def test_vector__table_or_list_of_changes(setting):
    """What does not fit a table is changed by lists, with the same result."""
    name, own = setting
    envs = gym.make_vec(name, num_envs=50, instance="vgg-19", **own)
    rng, answers = np.random.default_rng(0), envs.answers
    for changes, first in (
        (answers.decisions, answers.first_decisions),
        (answers.known, answers.first_known),
    ):
        codes = rng.integers(0, len(answers.paid), 50)
        listed = copy.copy(changes)
        listed.table = None
        rows = [np.tile(first, (50, 1)) for _ in range(2)]
        for one, array in zip((changes, listed), rows, strict=True):
            one.write(array, codes)
        assert_same(*rows)
    assert isinstance(changes, Changes)


@pytest.mark.parametrize("name", toys.INSTANCES)
def test_vector__rewards_that_depend_on_what_is_open(name):
    """They take longer; the shipped graphs have none."""
    assert OperatorPartitionVectorEnv(instance=name).answers.varies is None


def test_vector__many_whole_episodes():
    """Thousands, played to the end by the mask: returns are those of the plans."""
    envs = gym.make_vec(OPERATOR, num_envs=2000, instance="vgg-19", reward="step_time")
    problem, rng = envs.space.problem, np.random.default_rng(0)
    envs.reset()
    total, running = np.zeros(2000), np.ones(2000, dtype=bool)
    while running.any():
        _, rewards, done, _, _ = envs.step(rng.integers(0, 2, 2000))
        total += rewards * running
        for index in np.flatnonzero(done & running)[:5].tolist():
            chosen = problem.chosen(envs.plan(index).partition)
            assert total[index] == pytest.approx(problem.value(chosen, "step_time", "all"))
        running &= ~done
    assert len(np.unique(total.round(9))) > 100


@pytest.mark.parametrize("name", [OPERATOR, BATCH])
@pytest.mark.parametrize("way", [None, "vector_entry_point", "sync"])
def test_vector__make_vec(name, way):
    """Native unless asked otherwise; no warning; the same either way."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        envs = gym.make_vec(name, num_envs=4, vectorization_mode=way, instance="vgg-19")
        assert isinstance(envs, SyncVectorEnv if way == "sync" else CLASSES[name])
        again = gym.make_vec(envs.spec)
    assert type(again) is type(envs)
    assert again.num_envs == 4
    singles = gym.make_vec(name, num_envs=4, vectorization_mode="sync", instance="vgg-19")
    for key in ("single_observation_space", "observation_space", "action_space", "metadata"):
        assert getattr(envs, key) == getattr(singles, key)
    rng = np.random.default_rng(0)
    for _ in range(2):
        assert_same(singles.reset(seed=3), envs.reset(seed=3))
        for _ in range(30):
            actions = draw(rng, np.array(singles.call("action_masks")))
            result = envs.step(actions)
            assert_same(singles.step(actions), result)
            assert envs.observation_space.contains(result[0])
    envs.close()


@pytest.mark.parametrize("mode", [*MODES, *AutoresetMode])
def test_vector__mode_in_the_metadata(mode):
    before = dict(CLASSES[BATCH].single.metadata)
    envs = gym.make_vec(BATCH, num_envs=2, instance="vgg-19", autoreset_mode=mode)
    assert envs.metadata["autoreset_mode"] is AutoresetMode(mode)
    assert CLASSES[BATCH].single.metadata == before


@pytest.mark.parametrize("kind", ["list", "int32", "uint8", "bool", "float64", "object"])
@settings
def test_vector__kinds_of_actions(setting, kind):
    envs = [gym.make_vec(setting[0], num_envs=5, instance="vgg-19", **setting[1]) for _ in "ab"]
    actions = np.array([0, 1, 0, 1, 1])
    for _ in range(4):
        given = actions.tolist() if kind == "list" else actions.astype(kind)
        assert_same(*(one.step(x) for one, x in zip(envs, (actions, given), strict=True)))


def test_vector__numbers_that_are_no_actions():
    """They end the episode with -1, whatever their size, and the others go on."""
    envs = gym.make_vec(OPERATOR, num_envs=3, instance="vgg-19")
    for huge in (2**64, -(2**70), 2**63, 2, -1):
        envs.reset()
        _, rewards, done, _, _ = envs.step([1, huge, 0])
        assert rewards[1] == -1
        assert rewards[0] > 0
        assert done.tolist() == [False, True, False]


def test_vector__wrong_number_of_actions():
    envs = gym.make_vec(BATCH, num_envs=3, instance="vgg-19")
    for actions in ([0, 1], np.zeros((3, 1), dtype=int), 1):
        with pytest.raises(ValueError, match="3 actions are needed"):
            envs.step(actions)


def test_vector__without_autoreset():
    """An episode that is over must be reset, and only then goes on."""
    envs = gym.make_vec(BATCH, num_envs=3, instance="vgg-19", autoreset_mode="Disabled")
    envs.reset()
    done = envs.step([0, -1, 0])[2]
    with pytest.raises(AssertionError, match=r"\[1\] are over"):
        envs.step([0, 0, 0])
    _, infos = envs.reset(options={"reset_mask": done})
    assert done.tolist() == infos["_action_mask"].tolist() == [False, True, False]
    assert envs.step([0, 0, 0])[0]["position"].tolist() == [2, 1, 2]
    done = envs.step([-1, 0, -1])[2]
    envs.reset(options={"reset_mask": np.array([True, False, False])})
    with pytest.raises(AssertionError, match=r"\[2\] are over"):
        envs.step([0, 0, 0])
    assert envs.reset(options={"other": 1})[0]["position"].tolist() == [0, 0, 0]
    envs.step([0, 0, 0])


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        ([True, False], TypeError),
        (np.array([1, 0]), TypeError),
        (np.array([True]), ValueError),
        (np.array([False, False]), ValueError),
    ],
)
def test_vector__bad_reset_mask(mask, error):
    envs = gym.make_vec(BATCH, num_envs=2, instance="vgg-19")
    with pytest.raises(error, match="reset_mask"):
        envs.reset(options={"reset_mask": mask})


def test_vector__seeds():
    """They set the generator and change no episode."""
    envs = gym.make_vec(BATCH, num_envs=2, instance="vgg-19")
    first, draws = envs.reset(), []
    for seed in (5, [5, 6], [None, 1], None):
        assert_same(envs.reset(seed=seed), first)
        draws.append(envs.np_random.random())
    assert draws[0] == draws[1]
    with pytest.raises(ValueError, match="2 seeds are needed"):
        envs.reset(seed=[1])


@settings
@pytest.mark.parametrize("fork", [copy.deepcopy, lambda envs: pickle.loads(pickle.dumps(envs))])
def test_vector__fork(fork, setting):
    """A copy in the middle of episodes goes on as the original, and leaves it alone."""
    name, own = setting
    envs = gym.make_vec(name, num_envs=6, instance="vgg-19", **own)
    rng = np.random.default_rng(0)
    for _ in range(3):
        envs.step(draw(rng, envs.action_masks()))
    other = fork(envs)
    actions, results = [], []
    for _ in range(20):
        actions.append(draw(rng, other.action_masks()))
        results.append(other.step(actions[-1]))
    for one, result in zip(actions, results, strict=True):
        assert_same(envs.step(one), result)


@settings
def test_vector__fork_of_one(setting):
    """A single environment goes on where one of the batch is, and leaves the batch alone."""
    singles, envs = both(setting, 3, instance="vgg-19")
    rng = np.random.default_rng(1)
    singles.reset()
    for _ in range(6):
        actions = draw(rng, envs.action_masks(), wrong=0.3)
        singles.step(actions), envs.step(actions)
    kept = pickle.dumps(envs._decisions)
    for index in (0, 1, 2, -1):
        one, other = envs.fork(index), copy.deepcopy(singles.envs[index])
        assert one.plan() == other.plan() == envs.plan(index)
        assert one.undecided() == other.undecided()
        for action in (0, 1, 0, 0, 1):
            assert_same(one.step(action), other.step(action))
    assert pickle.dumps(envs._decisions) == kept


def test_vector__nothing_is_shared():
    """What a caller writes into arrays does not come back, and they do not change later."""
    singles, envs = both((BATCH, {}), 4, "SameStep", instance="vgg-19")
    theirs, mine = singles.reset(), envs.reset()
    for step in range(15):
        actions = np.full(4, step % 2)
        kept, before = copy.deepcopy(mine), mine
        theirs, mine = singles.step(actions), envs.step(actions)
        assert_same(before, kept)
        assert_same(theirs, mine)
        for array in (*before[0].values(), before[-1]["action_mask"], before[-1]["_action_mask"]):
            array[:] = 1
        envs.action_masks()[:] = False


def test_vector__without_copies():
    """The decisions are a view that follows the episodes and cannot be written."""
    envs = gym.make_vec(OPERATOR, num_envs=4, instance="vgg-19", copy=False)
    other = gym.make_vec(OPERATOR, num_envs=4, instance="vgg-19")
    first = envs.reset()[0]["decisions"]
    rng = np.random.default_rng(0)
    for _ in range(20):
        actions = rng.integers(0, 2, 4)
        mine = envs.step(actions)
        assert_same(other.step(actions), mine)
        assert np.shares_memory(first, mine[0]["decisions"])
    assert np.array_equal(first, mine[0]["decisions"])
    with pytest.raises(ValueError, match="read-only"):
        first[:] = 0


def test_vector__render():
    singles, envs = both((OPERATOR, {}), 2, instance="vgg-19", render_mode="ansi")
    singles.reset()
    for one in (singles, envs):
        one.step(np.array([0, 1]))
    assert envs.render() == singles.render()
    assert envs.render_mode == "ansi"


def test_vector__statistics():
    """Gymnasium's wrapper counts returns and lengths."""
    envs = RecordEpisodeStatistics(gym.make_vec(OPERATOR, num_envs=3, instance="t5-base"))
    envs.reset()
    done = np.zeros(3, dtype=bool)
    while not done.all():
        *_, done, _, infos = envs.step(np.ones(3, dtype=np.int64))
    assert infos["episode"]["r"] == pytest.approx(56.2 + 0.3 * 343)


@pytest.mark.parametrize(
    ("kwargs", "error", "words"),
    [
        ({"instance": "t5-bse"}, ParenvsError, "did you mean 't5-base'"),
        ({"devices": 1}, ParenvsError, "at least 2"),
        ({"reward": "speed"}, ParenvsError, "reward must be one of"),
        ({"num_envs": 0}, ValueError, "num_envs must be at least 1"),
        ({"autoreset_mode": "Never"}, ValueError, "Never"),
        ({"render_mode": "human"}, ValueError, "render_mode must be one of"),
        ({"linked": True}, TypeError, "linked"),
    ],
)
def test_vector__bad_arguments(kwargs, error, words):
    with pytest.raises(error, match=words):
        OperatorPartitionVectorEnv(**{"num_envs": 2, **kwargs})


def seconds(envs, actions):
    """Processor seconds of a step; what other processes do does not count."""
    envs.reset(seed=0)
    begin = time.process_time()
    for one in actions:
        envs.step(one)
    return (time.process_time() - begin) / len(actions)


def test_vector__as_fast_as_it_was():
    """Steps over CartPole's, 1024 at once, in one process: 1.1 when measured."""
    rng = np.random.default_rng(0)
    actions = [rng.integers(0, 2, 1024) for _ in range(60)]
    envs = [gym.make_vec(name, num_envs=1024) for name in (OPERATOR, "CartPole-v1")]
    runs = np.array([[seconds(one, actions) for one in envs] for _ in range(6)])
    mine, cartpole = runs.min(axis=0)
    assert cartpole / mine > 0.3, runs


@pytest.mark.parametrize("name", [OPERATOR, BATCH])
def test_vector__worth_while_at_eight(name):
    """Steps of eight at once over those of one alone: 2.5 when measured."""
    rng = np.random.default_rng(0)
    actions, single = rng.integers(0, 2, (300, 8)), CLASSES[name].single()
    envs = gym.make_vec(name, num_envs=8)
    mine, alone = [], []
    for _ in range(6):
        mine.append(seconds(envs, actions))
        begin, count = time.process_time(), 0
        for action in actions[:100].ravel().tolist():
            count += 1
            if single.step(action)[2]:
                single.reset()
        alone.append((time.process_time() - begin) / count)
    assert 8 * min(alone) / min(mine) > 1.0, (mine, alone)
