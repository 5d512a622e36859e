"""The paper's environments, observed as rows: as without, with a rule that is worth something."""

import numpy as np
from batches import assert_alike, both, modes
from cases import each
from gymnasium.utils.env_checker import check_env

from parenvs.core.registry import TASKS
from parenvs.core.task import late

CASES = {
    "PipelineCut-v0": ({"instance": "vgg-19", "cluster": "B", "stages": 4}, {"micro_batches": 4}),
    "PipelinePlan-v0": ({"instance": "vgg-19", "stages": 4}, {"stages": 3}),
    "OperatorPartition-v0": (
        {"instance": "vgg-19", "linkage": False, "masked": True},
        {"instance": "t5-base"},
    ),
    "DataParallel-v0": ({"instance": "vgg-19", "reward": "step_time"}, {"devices": 4}),
}
"""Arguments of each, and options of a reset under them."""


def classes(env_id):
    place = next(task.envs[env_id] for task in TASKS.values() if env_id in task.envs)
    return late(place), late(f"{place}Env"), late(f"{place}VectorEnv")


ids = each("env_id", list(CASES))


@ids
def test_rows__are_named_and_leave_rewards_as_they_are(env_id):
    game, single, _ = classes(env_id)
    arguments, rng = CASES[env_id][0], np.random.default_rng(0)
    assert all(f"| ``{name}`` | " in single.__doc__ for name in (*game.columns, *game.contexts))
    plain = single(**arguments)
    seen = {rows: single(rows=rows, **arguments) for rows in ("ahead", "bare")}
    for env in seen.values():
        check_env(env, skip_render_check=True)
    kept = [name not in game.ahead for name in game.columns]
    for _ in range(3):
        _, info = plain.reset()
        observed = {rows: env.reset()[0] for rows, env in seen.items()}
        done = False
        while not done:
            mask = observed["ahead"]["action_mask"]
            assert np.array_equal(mask, info["action_mask"])
            assert not observed["ahead"]["actions"][mask == 0].any()
            ahead, bare = (observed[rows]["actions"] for rows in ("ahead", "bare"))
            assert np.array_equal(ahead[:, kept], bare)
            action = int(rng.choice(np.flatnonzero(mask)))
            _, reward, done, _, info = plain.step(action)
            for rows, env in seen.items():
                observed[rows], same, over, *_ = env.step(action)
                assert (same, over) == (reward, done)
        assert not observed["ahead"]["actions"].any() and observed["ahead"]["action_mask"].all()


@modes
@ids
def test_rows__a_batch_is_single_to_the_last_bit(env_id, mode):
    arguments, options = CASES[env_id]
    batched, single = both(classes(env_id)[2], {"rows": "ahead", **arguments}, 3, mode)
    assert_alike(batched, single, mode, np.random.default_rng(0), resets={17: options})
