"""``PartitionPlan-v0``: as the judge has it, sets, batches to the last bit, bad input."""

import copy
from functools import partial

import batches
import gymnasium as gym
import numpy as np
import partition_sets
import pytest
from batches import assert_same, drawn, forks, modes
from cases import each
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from sb3_contrib import MaskablePPO
from stable_baselines3.common.env_checker import check_env as check_by_sb3

import parenvs
from parenvs.agents.partition.exact import exact_partition
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.tasks.partition.drawn_game import PartitionPlanEnv, PartitionPlanVectorEnv
from parenvs.tasks.partition.load import load_partitioning
from parenvs.wrappers import MaskInObservation

ID = "PartitionPlan-v0"
both = partial(batches.both, PartitionPlanVectorEnv)


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """The path of a small set."""
    return partition_sets.write(tmp_path_factory.mktemp("sets"))


def make(**kwargs):
    return gym.make(ID, **kwargs).unwrapped


def play(env, choose, **reset):
    """An episode: its rewards, observations and the last info."""
    observation, info = env.reset(**reset)
    seen, rewards, over = [observation], [], False
    while not over:
        observation, reward, over, truncated, info = env.step(choose(observation))
        assert not truncated
        seen.append(observation)
        rewards.append(reward)
    return rewards, seen, info


def test_env__checkers_accept_it(mine):
    for env in (make(instance=mine), make(instance=f"{mine}/lstm-000")):
        check_env(env, skip_render_check=True)
        check_by_sb3(env, skip_render_check=True)
    assert gym.make(f"parenvs/{ID}", instance=mine).spec.entry_point.endswith("PartitionPlanEnv")


def test_env__return_is_the_judges_value(mine):
    env, rng = make(instance=mine, order="sequential"), np.random.default_rng(0)
    values = []
    for number in range(18):
        share = (0.2, 0.5, 0.8)[number % 3]
        rewards, seen, info = play(env, lambda _, p=share: int(rng.random() < p))
        report = env.problem.report(env.plan())
        values.append(sum(rewards))
        assert values[-1] == pytest.approx(report.value, abs=1e-12)
        assert info["excess_bytes"] == report.memory.peak - env.problem.memory_limit
        assert info["length_seconds"] == pytest.approx(report.step_seconds, rel=1e-12)
        assert report.legal == (info["excess_bytes"] <= 0) == (values[-1] != -1)
        assert all(env.observation_space.contains(one) for one in seen)
    assert any(value == -1 for value in values)
    assert any(value > 0 for value in values)


def test_env__episodes_are_those_of_operator_partition(mine):
    """The same actions earn the same rewards on the same classes."""
    env = make(instance=f"{mine}/vgg-000")
    other = gym.make("OperatorPartition-v0", problem=env.problem).unwrapped
    rng = np.random.default_rng(3)
    for _ in range(4):
        env.reset()
        other.reset()
        over = False
        while not over:
            action = int(rng.integers(2))
            _, reward, over, _, _ = env.step(action)
            _, expected, ended, _, _ = other.step(action)
            assert reward == pytest.approx(expected, abs=1e-12)
            assert over == ended
        assert env.plan() == other.plan()


def test_env__over_the_limit_is_minus_one():
    problem = load_partitioning("big-lstm", "1x8:v100", reward="step_time", memory_limit=1e6)
    with pytest.warns(UserWarning, match="no plan fits the memory: big-lstm"):
        env = make(problem=problem)
    rewards, seen, info = play(env, lambda _: 1)
    assert sum(rewards) == pytest.approx(-1, abs=1e-12)
    assert info["excess_bytes"] > 0
    assert not seen[0]["choices"][:, 2].any()


def test_env__observation(mine):
    env = make(instance=f"{mine}/vgg-000")
    outlook = env.game.episodes[0].outlook
    seen, _ = env.reset()
    assert seen["classes"].shape == (5, 13)
    assert np.allclose(seen["classes"][:, 2], outlook.gain[:5], atol=1e-6)
    known = np.full(len(outlook.gain), -1)
    look = outlook.look(known, 0)
    assert np.allclose(
        seen["choices"][:, 0], np.clip(look.gain + np.array([0, outlook.gain[0]]), -1, 1)
    )
    assert seen["plan"][[0, 1]].tolist() == [0, 0]
    assert seen["plan"][5] == np.float32(0.3)  # 8 of 1,024 devices, on two servers
    assert seen["plan"][6] == 0
    after, reward, *_ = env.step(1)
    assert after["plan"][1] == pytest.approx(reward)
    taken = 1 + len(outlook.excluded[0])
    assert after["plan"][0] == pytest.approx(taken / len(known))
    _, last, _ = play(env, lambda _: 0)
    assert not last[-1]["classes"].any()
    assert last[-1]["plan"][0] == 1
    assert last[-1]["plan"][3] == pytest.approx(last[-1]["plan"][4], abs=1e-6)  # all replicated


def test_env__illegal_actions_return_minus_one(mine):
    env = make(instance=f"{mine}/vgg-000")
    env.reset()
    first = env.step(1)[1]
    _, reward, over, _, info = env.step(2)
    assert over
    assert first + reward == pytest.approx(-1, abs=1e-12)
    assert "length_seconds" not in info
    assert env.step(0)[1:3] == (-1.0, True)


def test_env__a_saved_plan_is_worth_the_return(mine, tmp_path):
    env = make(instance=f"{mine}/vgg-001")
    rewards, _, _ = play(env, lambda _: 1)
    env.plan().save(tmp_path / "plan.json")
    report = parenvs.judge(tmp_path / "plan.json")
    assert report.value_of("step_time") == pytest.approx(sum(rewards), abs=1e-12)
    assert report.problem.step == env.problem.step


def test_env__sequential_plays_each_once(mine):
    env = make(instance=mine, order="sequential")
    names = [f"{mine}/{row['name']}" for row in partition_sets.ROWS]
    assert [env.reset()[1]["instance"] for _ in range(4)] == [*names, names[0]]
    assert env.reset(seed=1)[1]["instance"] == names[0]
    of_family = make(instance=mine, family="vgg", order="sequential")
    assert [of_family.reset()[1]["instance"] for _ in range(3)] == [*names[1:], names[1]]
    batch = PartitionPlanVectorEnv(2, instance=mine, order="sequential")
    found = [*batch.reset()[1]["instance"], *batch.reset()[1]["instance"]]
    assert found == [*names[:2], names[2], names[0]]


def test_env__same_seed_same_problems(mine):
    envs = [make(instance=mine) for _ in range(2)]
    seeds = [5, *[None] * 8]
    found = [[env.reset(seed=seed)[1]["instance"] for seed in seeds] for env in envs]
    assert found[0] == found[1]
    assert len(set(found[0])) == 3
    assert envs[0].draws
    assert not make(instance=f"{mine}/vgg-000").draws


def test_env__options_of_a_reset(mine):
    env = make(instance=mine, family="lstm")
    assert env.reset(options={"instance": f"{mine}/vgg-001"})[1]["instance"].endswith("vgg-001")
    assert env.reset()[1]["instance"].endswith("lstm-000")


def test_env__look_ahead_leads_to_the_optimum(mine):
    """Where both choices may fit, the larger bound; it is the optimum on these problems."""

    def choose(seen):
        replicate, partition = seen["choices"][:, 2]
        return int(partition > replicate or (partition == replicate and seen["plan"][2] >= 0))

    for row in partition_sets.ROWS:
        env = make(instance=f"{mine}/{row['name']}")
        best = exact_partition(env.problem)
        assert sum(play(env, choose)[0]) >= 0.98 * best.value > 0


@each(
    ("kwargs", "says"),
    [
        ({"instance": "partition-trial"}, "unknown problem 'partition-trial' .*'partition-train'"),
        ({"instance": "partition-test/t6-000"}, "unknown problem 'partition-test/t6-000' .*did"),
        ({"instance": "partitions/t5-000"}, "unknown set 'partitions'"),
        ({"instance": "nothing.json"}, "'nothing.json': no such file"),
        ({"instance": "nothing.json/a"}, "'nothing.json': no such file"),
        ({"instance": 7}, "must be the name of a set or problem, not 7"),
        ({"family": "t55"}, "family: partition-train has no problem of family 't55'"),
        ({"instance": "partition-test/t5-000", "family": "t5"}, "family: .* is one problem"),
        ({"instance": "partition-test/t5-000", "order": "sequential"}, "order: .* is one problem"),
        ({"order": "sorted"}, "order must be one of random, sequential"),
    ],
)
def test_env__bad_arguments_are_one_line(kwargs, says):
    with pytest.raises(ParenvsError, match=says) as error:
        make(**kwargs)
    assert "\n" not in str(error.value)


def test_env__bad_problems(mine, tmp_path):
    free = load_partitioning("big-lstm", "1x8:v100", reward="step_time")
    with pytest.raises(ParenvsError, match="big-lstm has no limit; give memory_limit='device'"):
        make(problem=free)
    with pytest.raises(ParenvsError, match="with the reward step_time, not variables"):
        make(problem=load_partitioning("big-lstm", "1x8:v100", memory_limit=True))
    wrong = partition_sets.write(tmp_path, {**partition_sets.ROWS[0], "instance": "big-lstmm"})
    with pytest.raises(ParenvsError, match=r"mine.json/lstm-000: unknown instance 'big-lstmm'"):
        make(instance=wrong)
    env = make(instance=mine, family="lstm")
    for options in ({"instanc": mine}, {"instance": mine}, {"instance": 3}, {"instance": "none"}):
        with pytest.raises(ParenvsError) as error:
            env.reset(options=options)
        assert "\n" not in str(error.value)


def test_env__too_many_classes(monkeypatch):
    monkeypatch.setattr("parenvs.tasks.partition.episode.MAX_CLASSES", 3)
    problem = load_partitioning("big-lstm", "1x8:v100", reward="step_time", memory_limit=True)
    with pytest.raises(InfeasibleError, match="8 classes; PartitionPlan-v0 has at most 3"):
        make(problem=problem)


def test_env__mask_in_the_observation(mine):
    env = MaskInObservation(make(instance=mine))
    observation, info = env.reset(seed=0)
    assert np.array_equal(observation["action_mask"], info["action_mask"])


@pytest.mark.thorough
def test_env__render(mine):
    env = make(instance=f"{mine}/lstm-000", render_mode="ansi")
    env.reset()
    env.step(1)
    assert "big-lstm" in env.render()
    assert env.undecided() < set(env.problem.tensor)
    drawing = make(instance=f"{mine}/lstm-000", render_mode="rgb_array")
    drawing.reset()
    assert drawing.render().ndim == 3


@forks
def test_env__forks(fork, mine):
    env, rng = make(instance=mine), np.random.default_rng(0)
    env.reset(seed=0)
    env.step(0)
    again, over = fork(env), False
    while not over:
        action = int(rng.integers(2))
        one = env.step(action)
        assert_same(one, again.step(action))
        over = one[2]
    assert env.plan() == again.plan()


@pytest.mark.thorough
@modes
def test_vector__equals_single_ones(mode, mine):
    batched, single = both({"instance": mine}, 3, mode)
    rng, ended = np.random.default_rng(0), 0
    for seed in (7, [3, None, 2**40]):
        assert_same(batched.reset(seed=seed), single.reset(seed=seed))
        for turn in range(36):
            masks = batched.action_masks()
            assert_same(masks, np.array(single.call("action_masks")))
            actions = drawn(masks, rng, 0.05 * (turn % 2))
            outcome = batched.step(actions)
            assert_same(outcome, single.step(actions))
            ended += int(outcome[2].sum())
            again = outcome[2] & (batched.autoreset_mode == AutoresetMode.DISABLED)
            if turn % 12 == 7:
                again[1] = True
            if again.any():
                asked = {"instance": f"{mine}/lstm-000"} if turn % 12 == 7 else {}
                options = {**asked, "reset_mask": again}
                assert_same(*(env.reset(options=dict(options)) for env in (batched, single)))
    assert batched.get_attr("instance") == single.get_attr("instance")
    assert [batched.plan(k) for k in range(3)] == [one.plan() for one in single.envs]
    assert ended > 8


def test_vector__gymnasium_makes_it(mine):
    env = gym.make_vec(ID, num_envs=2, instance=mine, render_mode="ansi", mask_in_observation=True)
    assert isinstance(env, PartitionPlanVectorEnv)
    assert env.single is PartitionPlanEnv
    seen, _ = env.reset(seed=0)
    assert env.observation_space.contains(seen)
    again = copy.deepcopy(env)
    assert_same(env.step(np.array([0, 1])), again.step(np.array([0, 1])))
    assert len(env.render()) == 2
    with pytest.raises(ParenvsError, match="max_episode_steps"):
        gym.make_vec(ID, num_envs=2, instance=mine, max_episode_steps=1)


@pytest.mark.slow
def test_agents__ppo_learns_on_it(mine):
    env = gym.make(ID, instance=mine)
    agent = MaskablePPO("MultiInputPolicy", env, n_steps=32, batch_size=32, n_epochs=1, seed=0)
    agent.learn(64)
    seen, info = env.reset(seed=0)
    action, _ = agent.predict(seen, action_masks=info["action_mask"].astype(bool))
    assert int(action) in (0, 1)


@each(
    "name, options",
    [
        ("partition-train/vgg-000", {}),
        ("vgg-19", {"reward": "step_time", "memory_limit": "device"}),
        ("vgg-19", {"scope": "inputs", "reward": "step_time", "micro_batch": 8}),
        ("vgg-19", {}),
    ],
)
def test_partition_plan__judged_alone_as_by_its_problem(tmp_path, name, options):
    problem = parenvs.problem(name, task="partition", **options)
    plan = problem.plan(~problem.classes.blocked)
    plan.save(tmp_path / "plan.json")
    own, report = problem.report(plan), parenvs.judge(tmp_path / "plan.json")
    assert report.problem.reward == problem.reward == plan.reward
    assert (report.cost, report.value) == (own.cost, own.value)
    assert report.to_json() == own.to_json()
    assert ("reward" in plan.to_json()) == (problem.reward != "paper")


def test_partition_plan__a_member_of_a_file_can_be_made_again(mine):
    env = make(instance=mine, order="sequential")
    _, info = env.reset(seed=0)
    problem = parenvs.problem(info["instance"], task="partition")
    assert problem.report(env.plan()).to_json() == env.problem.report(env.plan()).to_json()
    assert (
        parenvs.judge(env.plan(), info["instance"]).to_json()
        == problem.report(env.plan()).to_json()
    )
    with pytest.raises(ParenvsError, match="cluster: "):
        parenvs.problem(info["instance"], "2x8:a100", task="partition")
