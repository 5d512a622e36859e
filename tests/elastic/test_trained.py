"""AgentPolicy agents as policies: told of a job's moments, they choose as in their environments."""

from dataclasses import replace

import elastic_toys as toys
import numpy as np
import pytest

import parenvs
from parenvs.agents.elastic.planners import ENV_ID, AgentPolicy, policy_of
from parenvs.agents.elastic.policies import play
from parenvs.agents.learning.network import shipped
from parenvs.agents.learning.options import LEARNED
from parenvs.errors import ParenvsError
from parenvs.tasks.elastic.game import ElasticChoiceEnv
from parenvs.tasks.elastic.library import CHECKPOINT
from parenvs.tasks.elastic.problem import Recorded


def ruled(observation, mask):
    """The rule of column 0."""
    return int(np.where(mask, observation["actions"][:, 0], -np.inf).argmax())


def in_env(problem, best, **arguments):
    """What an agent chooses in an environment, and its samples."""
    env = ElasticChoiceEnv(problem=problem, **arguments)
    observation, info = env.reset(seed=0)
    actions, over = [], False
    while not over:
        actions.append(best(observation, info["action_mask"] > 0))
        observation, _, over, _, info = env.step(actions[-1])
    return actions, parenvs.judge(env.plan(), problem).total


def test_trained__chooses_as_in_its_environment():
    chosen = set()
    for name in ("bulk", "wide"):
        chain = toys.problem(name, 40)
        course = chain.drawn(3)
        problem = replace(chain, source=Recorded("course", course))
        actions, total = in_env(problem, ruled)
        run = play(problem, course, AgentPolicy("rule", ruled))
        assert run.chosen.tolist() == actions and run.total == pytest.approx(total)
        assert run.events.any()
        chosen |= set(actions)
    assert CHECKPOINT in chosen


def test_policy_of__takes_the_network_that_ships_and_files(tmp_path):
    chain = toys.problem("bulk", 20)
    problem = replace(chain, source=Recorded("course", chain.drawn(0)))
    planned = parenvs.plan(problem, LEARNED).report
    shipped(ENV_ID).save(tmp_path / "mine.npz")
    for source in (LEARNED, str(tmp_path / "mine.npz")):
        run = play(problem, problem.course(), policy_of(source)())
        assert run.chosen.tolist() == planned.chosen.tolist()
    assert run.policy == "mine"
    for source, words in (
        ("none.npz", r"none\.npz: no file of weights"),
        ("fastst", r"'fastst' is unknown \(did you mean 'fastest'\?\)"),
    ):
        with pytest.raises(ParenvsError, match=words):
            policy_of(source)


@pytest.mark.thorough
def test_policy_of__takes_the_folder_of_a_training(tmp_path):
    pytest.importorskip("torch")
    from parenvs.agents.learning.config import TrainConfig
    from parenvs.agents.learning.trainer import player, train

    settings = {"envs": 16, "turns": 2, "width": 8}
    for env_id, folder in (("ElasticPlan-v2", "elastic"), ("PipelineCut-v0", "other")):
        given = {"instance": "vgg-19", "cluster": "B"}
        if folder == "elastic":
            given = {"instance": "elastic-windows/p3-gpt-1.5b-012", "rows": "bare"}
        config = TrainConfig(
            env_id=env_id, env_kwargs=given, agent="group", steps=32, settings=settings
        )
        train(config, tmp_path / folder)
    agent, chain = player(tmp_path / "elastic"), toys.problem("bulk", 20)
    problem = replace(chain, source=Recorded("course", chain.drawn(0)))
    actions, _ = in_env(problem, lambda *seen: int(agent.predict(*seen)[0]), rows="bare")
    run = play(problem, problem.course(), policy_of(str(tmp_path / "elastic"))())
    assert run.chosen.tolist() == actions and run.policy == "elastic"
    for folder, words in (("other", "was trained in PipelineCut-v0"), (".", "config.json")):
        with pytest.raises(ParenvsError, match=words):
            policy_of(str(tmp_path / folder))
