"""What all environments do alike: options, infos, masked observations, attributes of batches."""

import json
import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import toys
from batches import assert_same, both, drawn, modes
from cases import each, slow
from sb3_contrib import MaskablePPO

import parenvs
from parenvs.core.registry import TASKS
from parenvs.datasets.pipeline import problems as instance_sets
from parenvs.datasets.pipeline.problems import optimum_of
from parenvs.errors import ParenvsError
from parenvs.tasks.partition.game import DataParallelVectorEnv, OperatorPartitionVectorEnv
from parenvs.tasks.pipeline.cut import PipelineCutVectorEnv
from parenvs.tasks.pipeline.improve import PipelineImprovementVectorEnv
from parenvs.wrappers import MaskInObservation

VGG = {"instance": "vgg-19"}
KINDS = [
    PipelineCutVectorEnv,
    PipelineImprovementVectorEnv,
    OperatorPartitionVectorEnv,
    DataParallelVectorEnv,
]
IDS = ["PipelineCut-v0", "PipelinePlan-v1", "OperatorPartition-v0", "DataParallel-v0"]
kinds = each("kind", KINDS)
ids = each("env_id", IDS)
OPTIONS = {
    PipelineCutVectorEnv: {"micro_batches": 7},
    PipelineImprovementVectorEnv: {"micro_batches": 7},
    OperatorPartitionVectorEnv: {"devices": 4},
    DataParallelVectorEnv: {"devices": 4},
}
"""Options that leave the spaces alone."""


def kwargs_of(kind):
    """Arguments under which the options of ``OPTIONS`` leave the spaces alone."""
    return {**VGG, "cluster": "A"} if kind is PipelineCutVectorEnv else VGG


def finish(env, info):
    """Play the last legal actions to the end; the return and the last info."""
    total, done = 0.0, False
    while not done:
        _, reward, done, _, info = env.step(int(np.flatnonzero(info["action_mask"])[-1]))
        total += reward
    return total, info


@ids
def test_conventions__a_first_problem_is_there_before_a_reset(env_id):
    env = gym.make(env_id, **VGG)
    before = env.get_wrapper_attr("action_masks")()
    assert before.any() and np.array_equal(before, env.reset()[1]["action_mask"])


@pytest.mark.thorough
@each("illegal", [0.0, 0.1])
@modes
@kinds
def test_conventions__options_in_a_batch(kind, mode, illegal):
    """Episodes of other problems beside those of the batch, as single environments play them."""
    batched, single = both(kind, kwargs_of(kind), 4, mode)
    rng, over = np.random.default_rng(0), np.zeros(4, dtype=bool)
    assert_same(batched.reset(seed=0), single.reset(seed=0))
    for turn in range(24):
        if over.any() and mode == "Disabled":
            assert_same(
                *(env.reset(options={"reset_mask": over.copy()}) for env in (batched, single))
            )
        if turn % 5 == 2:
            mask = rng.random(4) < 0.5
            mask[rng.integers(4)] = True
            options = {**OPTIONS[kind], **({"reset_mask": mask} if turn % 2 else {})}
            outcomes = [env.reset(options=dict(options)) for env in (batched, single)]
            assert_same(*outcomes)
        assert batched.get_attr("instance") == single.get_attr("instance")
        actions = drawn(batched.action_masks(), rng, illegal)
        outcome = batched.step(actions)
        assert_same(outcome, single.step(actions))
        over = outcome[2]


@pytest.mark.thorough
@kinds
def test_conventions__options_of_one_episode(kind):
    env = kind.single(**kwargs_of(kind))
    first = env.reset()
    env.reset(options=OPTIONS[kind])
    other = finish(env, env.reset(options=OPTIONS[kind])[1])
    again = env.reset()
    assert_same(first, again)
    seconds = "cost" if kind is PipelineImprovementVectorEnv else "length_seconds"
    assert finish(env, again[1])[1][seconds] != other[1][seconds]


@pytest.mark.thorough
@kinds
def test_conventions__wrong_options_change_nothing(kind):
    env, batch = kind.single(**VGG), kind(2, **VGG)
    for one in env, batch:
        one.reset()
        with pytest.raises(ParenvsError, match=r"options: unknown 'instanc' .*'instance'"):
            one.reset(options={"instanc": "t5-base"})
        if kind is not PipelineImprovementVectorEnv:
            with pytest.raises(ParenvsError, match=r"options: instance would change the .* space"):
                one.reset(options={"instance": "t5-base"})
        with pytest.raises(ParenvsError):
            one.reset(options={"instance": "nothing"})
    assert finish(env, env.reset()[1])[0] > (-1.0 if kind is PipelineImprovementVectorEnv else 0.0)


def test_conventions__settings_of_drawn_problems():
    """What would have no effect is refused."""
    make = PipelineImprovementVectorEnv.single
    for name, value in (("micro_batch", 3), ("copies", 2.5), ("stages", 3), ("cluster", "A")):
        for more in (
            {"family": "cnn"},
            {"instance": "plan-test"},
            {"instance": "plan-test/cnn-003"},
        ):
            with pytest.raises(ParenvsError, match=f"{name}: drawn problems have settings"):
                make(**more, **{name: value})
    with pytest.raises(ParenvsError, match="copies: drawn problems"):
        make().reset(options={"instance": "plan-test/cnn-003", "copies": 2.5})
    for name, value in (("family", "cnn"), ("fresh", True)):
        with pytest.raises(ParenvsError, match=f"{name}: no problems are drawn here"):
            make(instance="vgg-19", **{name: value})
    with pytest.raises(ParenvsError, match="instance: the argument problem has its own"):
        make(instance="vgg-19", problem=parenvs.problem("t5-base"))


@each("kind", [PipelineCutVectorEnv, OperatorPartitionVectorEnv, DataParallelVectorEnv])
def test_conventions__infos(kind):
    """They say what the judge says of the plan."""
    more = {} if "Pipeline" in kind.__name__ else {"memory": True}
    env = kind.single(**VGG, **more)
    info = env.reset()[1]
    assert info.keys() == {"action_mask", "instance"}
    assert info["instance"] == "vgg-19"
    _, info = finish(env, info)
    report = env.problem.report(env.plan())
    seconds = report.length_seconds if "Pipeline" in kind.__name__ else report.step_seconds
    assert info["length_seconds"] == pytest.approx(seconds, rel=1e-12)
    if more:
        assert info["excess_bytes"] == report.memory.peak - env.problem.memory_limit
    else:
        fullest = max(stage.memory_bytes for stage in report.stages)
        assert info["excess_bytes"] == fullest - env.problem.memory_limit
    env.reset()
    _, _, done, _, info = env.step(-1)
    assert done
    assert info.keys() == {"action_mask", "instance"}  # there is no plan to tell of


def test_conventions__regret():
    env = PipelineImprovementVectorEnv.single(instance="plan-test/cnn-003")
    _, info = finish(env, env.reset()[1])
    assert 0 < info["regret"] == 1 - info["best_known"] / info["cost"] < 1
    optimum = optimum_of("plan-test/cnn-003")
    assert info["bound"] / info["best_known"] == pytest.approx(optimum, rel=1e-12)
    env.reset()
    info = env.step(-1)[4]
    assert (info["regret"], "cost" in info) == (1.0, False)
    assert optimum_of("plan-test/cnn-9") is None
    assert optimum_of("t5-base") is None


def test_conventions__optima_are_of_the_sets(tmp_path, monkeypatch):
    """Optima of another file than the shipped set are refused."""
    for name in instance_sets.PROVEN:
        values = instance_sets._optima(name)
        assert len(values) == instance_sets.SETS[name][0]
        assert all(0 < value <= 1 for value in values.values())
    content = json.loads((instance_sets.data_folder() / instance_sets.OPTIMA).read_text())
    content["sets"]["plan-test"]["sha256"] = "0"
    (tmp_path / instance_sets.OPTIMA).write_text(json.dumps(content))
    (tmp_path / "plan-test.npz").write_bytes(
        (instance_sets.data_folder() / "plan-test.npz").read_bytes()
    )
    instance_sets._optima.cache_clear()
    monkeypatch.setattr(instance_sets, "data_folder", lambda: tmp_path)
    with pytest.raises(ParenvsError, match="of another file of plan-test; make it anew with"):
        instance_sets.optimum_of("plan-test/cnn-003")
    instance_sets._optima.cache_clear()


def test_conventions__sequential():
    """A set in its order, once and then again; a batch deals it out to its environments."""
    problems = instance_sets.load_set("plan-outside")
    names = [problem.name for problem in problems if problem.family == "cnn"]
    kwargs = {"instance": "plan-outside", "family": "cnn", "order": "sequential"}
    env = PipelineImprovementVectorEnv.single(**kwargs)
    seen = [env.reset()[1]["instance"] for _ in range(len(names) + 2)]
    assert seen == [*names, *names[:2]]
    assert env.reset(seed=3)[1]["instance"] == names[0]
    with pytest.raises(ParenvsError):
        env.reset(seed=4, options={"instance": "nowhere"})
    assert env.reset()[1]["instance"] == names[1]  # what is refused changes nothing
    batch = PipelineImprovementVectorEnv(3, **kwargs)
    assert [*batch.reset()[1]["instance"], *batch.reset()[1]["instance"]] == names[:6]
    with pytest.raises(ParenvsError, match="order: 'sequential' plays a set"):
        PipelineImprovementVectorEnv.single(order="sequential")


@kinds
def test_conventions__actions_are_whole(kind):
    env, batch = kind.single(**VGG), kind(2, **VGG)
    env.reset()
    for action in (0.7, np.float64(0.5), float("nan"), "1", None, [0, 1]):
        with pytest.raises(ParenvsError, match="action: expected a whole number"):
            env.step(action)
    with pytest.raises(ParenvsError, match=r"action: expected a whole number, not .*0\.7"):
        batch.step([0, 0.7])
    env.step(np.float64(0.0))
    env.step(np.array([1]))


@modes
@kinds
def test_conventions__masks_in_observations(kind, mode):
    batched = kind(3, mode, mask_in_observation=True, **VGG)
    single = gym.vector.SyncVectorEnv(
        [lambda: MaskInObservation(kind.single(**VGG))] * 3,
        autoreset_mode=gym.vector.AutoresetMode(mode),
    )
    assert batched.observation_space == single.observation_space
    rng = np.random.default_rng(0)
    assert_same(batched.reset(seed=0), single.reset(seed=0))
    for _ in range(10):
        actions = drawn(batched.action_masks(), rng, 0.1)
        outcome = batched.step(actions)
        assert_same(outcome, single.step(actions))
        assert batched.observation_space.contains(outcome[0])
        if mode == "Disabled" and outcome[2].any():
            assert_same(*(e.reset(options={"reset_mask": outcome[2]}) for e in (batched, single)))


@kinds
def test_conventions__attributes_of_a_batch(kind):
    batch, single = both(kind, VGG, 2)
    for env in batch, single:
        env.reset()
    assert_same(batch.call("action_masks"), single.call("action_masks"))
    assert batch.call("plan") == single.call("plan")
    for name in ("instance", "episode_steps", "largest_return"):
        assert batch.get_attr(name) == single.get_attr(name)
    batch.set_attr("label", ["one", "two"])
    assert batch.get_attr("label") == ("one", "two")
    with pytest.raises(AttributeError, match="share 'problem'"):
        batch.set_attr("problem", None)
    with pytest.raises(ValueError, match="2 values"):
        batch.set_attr("label", ["one"])
    with pytest.raises(AttributeError):
        batch.get_attr("nothing")
    with pytest.raises(AttributeError, match="'step'"):
        batch.call("step")


@pytest.mark.thorough
@ids
def test_conventions__make_vec(env_id):
    """A limit that no episode reaches is taken; what needs single environments says so."""
    batch = gym.make_vec(env_id, num_envs=2, max_episode_steps=10**6, **VGG)
    assert batch.get_attr("instance")[0] == "vgg-19"
    steps = batch.get_attr("episode_steps")[0]
    gym.make_vec(env_id, num_envs=2, max_episode_steps=steps, **VGG)
    with pytest.raises(ParenvsError, match=r'max_episode_steps: .* vectorization_mode="sync"'):
        gym.make_vec(env_id, num_envs=2, max_episode_steps=steps - 1, **VGG)
    several = gym.make_vec(
        f"parenvs/{env_id}", num_envs=2, vectorization_mode="sync", wrappers=[MaskInObservation],
        vector_kwargs={"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}, max_episode_steps=1,
        **VGG,
    )  # fmt: skip
    observation, info = several.reset()
    assert_same(observation["action_mask"], info["action_mask"])
    assert several.step(info["action_mask"].argmax(axis=1))[3].any() or several.step([0, 0])


@each("env_id", ["HybridPlan-v1", "ElasticPlan-v1"])
def test_conventions__make_vec_of_drawn_problems(env_id):
    """Gymnasium refuses wrappers of native batches; single environments take them."""
    with pytest.raises(gym.error.Error, match="with the wrappers argument"):
        gym.make_vec(env_id, num_envs=2, wrappers=[MaskInObservation])
    several = gym.make_vec(
        env_id, num_envs=2, vectorization_mode="sync", wrappers=[MaskInObservation]
    )
    observation, info = several.reset(seed=3)
    assert_same(observation["action_mask"], info["action_mask"])
    native = gym.make_vec(env_id, num_envs=2, mask_in_observation=True)
    assert_same(native.reset(seed=3)[0], observation)
    with pytest.raises(ParenvsError, match=r'max_episode_steps: .* vectorization_mode="sync"'):
        gym.make_vec(env_id, num_envs=2, max_episode_steps=1)


@pytest.mark.thorough
@each("env_id", ["HybridPlan-v1", "PipelinePlan-v1"])
def test_conventions__policies_of_stable_baselines(env_id):
    """The policy for ``Dict`` observations takes all parts, whatever their names."""
    env = gym.make(env_id)
    agent = MaskablePPO("MultiInputPolicy", env, n_steps=8, batch_size=8, n_epochs=1, device="cpu")
    observation, info = env.reset(seed=0)
    action, _ = agent.predict(observation, action_masks=info["action_mask"].astype(bool))
    assert info["action_mask"][action]


@ids
def test_conventions__instances_that_are_objects(env_id):
    kind = "forward" if "Pipeline" in env_id else "train"
    graph = parenvs.load_graph("vgg-19", kind)
    env, named = gym.make(env_id, instance=graph), gym.make(env_id, instance="vgg-19")
    assert env.observation_space == named.observation_space
    assert_same(env.reset()[0], named.reset()[0])
    with pytest.raises(TypeError, match="not JSON serializable"):
        env.spec.to_json()
    named.spec.to_json()
    for wrong in (3, ["vgg-19"], object()):
        with pytest.raises(TypeError, match="instance: expected a name, a path"):
            gym.make(env_id, instance=wrong)


@each("env_id", IDS[:2])
def test_conventions__profiles(env_id):
    profile = toys.balanced().profile
    env = gym.make(env_id, instance=profile, cluster="A")
    assert env.unwrapped.problem.profile is profile
    with pytest.raises(ParenvsError, match="micro_batch: the profile"):
        gym.make(env_id, instance=profile, micro_batch=profile.micro_batch + 7)


@pytest.mark.thorough
def test_conventions__infeasible_problems_warn():
    with pytest.warns(UserWarning, match="no plan fits the memory: t5-11b on A"):
        env = gym.make("PipelineCut-v0", instance="t5-11b", cluster="A")
    info = env.reset()[1]
    assert finish(env, info)[1]["excess_bytes"] > 0
    with pytest.warns(UserWarning, match="no plan fits the memory: t5-11b on"):
        gym.make("OperatorPartition-v0", instance="t5-11b", devices=2)
    with pytest.raises(ParenvsError, match="fits the memory"):  # no start plan
        gym.make("PipelinePlan-v1", instance="t5-11b", cluster="A")
    with pytest.raises(ParenvsError, match=r"none of .* fits the memory"):  # no start plan
        gym.make_vec(
            "HybridPlan-v1", num_envs=2, instance="llama3-70b", cluster="1x8:v100", batch=64
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gym.make("HybridPlan-v1", instance="hybrid-outside/gpt-003")
    with pytest.raises(ParenvsError, match="automap forbids to partition a dimension that"):
        gym.make("DataParallel-v0", instance="t5-base", rules="automap")


NAMED = [
    ("pipeline", "PipelineCut-v0", VGG),
    ("pipeline", "PipelinePlan-v1", {}),
    ("pipeline", "PipelinePlan-v1", {"tier": "s8", "family": "cnn"}),
    ("pipeline", "PipelinePlan-v1", {"fresh": True}),
    ("pipeline", "PipelinePlan-v1", {"instance": "plan-s32-test"}),
    ("pipeline", "PipelinePlan-v1", {"instance": "plan-outside"}),
    ("partition", "OperatorPartition-v0", VGG),
    ("partition", "DataParallel-v0", VGG),
    ("partition", "PartitionPlan-v1", {"family": "vgg"}),
    ("hybrid", "HybridPlan-v1", {}),
    ("hybrid", "HybridPlan-v1", {"fresh": True}),
    ("hybrid", "HybridPlan-v1", {"instance": "hetero-64"}),
    ("hybrid", "HybridPlan-v1", {"instance": "hetero-8-test"}),
    ("sharding", "IntraOpSharding-v1", {}),
    ("sharding", "IntraOpSharding-v1", {"family": None, "form": "improve"}),
    ("sharding", "IntraOpSharding-v1", {"instance": "intra-op-test"}),
    ("elastic", "ElasticPlan-v1", {}),
    ("elastic", "ElasticPlan-v1", {"fresh": True, "family": "gone"}),
    ("elastic", "ElasticPlan-v1", {"instance": "elastic-windows"}),
    ("elastic", "ElasticPlan-v1", {"instance": "elastic-validation"}),
    ("elastic", "ElasticPlan-v1", {"instance": "p3"}),
    ("elastic", "ElasticPlan-v1", {"instance": "p3", "cluster": "16x8:a100"}),
]


FORMER = (
    "PipelinePlan", "HybridPlan", "IntraOpSharding", "ElasticPlan",
    "PartitionPlan",
)  # fmt: skip


@each("name", FORMER)
def test_conventions__former_versions_name_the_new_one(name):
    for make in (gym.make, partial(gym.make_vec, num_envs=2)):
        with pytest.raises(gym.error.DeprecatedEnv, match=f"use `{name}-v1` instead"):
            make(f"{name}-v0")


def test_conventions__instances_are_of_all_environments():
    assert {env_id for _, env_id, _ in NAMED} == {x for t in TASKS.values() for x in t.envs}


@pytest.mark.thorough
@pytest.mark.parametrize("task, env_id, kwargs", [*NAMED[:-3], *slow(*NAMED[-3:])])
def test_conventions__an_instance_can_be_made_again(task, env_id, kwargs):
    """By ``parenvs.problem``, and by the environment, where the episode begins alike."""
    env, other = (gym.make(env_id, **kwargs) for _ in range(2))
    for seed in (3, None):
        seen, info = env.reset(seed=seed)
        name = info["instance"]
        problem = parenvs.problem(name, task=task)
        again, told = other.reset(options={"instance": name})
        assert told["instance"] == name
        for key, value in seen.items():
            np.testing.assert_array_equal(again[key], value)
        own = env.unwrapped.problem
        assert type(problem) is type(own)
        if task != "partition":  # whose plans carry the name of the graph
            assert own.instance == problem.instance == name
