"""``ElasticPlan-v2``: as the simulation has it, rows as the formulas, jobs by name."""

import math

import elastic_toys as toys
import gymnasium as gym
import numpy as np
import pytest
from cases import each

import parenvs
from parenvs.agents.elastic.planners import teach
from parenvs.core.game import EVERY
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.tasks.elastic import game as outlooks
from parenvs.tasks.elastic.game import ElasticChoice, ElasticChoiceEnv, ElasticChoiceVectorEnv
from parenvs.tasks.elastic.library import CHECKPOINT, GONE, READY, departures, plan_chances
from parenvs.tasks.elastic.problem import (
    Course,
    Elastic,
    Recorded,
    hindsight,
    known_samples,
    replay,
)

COLUMNS = list(ElasticChoice.columns)
CONTEXTS = list(ElasticChoice.contexts)


def play(env, choose, **reset):
    """Observations, rewards, and the last info."""
    seen, rewards, over = [env.reset(**reset)[0]], [], False
    while not over:
        observation, reward, over, _, info = env.step(choose(seen[-1]))
        seen.append(observation)
        rewards.append(reward)
    return seen, rewards, info


@pytest.mark.thorough
@each("checkpoints", [False, True])
def test_choice__returns_are_those_of_the_simulation(checkpoints):
    """Of random choices; what was chosen is a plan file that is judged alike."""
    problem = toys.problem("bulk", 12, checkpoints)
    env = ElasticChoiceEnv(problem=problem)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        _, rewards, info = play(
            env, lambda o, rng=rng: rng.choice(np.flatnonzero(o["action_mask"])), seed=seed
        )
        job = env.game.jobs[0]
        run = replay(job.problem, job.course, env.game.chosen[0, :12])
        assert env.game.total[0] == pytest.approx(run.total)
        best = hindsight(job.problem, job.course)
        share = run.total / best.total
        assert sum(rewards) == pytest.approx(math.log(max(share, 1 / 24)))
        judged = parenvs.judge(env.plan(), problem)
        assert judged.legal and judged.total == run.total
        assert judged.cost == pytest.approx(info["cost"], rel=1e-12)
        assert (judged.chosen == run.chosen).all()
        assert info["reference"] == pytest.approx(12 * 60 / best.total, rel=1e-12)
        if run.total > 0:
            assert info["cost"] == pytest.approx(12 * 60 / run.total, rel=1e-12)
            assert 1 / (1 + info["gap"]) == pytest.approx(share)


@pytest.mark.thorough
@each(
    "arguments",
    [
        {"family": "gone", "model": "gpt-1.5b"},
        {"instance": "elastic-windows", "family": "g4dn-gpt-1.5b"},
        {"instance": "elastic-validation", "family": "bulk-gpt-1.5b"},
    ],
)
def test_choice__plans_are_what_judge_takes_even_of_who_only_waits(arguments):
    env = gym.make("ElasticPlan-v2", **arguments)
    _, rewards, info = play(env, lambda _: 0, seed=3)
    assert sum(rewards) == pytest.approx(-math.log(2 * len(rewards)))
    report = parenvs.judge(env.unwrapped.plan())
    assert report.legal and report.cost == info["cost"] == info["gap"] == math.inf
    for policy in (
        lambda seen, mask: 0,
        lambda seen, mask: int(np.where(mask, seen["actions"][:, 0], -np.inf).argmax()),
    ):
        found = parenvs.evaluate(policy, env, seed=4)
        report = parenvs.judge(found.plan)
        assert report.legal and report.cost == found.report.cost
        assert found.gap == report.cost / found.reference - 1 and found.score == (
            found.reference / report.cost
        )
    assert 0 < found.gap < 1


def test_choice__a_checkpoint_makes_the_state_safe():
    course = Course.of_bits(3, np.zeros(6, dtype=int), np.array([0, 0, 0, 7, 0, 0], np.uint64), 3)
    problem = Elastic(toys.library(), Recorded("gone", course), name="toy/gone")
    env, totals = ElasticChoiceEnv(problem=problem), []
    for second in (1, CHECKPOINT):
        choices = iter([1, 1, second, 0, 0, 0])
        seen, *_ = play(env, lambda _, choices=choices: next(choices))
        since = CONTEXTS.index("since")
        assert [round(float(o["context"][since] * 3)) for o in seen[:4]] == [
            0, 0, 1, 0 if second == CHECKPOINT else 2
        ]  # fmt: skip
        masks = [int(o["action_mask"][CHECKPOINT]) for o in seen[:5]]
        assert masks == [0, 1, 1, 0, 0]  # nothing is whole at first, and at last
        totals.append(env.game.total[0])
    assert totals[1] - totals[0] == pytest.approx(2 * 60 - toys.COSTS.save)


@pytest.mark.thorough
def test_choice__rows_are_the_formulas():
    """Against a second writing in scalars, after events of every kind."""
    problem = toys.problem("wide", 40)
    env = ElasticChoiceEnv(problem=problem)
    rng, library = np.random.default_rng(0), problem.library
    seconds, egress = library.tables
    fastest, found = library.rate.max(), set()
    for seed in range(4):
        observation, over = env.reset(seed=seed)[0], False
        while not over:
            game = env.game
            event, old = int(game.event[0]), int(game.plans[0])
            nodes, since = int(game.nodes[0]), int(game.since[0])
            found.add(event)
            seen = game._means[2, :, 0]
            leave = outlooks.RATES[np.abs(np.log(outlooks.RATES / departures(*seen[::2]))).argmin()]
            rows = observation["actions"]
            for k in np.flatnonzero(observation["action_mask"]).tolist():
                row = dict(zip(COLUMNS, rows[k].tolist(), strict=True))
                plan = old if k == CHECKPOINT else k
                spent = library.costs.save if k == CHECKPOINT else seconds[event, old, plan]
                chance = plan_chances(*library.sizes[plan], leave).sum(axis=1)
                expected = {
                    "seconds": spent / 60,
                    "bytes": egress[event, old, plan] / library.state.bytes,
                    "hit": chance[1:].sum(),
                    "stop": chance[1:].sum() - chance[READY + 1 : GONE].sum(),
                    "lost": chance[GONE],
                    "rate": library.rate[plan] / fastest,
                    "current": plan == old,
                    "checkpoint": k == CHECKPOINT,
                    "join_2": max(
                        library.rate[j] / fastest * max(1 - seconds[0, plan, j] / 600, 0)
                        for j in np.flatnonzero(library.needed <= nodes + 2)
                    ),
                }
                for name, value in expected.items():
                    assert row[name] == pytest.approx(float(value), rel=1e-5, abs=1e-7), name
            assert observation["action_mask"][CHECKPOINT] == (
                event == 0 and old > 0 and library.needed[old] <= nodes and since < 2
            )
            action = rng.choice(np.flatnonzero(observation["action_mask"]))
            observation, _, over, _, _ = env.step(action)
    assert {0, 1, 2, READY + 1, GONE} <= found


def test_choice__drawn_jobs_are_made_again_by_their_names():
    for arguments in ({}, {"fresh": True}, {"family": "gone", "model": "bert-large"}):
        env = ElasticChoiceEnv(**arguments)
        job = (env.reset(seed=1), env.game.jobs[0])[1]
        again = parenvs.problem(job.problem.name, task="elastic")
        assert all((a == b).all() for a, b in zip(job.course, again.course(), strict=True))
        assert known_samples(again, again.course()) == job.known


def test_choice__bad_arguments():
    make = ElasticChoiceEnv
    for arguments, words in (
        ({"family": "quite"}, r"family: .* 'quite' \(did you mean 'quiet'\?\)"),
        (
            {"model": "gpt"},
            "model: the problem pool has no problem of model 'gpt'.*; known: gpt-1.5b, bert-large",
        ),
        ({"instance": "p3", "family": "gone"}, "family: it is of a set or a bank"),
        ({"instance": "p3", "fresh": True}, "fresh: it is of problems that are drawn"),
        ({"order": "sequential"}, "order: it is of a set, like 'elastic-windows'"),
        ({"instance": "elastic-windows", "family": "p3"}, "family: elastic-windows has no problem"),
        ({"instance": "elastic-windows/p3-gpt-1.5b-999"}, "elastic-windows holds 314"),
        ({"instance": "elastic/gone/bert-large/x"}, "drawn ones are called like elastic/"),
        (
            {"instance": "elastic/gone/bert-large/3", "interval": 30.0},
            "interval: problems of elastic have 60 s",
        ),
        ({"instance": 3}, "must be the name of a problem"),
    ):
        with pytest.raises(ParenvsError, match=words):
            make(**arguments)
    env = make(instance="p3")
    info = env.reset(options={"instance": "elastic-windows"})[1]
    assert info["instance"].startswith("elastic-windows/")
    nobody = Course.of_bits(0, np.zeros(9, dtype=int), np.zeros(9, dtype=np.uint64), 3)
    with pytest.raises(InfeasibleError, match="toy: no plan earns anything on this course"):
        make(problem=Elastic(toys.library(), Recorded("nobody", nobody), name="toy"))


def test_teacher__who_follows_it_earns_what_hindsight_does():
    env = ElasticChoiceVectorEnv(3)
    env.reset(seed=[0, 1, 2])
    game = env.game
    told, total = teach(game), np.zeros(3)
    while not game.over.all():
        worth = told()
        assert (np.isfinite(worth) == game.legal).all()
        total += game.play(EVERY, np.where(np.isnan(worth), -np.inf, worth).argmax(axis=1))
    assert total == pytest.approx(0.0, abs=1e-9)
    assert teach(object()) is None
