"""``ElasticPlan-v0``: as the simulation has it, batches to the last bit, seeds, options."""

import elastic_toys as toys
import gymnasium as gym
import numpy as np
import pytest
from batches import assert_same, both, drawn, modes
from cases import slow
from gymnasium.utils.env_checker import check_env

from parenvs.agents.elastic.rules import Hysteresis
from parenvs.core.plan import ILLEGAL
from parenvs.errors import ParenvsError
from parenvs.tasks.elastic.game import ElasticPlanVectorEnv
from parenvs.tasks.elastic.load import elastic_rows
from parenvs.tasks.elastic.problem import Elastic
from parenvs.tasks.elastic.run import follow
from parenvs.tasks.elastic.trace import read_trace
from parenvs.wrappers import MaskInObservation

COUNTS = "seconds,nodes\n0,3\n60,2\n130,6\n200,1\n300,4\n420,2\n"
NAMES = "seconds,event,node\n0,add,a\n0,add,b\n70,add,c\n190,remove,a\n260,add,d\n300,remove,c\n"


@pytest.fixture(params=["chain", "counts", "names"])
def problem(request, tmp_path):
    """Problems of each kind."""
    if request.param == "chain":
        return toys.problem("wide", 12)
    path = tmp_path / "trace.csv"
    path.write_text({"counts": COUNTS, "names": NAMES}[request.param])
    return Elastic(toys.library(True), read_trace(path, "small"), 60.0)


def test_elastic__is_an_environment():
    env = gym.make("ElasticPlan-v0", problem=toys.problem("wide", 12), render_mode="ansi")
    check_env(env.unwrapped, skip_render_check=True)
    env.reset(seed=0)
    assert "nothing chosen yet" in env.render()


def test_elastic__return_is_that_of_the_simulation(problem):
    env = ElasticPlanVectorEnv.single(problem=problem)
    for seed in range(5):
        course = problem.drawn(seed)
        run = follow(problem, course, Hysteresis())
        observation, info = env.reset(seed=seed)
        total, over = 0.0, False
        for t, plan in enumerate(run.plans.tolist()):
            assert not over
            assert info["action_mask"].sum() == problem.fits(int(course.nodes[t])).sum()
            assert observation["numbers"][0] == np.float32(course.nodes[t] / 64)
            observation, reward, over, _, info = env.step(plan)
            assert reward == pytest.approx(run.samples[t] / problem.ideal, abs=1e-12)
            assert env.observation_space.contains(observation)
            total += reward
        assert over
        assert total == pytest.approx(run.value)
        assert info["samples"] == pytest.approx(run.total)
        assert info["share"] == pytest.approx(run.share)
        assert (env.plan().plans == run.plans).all()


@pytest.mark.thorough
@modes
@pytest.mark.parametrize("illegal", [0.1, *slow(0.0)])
def test_elastic__batch_is_single(problem, mode, illegal):
    batched, single = both(ElasticPlanVectorEnv, {"problem": problem}, 3, mode)
    rng, over = np.random.default_rng(0), np.zeros(3, dtype=bool)
    assert_same(batched.reset(seed=4), single.reset(seed=4))
    for _ in range(40):
        if over.any() and mode == "Disabled":
            options = {"reset_mask": over.copy()}
            assert_same(*(env.reset(options=dict(options)) for env in (batched, single)))
        actions = drawn(batched.action_masks(), rng, illegal)
        outcome = batched.step(actions)
        assert_same(outcome, single.step(actions))
        over = outcome[2]


@pytest.mark.thorough
def test_elastic__sets_and_options(tmp_path):
    """Episodes of other problems beside those of a set, as single environments play them."""
    path = tmp_path / "trace.csv"
    path.write_text("seconds,nodes\n0,20\n60,12\n130,26\n")
    kwargs = {"instance": "elastic-validation", "model": "bert-large"}
    batched, single = both(ElasticPlanVectorEnv, kwargs, 3)
    first = batched.reset(seed=1)
    assert_same(first, single.reset(seed=1))
    assert len(set(first[1]["instance"])) > 1
    assert_same(batched.get_attr("instance"), single.get_attr("instance"))
    rng = np.random.default_rng(0)
    for turn in range(12):
        if turn == 3:
            mask = np.array([False, True, True])
            options = {"instance": str(path), "reset_mask": mask}
            outcomes = [env.reset(options=dict(options)) for env in (batched, single)]
            assert_same(*outcomes)
            assert outcomes[0][1]["instance"][1] == f"{path}/bert-large-measured"
        actions = drawn(batched.action_masks(), rng)
        assert_same(batched.step(actions), single.step(actions))
    for env in (batched, ElasticPlanVectorEnv.single(**kwargs)):
        with pytest.raises(ParenvsError, match="options: unknown 'instanc'"):
            env.reset(options={"instanc": "p3"})


def test_elastic__seeds_decide_the_nodes():
    """Whatever is chosen, the same seed gives the same nodes."""
    env = ElasticPlanVectorEnv.single(problem=toys.problem("bulk", 15))
    seen = []
    for last in (True, False):
        observation, info = env.reset(seed=9)
        nodes, over = [], False
        while not over:
            nodes.append(float(observation["numbers"][0]))
            legal = np.flatnonzero(info["action_mask"])
            observation, _, over, _, info = env.step(legal[-1 if last else 0])
        seen.append(nodes)
    assert seen[0] == seen[1]
    assert len(set(seen[0])) > 1


def test_elastic__illegal_actions():
    env = ElasticPlanVectorEnv.single(problem=toys.problem("calm", 5))
    for action in (5, -1, 64, 10**9):  # of 2 nodes three are asked; the others are no plans
        env.reset(seed=0)
        _, reward, over, _, info = env.step(action)
        assert (reward, over) == (ILLEGAL, True)
        assert info.keys() == {"action_mask", "instance"}
        assert env.action_masks().all()
    with pytest.raises(ParenvsError, match="action: expected a whole number"):
        env.step(0.5)


def test_elastic__masks_in_observations_and_views():
    kwargs = {"problem": toys.problem("wide", 9)}
    batch = ElasticPlanVectorEnv(2, mask_in_observation=True, copy=False, **kwargs)
    one = MaskInObservation(ElasticPlanVectorEnv.single(**kwargs))
    seen, alone = batch.reset(seed=0)[0], one.reset(seed=0)[0]
    assert_same({key: value[0] for key, value in seen.items()}, alone)
    assert not seen["plans"].flags.writeable


def test_elastic__bad_arguments():
    make = ElasticPlanVectorEnv.single
    with pytest.raises(ParenvsError, match="interval: problems of elastic-train have settings"):
        make(interval=30.0)
    with pytest.raises(ParenvsError, match="cluster: problems of elastic-test have settings"):
        make(instance="elastic-test", cluster="2x8:a100")
    with pytest.raises(ParenvsError, match=r"model: elastic-test has none of 'gpt-7\.5b'"):
        make(instance="elastic-test", model="gpt-7.5b")
    with pytest.raises(ParenvsError, match="unknown trace 'p33'"):
        make(instance="p33")
    with pytest.raises(ParenvsError, match=r"none of 'bulk'; known: independent-gpt-1\.5b"):
        make(instance="elastic-test", family="bulk")
    for kwargs in ({"family": "bulk-gpt-1.5b"}, {"order": "sequential"}):
        with pytest.raises(ParenvsError, match=f"{next(iter(kwargs))}: it is of a set"):
            make(instance="p3", **kwargs)


@pytest.mark.thorough
def test_elastic__plays_a_set_in_its_order():
    kwargs = {"instance": "elastic-validation", "order": "sequential"}
    single, batch = ElasticPlanVectorEnv.single(**kwargs), ElasticPlanVectorEnv(3, **kwargs)
    names = [f"elastic-validation/{name}" for name in elastic_rows("elastic-validation")]
    for seed in (0, 1):
        found = [single.reset(seed=seed)[1], *(single.reset()[1] for _ in range(len(names)))]
        assert [info["instance"] for info in found] == [*names, names[0]]
        infos = [batch.reset(seed=seed)[1], batch.reset()[1]]
        assert [x for info in infos for x in info["instance"]] == names[:6]
    one = ElasticPlanVectorEnv.single(**kwargs, family="bulk-gpt-1.5b")
    assert len({one.reset()[1]["instance"] for _ in range(4)}) == 2
