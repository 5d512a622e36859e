"""``PartitionPlan-v2``: as the judge has it, what may be chosen, batches, bad input."""

import json
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import scipy.optimize
from batches import assert_alike, both, modes
from cases import each
from gymnasium.utils.env_checker import check_env

import parenvs
from benchmarks.partition_sets import pool_row
from parenvs.agents.partition.teacher import teach
from parenvs.agents.partition.witnesses import find_witnesses, shortest
from parenvs.core.sets import family_named
from parenvs.datasets.partition.problems import LIMITS, bank, members, named, played, problem_of
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.tasks.partition.choice import PartitionChoiceEnv, PartitionChoiceVectorEnv
from parenvs.tasks.partition.classes import conflict_matrix

SMALL = "partition-train/vgg-003"


@pytest.fixture(scope="module")
def problem():
    return named(SMALL)


def random_plan(linear, rng, chance):
    """A legal plan, whatever memory it needs."""
    chosen = np.zeros(len(linear.gain), dtype=bool)
    for k in rng.permutation(len(chosen)):
        chosen[k] = rng.random() < chance and not chosen[linear.rivals[k]].any()
    return chosen


def episode(env, choose, **reset):
    """Play an episode: its rewards, and the last info."""
    observation, info = env.reset(**reset)
    rewards, over = [], False
    while not over:
        observation, reward, over, cut, info = env.step(choose(observation))
        assert not cut and env.observation_space.contains(observation)
        rewards.append(reward)
    return rewards, info


def by_chance(rng):
    return lambda seen: int(rng.choice(np.flatnonzero(seen["action_mask"])))


def test_linear__is_what_the_judge_says(problem):
    """Seconds and bytes of any legal plan."""
    judge, rng = problem_of(problem), np.random.default_rng(0)
    for number in range(40):
        plan = random_plan(problem, rng, (0.2, 0.5, 0.9)[number % 3])
        assert problem.legal(plan)
        chosen = np.zeros(len(judge.classes), dtype=bool)
        chosen[problem.classes[plan]] = True
        assert judge.legal(chosen) and judge.fits(chosen) == bool(problem.fits(plan))
        assert problem.seconds(plan) == pytest.approx(judge.step_seconds(chosen), rel=1e-12)
        peak = problem.limit - problem.slack(plan).min()
        assert peak == pytest.approx(judge.peak(chosen), abs=1.0)
    both_rivals = np.zeros(len(problem.gain), dtype=bool)
    index = next(k for k, row in enumerate(problem.rivals) if len(row))
    both_rivals[[index, problem.rivals[index][0]]] = True
    assert not problem.legal(both_rivals)


@each("name", ["partition-train/vit-000", "partition-train/clip-000", "partition-test/unet-000"])
def test_linear__the_fullest_moment_of_legal_plans_is_among_those_told(name):
    linear, rng = named(name), np.random.default_rng(1)
    assert len(linear.fullest) < len(linear.replicated_bytes) / 5
    plans = np.array([random_plan(linear, rng, rng.random()) for _ in range(200)])
    slack = linear.slack(plans)
    assert np.array_equal(slack.min(axis=1), slack[:, linear.fullest].min(axis=1))
    assert len(set(slack.argmin(axis=1).tolist())) > 1


def test_linear__ships_as_it_is_made():
    """The arrays of the bank are those that the graph gives."""
    number = [family_named(x) for x in members("partition-train")].index("vgg") // LIMITS
    stored, made = bank("partition-train")[number], pool_row("partition-train", number)
    assert stored.keys() == made.keys()
    for name, values in made.items():
        if name != "witnesses":  # several may be as good
            np.testing.assert_array_equal(stored[name], values, err_msg=name)
    for name in members("partition-train")[number * LIMITS : (number + 1) * LIMITS]:
        linear = played(name)
        assert linear.fits(linear.witnesses).all()
        assert all(linear.legal(plan) for plan in linear.witnesses)


@pytest.mark.thorough
def test_env__gymnasium_accepts_it():
    check_env(gym.make("PartitionPlan-v2", family="vgg").unwrapped, skip_render_check=True)


def test_env__episodes_are_what_the_judge_says(problem):
    """By chance: each completes a plan that fits, and is paid by its seconds."""
    env, rng = PartitionChoiceEnv(instance=SMALL), np.random.default_rng(1)
    for _ in range(5):
        rewards, info = episode(env, by_chance(rng))
        report = env.problem.report(env.plan())
        assert report.legal and info["instance"] == SMALL
        assert info["cost"] == pytest.approx(report.step_seconds, rel=1e-12)
        assert not any(rewards[:-1])
        assert rewards[-1] == pytest.approx(np.log(info["reference"] / info["cost"]))
        assert info["cost"] <= env.game.worst[0]
        assert info["reference"] == info["bound"] <= info["cost"]
        assert info["start"] == pytest.approx(float(problem.seconds(problem.witnesses[0])))


def test_env__the_optimum_can_be_made(problem):
    """Its choices are legal, its bounds fall to what it is worth, and it is the reference."""
    plan, _ = shortest(problem, problem.gain)
    env = PartitionChoiceEnv(instance=SMALL)
    observation, _ = env.reset()
    bounds, over = [], False
    while not over:
        choice = int(plan[env.game.position[0]])
        assert observation["action_mask"][choice]
        rule, bound, room = observation["actions"][choice, :3]
        bounds.append(bound)
        assert (choice or rule == 0) and room >= 0
        observation, reward, over, _, info = env.step(choice)
    saved = 1 - info["cost"] / problem.replicated_seconds
    assert min(bounds) >= saved - 1e-6 and np.all(np.diff(bounds) <= 1e-6)
    assert info["cost"] == pytest.approx(info["reference"], rel=1e-9)
    assert reward == pytest.approx(0.0, abs=1e-9)


def test_env__choices_are_legal_while_a_witness_fits(problem):
    """The mask against completions that are made from the decisions alone."""
    env, rng = PartitionChoiceEnv(instance=SMALL), np.random.default_rng(2)
    observation, _ = env.reset()
    plans = problem.witnesses.copy()
    over, masked = False, 0
    while not over:
        at, fits = int(env.game.position[0]), []
        for choice in (0, 1):
            after = plans.copy()
            after[:, at] = choice
            if choice:
                after[:, problem.rivals[at]] = False
            fits.append(after)
        legal = [bool(problem.fits(after).any()) for after in fits]
        assert observation["action_mask"].tolist() == legal
        masked += not all(legal)
        choice = by_chance(rng)(observation)
        plans = fits[choice]
        observation, _, over, _, _ = env.step(choice)
        assert (
            env.game.partial_plans.completions[0, : plans.shape[1], : len(plans)] == plans.T
        ).all()
    assert masked


def test_env__illegal_actions_end_the_episode(problem):
    env = PartitionChoiceEnv(instance=SMALL)
    longest = problem.replicated_seconds * (1 + sum(-x for x in problem.gain if x < 0))
    worth = np.log(problem.best / longest) - 1
    for action in (2, -1, 10**6):
        env.reset()
        _, reward, over, _, info = env.step(action)
        assert (reward, over) == (pytest.approx(worth), True)
        assert not {"gap", "cost"} & info.keys()


@pytest.mark.thorough
@modes
@each("kwargs", [{}, {"rows": "bare"}, {"instance": "partition-validation", "family": "mixer"}])
def test_vector__equals_single_ones(kwargs, mode):
    batched, single = both(PartitionChoiceVectorEnv, kwargs, 3, mode)
    assert_alike(batched, single, mode, np.random.default_rng(0), 60, illegal=0.02)


def test_env__sets_files_and_problems_of_ones_own(tmp_path):
    names = members("partition-validation", "mixer")
    kwargs = {"instance": "partition-validation", "family": "mixer", "order": "sequential"}
    env = PartitionChoiceEnv(**kwargs)
    assert [env.reset()[1]["instance"] for _ in range(len(names) + 1)] == [*names, names[0]]
    own = problem_of(named(SMALL))
    row = {"name": "mine-0", "instance": "vgg-19", "cluster": own.cluster.to_json(),
           "memory_limit": own.memory_limit, **own.step.settings}  # fmt: skip
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"schema": 1, "problems": [row]}))
    found = [PartitionChoiceEnv(instance=str(path)), PartitionChoiceEnv(problem=own),
             PartitionChoiceEnv(instance=f"{path}/mine-0")]  # fmt: skip
    shipped = PartitionChoiceEnv(instance=SMALL)
    for each_ in found:
        seen, again = each_.reset(seed=0)[0], shipped.reset()[0]
        for key in ("actions", "context"):
            assert seen[key] == pytest.approx(again[key], abs=1e-5), key
        _, info = episode(each_, lambda seen: int(seen["action_mask"].argmax()))
        assert info["cost"] > 0 and "reference" not in info
    assert shipped.reset(options={"instance": "partition-train/vgg-000"})[1]["instance"]
    shipped.reset()
    assert shipped.game.undecided(0) <= set(own.tensor) and len(shipped.game.undecided(0)) > 10


def test_env__bad_input():
    own = problem_of(named(SMALL))
    least = own.footprint.lower_bound(~own.classes.blocked)
    tight = replace(own, step=replace(own.step, limit=0.9 * least))
    for kwargs, words in (
        ({"family": "dlrn"}, "no problem of family 'dlrn'"),
        ({"instance": "partition-trial"}, "unknown problem 'partition-trial'"),
        ({"instance": SMALL, "family": "vgg"}, "is one problem, no set; leave family out"),
        ({"instance": SMALL, "order": "sequential"}, "leave order out"),
        ({"rows": "behind"}, "unknown rows 'behind'; known: ahead, bare"),
        ({"problem": replace(own, reward="paper")}, "plays the scope variables with the reward"),
        ({"problem": replace(own, step=replace(own.step, limit=None))}, "has no limit"),
        ({"problem": tight}, "no plan fits the memory"),
    ):
        with pytest.raises(ParenvsError, match=words):
            PartitionChoiceEnv(**kwargs)
    with pytest.raises(ParenvsError, match="must name one problem of partition-test"):
        PartitionChoiceEnv(instance=SMALL).reset(options={"instance": "partition-test"})
    with pytest.raises(ParenvsError, match="make another one for it"):
        largest = max(members("partition-test"), key=lambda name: len(named(name).gain))
        PartitionChoiceEnv(instance=SMALL).reset(options={"instance": largest})


def test_lean__plans_fit_or_none_does(problem):
    assert problem.fits(find_witnesses(problem.at(problem.limit)).witnesses).all()
    low = float((problem.replicated_bytes - problem.saved_bytes.sum(axis=0)).max())
    with pytest.raises(InfeasibleError, match="the leanest plan found exceeds the limit by"):
        find_witnesses(problem.at(0.5 * low))


def test_sets__a_plan_is_worth_the_optimums_seconds_over_its_own():
    name = "partition-validation"
    found = parenvs.evaluate_set("exact", name, "mixer", first=2)
    assert found.scores[0] == pytest.approx([1.0, 1.0], rel=1e-6)
    assert found.reference == "optima"
    ones = parenvs.evaluate_set(lambda seen, mask: int(mask[1]), name, "mixer", first=2)
    assert (ones.scores < 1).all() and (ones.scores > 0).all()


def test_linear__relaxation_is_a_bound_whose_prices_explain_it(problem):
    """Complementary slackness: what is split whole is worth something, what is not nothing."""
    split, worth, own, prices = problem.relaxed
    plan, _ = shortest(problem, problem.gain)
    assert split @ problem.gain >= plan @ problem.gain - 1e-9
    slack = (problem.limit - problem.replicated_bytes + split @ problem.saved_bytes)[
        problem.fullest
    ]
    assert slack.min() >= -1e-6 * problem.limit and (prices >= 0).all() and prices.any()
    assert np.abs(prices * slack).max() < 1e-6 * problem.limit
    saved = problem.saved_bytes[:, problem.fullest] / problem.limit
    np.testing.assert_allclose(own, problem.gain + saved @ prices, atol=1e-12)
    assert (worth[split > 1 - 1e-9] >= -1e-9).all() and (worth[split < 1e-9] <= 1e-9).all()
    assert np.abs(worth[(split > 1e-6) & (split < 1 - 1e-6)]).max(initial=0) < 1e-9
    assert all(split[k] + split[x] <= 1 + 1e-9 for k, xs in enumerate(problem.rivals) for x in xs)


def test_env__bytes_expected_follow_the_choices(problem):
    """Of open classes as much is split as in the relaxation, of the others what was chosen."""
    env, rng = PartitionChoiceEnv(instance=SMALL), np.random.default_rng(3)
    observation, _ = env.reset()
    columns, contexts = (list(names) for names in (env.game.columns, env.game.contexts))
    over, k = False, len(problem.gain)
    while not over:
        decisions = env.game.partial_plans.decisions[0, :k]
        split = np.where(decisions < 0, problem.relaxed.split, decisions)
        left = problem.slack(split)[problem.fullest] / problem.limit
        fullest, at = left.argmin(), env.game.position[0]
        told = observation["context"][contexts.index("expected")]
        assert told == pytest.approx(left.min(), abs=1e-5)
        if observation["action_mask"][1]:
            saved = problem.saved_bytes[at, problem.fullest[fullest]] / problem.limit
            row = dict(zip(columns, observation["actions"][1], strict=True))
            assert row["tightest"] == pytest.approx(saved, rel=1e-4, abs=1e-6)
            rivals = [x for x in problem.rivals[at] if decisions[x] < 0]
            best = max([0.0, *problem.relaxed.own[rivals]])
            size = max(np.log10(max(best, 1e-6)) / 6 + 1, 0.0)
            assert row["best_rival"] == pytest.approx(min(size, 1.0), abs=1e-5)
        observation, _, over, *_ = env.step(by_chance(rng)(observation))


def test_teacher__knows_the_best_plan_behind_each_choice(problem):
    """Beside an integer program of all classes, whose decided ones are fixed."""
    env, rng = PartitionChoiceEnv(instance=SMALL), np.random.default_rng(4)
    for seed in range(2):
        env.reset()
        values, over, k = teach(env.game), False, len(problem.gain)
        rows = problem.saved_bytes[:, problem.fullest].T / problem.limit
        needed = problem.replicated_bytes[problem.fullest] / problem.limit - 1
        while not over:
            worth, mask = values()[0], env.action_masks()
            assert np.array_equal(np.isfinite(worth), mask)
            decisions, at = env.game.partial_plans.decisions[0, :k].copy(), env.game.position[0]
            for choice in np.flatnonzero(mask):
                made = decisions.copy()
                made[at] = choice
                made[problem.rivals[at]] = 0 if choice else made[problem.rivals[at]]
                pairs = np.array([(i, x) for i, xs in enumerate(problem.rivals) for x in xs])
                fixed = scipy.optimize.milp(
                    -problem.gain,
                    integrality=np.ones(k),
                    bounds=(np.where(made == 1, 1, 0), np.where(made == 0, 0, 1)),
                    constraints=[(rows, needed), (conflict_matrix(pairs, k), -np.inf, 1)],
                    options={"mip_rel_gap": 0},
                )
                seconds = problem.replicated_seconds * (1 + fixed.fun)
                expected = np.log(env.game.reference[0] / seconds)
                assert worth[choice] == pytest.approx(expected, abs=2e-6)
            best = int(np.nan_to_num(worth, nan=-np.inf).argmax())
            choice = best if seed == 0 else int(rng.choice(np.flatnonzero(mask)))
            _, _, over, _, info = env.step(choice)
        if seed == 0:
            assert info["cost"] == pytest.approx(info["reference"])
    assert teach(None) is None
