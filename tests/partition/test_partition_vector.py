"""The batched partition environments: SyncVectorEnv of single ones, to the last bit."""

import batches
import numpy as np
import partition_toys as toys
import pytest
from batches import MODES, assert_same, modes
from cases import each, slow
from gymnasium.vector import AutoresetMode

from parenvs.tasks.partition.game import DataParallelVectorEnv, OperatorPartitionVectorEnv

OPERATOR, BATCH = "OperatorPartition-v0", "DataParallel-v0"
CLASSES = {OPERATOR: OperatorPartitionVectorEnv, BATCH: DataParallelVectorEnv}
SETTINGS = [  # environment, arguments
    (OPERATOR, {}),
    (OPERATOR, {"reward": "step_time"}),
    (OPERATOR, {"linkage": False}),
    (OPERATOR, {"linkage": False, "masked": True}),
    (OPERATOR, {"linkage": False, "masked": True, "reward": "step_time"}),
    (BATCH, {}),
    (BATCH, {"masked": False, "reward": "step_time"}),
]


settings = each("setting", SETTINGS)


def both(setting, count, mode="NextStep", **kwargs):
    """The batched environment, and a ``SyncVectorEnv`` of single ones."""
    return batches.both(CLASSES[setting[0]], {**setting[1], **kwargs}, count, mode)


def draw(rng, masks, wrong=0.02):
    """Mostly legal actions, some that the mask forbids, a few that are none."""
    ones = rng.choice([0.1, 0.5, 0.9], len(masks))
    actions = (rng.random(len(masks)) < ones).astype(np.int64)
    legal = masks[np.arange(len(masks)), actions] | (rng.random(len(masks)) < wrong)
    actions = np.where(legal, actions, 1 - actions)
    strange = rng.random(len(masks)) < wrong / 4
    actions[strange] = rng.choice([-1, 2, 3, -(2**63), 2**63 - 1], strange.sum())
    return actions


def compare(envs, singles, steps, seed=0, wrong=0.02):
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


@pytest.mark.thorough
@modes
@each("env_id", [OPERATOR, BATCH])
def test_vector__equals_single_environments_within_a_memory_limit(env_id, mode):
    limited = {"reward": "step_time", "memory_limit": 3.5e9}  # some plans of VGG-19 fit
    envs, singles = both((env_id, limited), 8, mode, instance="vgg-19")
    assert compare(envs, singles, 60, wrong=0.01) > 3


@pytest.mark.thorough
@settings
@modes
@pytest.mark.parametrize("name", ["vgg-19", *slow("t5-base", "bert-48")])
def test_vector__equals_single_environments(name, mode, setting):
    envs, singles = both(setting, 6, mode, instance=name)
    assert compare(envs, singles, 120) > 2


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, *slow(*range(1, 12))])
def test_vector__equals_single_environments_on_random_programs(tmp_path, seed):
    """Graphs that nobody chose."""
    rng = np.random.default_rng(seed)
    path = tmp_path / "random.npz"
    for steps in (8, 16, 30):
        problem = None
        while problem is None or len(problem.decidable("variables")) < 3:
            text, rules = toys.random_text(rng, steps), str(rng.choice(["shardy", "automap"]))
            problem = toys.problem_of(text, 2, rules)
        problem.graph.save(path)
        kwargs = {"instance": str(path), "cluster": toys.toy_cluster(2), "rules": rules}
        for setting in SETTINGS[:5]:
            mode = str(rng.choice(MODES))
            envs, singles = both(setting, 9, mode, **kwargs)
            assert compare(envs, singles, 40, seed, wrong=0.05) > 9
