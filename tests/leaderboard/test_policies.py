"""Policies as entries: every field mutated, networks and tables play as they should."""

import copy
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import each

from parenvs.agents.elastic.entries import AGENTS, policy
from parenvs.agents.elastic.formats import PolicyError, play, read_policy
from parenvs.agents.elastic.planners import ENV_ID
from parenvs.agents.elastic.policies import RULES
from parenvs.agents.learning.network import file_of, shipped
from parenvs.core.leaderboard import kind_of
from parenvs.errors import ParenvsError
from parenvs.leaderboard.check import CheckedEntry, PlanState, check
from parenvs.leaderboard.entry import Entry, EntryError, load_entry
from parenvs.leaderboard.submit import agent_submission
from parenvs.leaderboard.tasks import TaskList, tasks
from parenvs.tasks.elastic.library import CHECKPOINT
from parenvs.tasks.elastic.problem import follow
from parenvs.tasks.elastic.problems import load_elastic as load

FOLDER = Path(__file__).parents[2] / "leaderboard" / "submissions" / "elastic"
CHAIN, OTHER = "elastic-test/bulk-gpt-1.5b-000", "elastic-test/growth-bert-large-001"
WEIGHTS = {k: v.astype(float).tolist() for k, v in shipped(ENV_ID).weights.items()}
NETWORK = {"kind": "network", "weights": WEIGHTS}
LIBRARY = "gpt-1.5b-measured"
TABLE = {"kind": "table", "tables": {LIBRARY: [[[0, 0]]] * 8}}
RULE = {"kind": "rule", "rule": "fastest"}


def small(names=(CHAIN,)):
    """Return the task with a few problems."""
    task = tasks().task("elastic")
    return replace(task, problems={name: task.problems[name] for name in names})


def policy_verdicts(entry, task, seed=None):
    """Return the verdicts on an entry where the list has a task of these problems."""
    known = TaskList(1, 1, {"elastic": task})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("parenvs.leaderboard.check.tasks", lambda version=None: known)
        return check(entry, seed).verdicts


def entry_of(content, name="mine"):
    return Entry("elastic", name, ("Ada",), "By hand.", policy=content)


@pytest.mark.thorough
def test_play__a_network_chooses_by_its_ratings_without_checkpoints(tmp_path):
    """On the environment's observations; checkpoints belong to other problems."""
    path = str(file_of(ENV_ID))
    agent_submission("elastic", path, entry="mine", seed=3).save(tmp_path / "mine.json")
    entry = load_entry(tmp_path / "mine.json")
    assert (entry.learned, entry.seeds) == (True, (3,))
    (plans, other), seen = play(read_policy(entry.policy), {CHAIN: load(CHAIN)}, 0)[CHAIN], []
    assert plans != other and CHECKPOINT not in plans + other
    player = read_policy(entry.policy)
    best = player.best

    def noted(observation, legal):
        seen.append((observation, legal))
        return best(observation, legal)

    player.best = noted
    problem = load(CHAIN)
    assert follow(problem, problem.drawn(0), player).plans.tolist() == plans
    for (observation, legal), plan in zip(seen, plans, strict=True):
        batch = {key: value[None] for key, value in observation.items()}
        rated = shipped(ENV_ID).rate({**batch, "action_mask": legal[None]})[0]
        assert not legal[CHECKPOINT]
        assert rated[plan] == pytest.approx(rated[legal].max(), abs=1e-4)


@pytest.mark.thorough
def test_play__a_table_is_looked_up():
    """By event, nodes and plan; what does not fit, and what has no row, waits."""
    problem = load(CHAIN)
    plans = len(problem.library)
    rows = np.zeros((8, problem.nodes + 1, plans), dtype=int)
    rows[:] = 2 * np.arange(problem.nodes + 1)[:, None] % plans
    content = {**TABLE, "tables": {problem.library.name: rows.tolist()}}
    found = play(read_policy(content), {name: load(name) for name in (CHAIN, OTHER)}, 0)
    course = problem.drawn(0)
    wanted = 2 * course.nodes.astype(int) % plans
    fits = problem.library.needed[wanted] <= course.nodes
    assert found[CHAIN][0] == np.where(fits, wanted, 0).tolist() and fits.any() and not fits.all()
    assert set(found[OTHER][0]) == {0}  # of another library


def test_policy_verdicts__score_is_the_share_of_hindsight():
    task, entry = small((CHAIN, OTHER)), entry_of(policy("hysteresis"))
    verdicts = policy_verdicts(entry, task)
    for verdict in verdicts:
        problem = verdict.problem
        assert verdict.state == PlanState.LEGAL
        runs = [follow(problem.target, course, RULES["hysteresis"]()) for course in problem.courses]
        best = problem.hindsight().runs
        share = sum(run.total for run in runs) / sum(run.total for run in best)
        assert verdict.score == pytest.approx(share) and 0.5 < share < 1
        assert problem.reference.cost == pytest.approx(problem.cost(problem.hindsight()))
        assert problem.settings["expected"] <= 1 and problem.settings["optimal"] < 1
    mean = sum(verdict.score for verdict in verdicts) / 2
    assert CheckedEntry(entry, task, tuple(verdicts)).score == pytest.approx(mean)


def test_policy_verdicts__another_seed_draws_other_courses():
    task = small()
    first, other = (policy_verdicts(entry_of(policy("fastest")), task, seed)[0] for seed in (0, 1))
    assert other.problem.seed == 1 and "optimal" not in other.problem.settings
    assert first.cost != other.cost and first.problem.reference.cost != other.problem.reference.cost
    assert other.problem.trivial == 1 and 0 < other.score <= 1


@pytest.mark.thorough
def test_policy_verdicts__recorded_runs_are_replayed_and_hold_for_their_seed():
    entry = load_entry(FOLDER / "look-ahead.json")
    (verdict,) = policy_verdicts(entry, small())
    assert verdict.state == PlanState.LEGAL
    problem = load(CHAIN)
    rule = read_policy({"kind": "rule", "rule": "look-ahead"})
    plans = play(rule, {CHAIN: problem}, 0)[CHAIN]
    assert entry.policy["plans"][CHAIN] == plans  # what is recorded is what the rule does
    tampered = copy.deepcopy(entry.policy)
    tampered["plans"][CHAIN][0][5] = 63
    (verdict,) = policy_verdicts(replace(entry, policy=tampered), small())
    assert verdict.state == PlanState.ILLEGAL
    assert re.search(r"interval 5: plan 63 takes 32 nodes, not \d+$", verdict.reasons[0])
    tampered["plans"][CHAIN][0] = plans[0][:-1]
    (verdict,) = policy_verdicts(replace(entry, policy=tampered), small())
    assert "239 of 240 intervals were played" in verdict.reasons[0]
    hindsight = load_entry(FOLDER / "hindsight.json")
    (verdict,) = policy_verdicts(hindsight, small(), seed=1)
    assert verdict.state == PlanState.UNJUDGED and "recorded for seed 0, not 1" in verdict.note


def test_policy_verdicts__better_than_hindsight_is_an_error():
    """The proof or the judge would be wrong."""
    task = small()
    problem = task.problems[CHAIN]
    worse = replace(problem.reference, cost=0.9, bound=0.9)
    task = replace(task, problems={CHAIN: replace(problem, reference=worse)})
    (verdict,) = policy_verdicts(entry_of(policy("fastest")), task)
    assert "better than the proven optimum" in verdict.reasons[0]


def mutated(content, *path, value=None, drop=False):
    """Return a copy with a field changed or dropped."""
    content = copy.deepcopy(content)
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    if drop:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return content


WRONG = [
    (None, "must be an object"),
    ({"kind": "onnx"}, "field 'kind' is 'onnx'"),
    (mutated(RULE, "rule", value="fastes"), "did you mean 'fastest'"),
    (mutated(RULE, "rule", value=["fastest"]), "field 'rule' must be one of"),
    (mutated(RULE, "ruel", value="x"), "unknown field 'ruel'"),
    (mutated(RULE, "rule", drop=True), "field 'rule' is missing"),
    (mutated(NETWORK, "weights", value=[]), "must have exactly weight, context.weight"),
    (mutated(NETWORK, "weights", "more", value=[0.0]), "must have exactly weight"),
    (mutated(NETWORK, "weights", "last.bias", drop=True), "must have exactly weight"),
    (mutated(NETWORK, "weights", "last.bias", value=["0"]), "finite numbers of at most"),
    (mutated(NETWORK, "weights", "last.bias", value=[True]), "finite numbers of at most"),
    (mutated(NETWORK, "weights", "last.bias", value=[10**30]), "finite numbers of at most"),
    (mutated(NETWORK, "weights", "last.bias", value=[0.0, 0.0]), "of the shape (1,)"),
    (mutated(NETWORK, "weights", "last.weight", value=[[0.0], [0.0, 0.0]]), "of equal length"),
    (mutated(NETWORK, "weights", "last.weight", value=[]), "lists of equal length"),
    (mutated(NETWORK, "weights", "last.bias", value=[0.0] * 1025), "wider than"),
    (mutated(NETWORK, "weights", "context.weight", value=0.5), "field 'weights'"),
    (mutated(TABLE, "tables", value={}), "1 to 16 libraries"),
    (mutated(TABLE, "tables", LIBRARY, value=[[[0]]]), "must have 8 x nodes x plans"),
    (mutated(TABLE, "tables", LIBRARY, value=[[[0] * 65]] * 8), "at most 8 x 65 x 64"),
    (mutated(TABLE, "tables", LIBRARY, value=[[[1]]] * 8), "names plans out of 0 to 0"),
    (mutated(TABLE, "tables", LIBRARY, value=[[[-1]]] * 8), "names plans out of 0 to 0"),
    (mutated(TABLE, "tables", LIBRARY, value=[[[0.5]]] * 8), "finite numbers of at most"),
    (mutated(TABLE, "tables", LIBRARY, value=[[[10**18]]] * 8), "finite numbers of at most"),
    (mutated(TABLE, "tables", "gpt-1.5b", value=[[[0]]] * 8), "mean 'gpt-1.5b-measured'?"),
    (mutated(TABLE, "tables", "x" * 999, value=[[[0]]] * 8), "of no library that is played"),
    ({"kind": "recorded", "seed": 0, "rule": None, "plans": {}}, "enter a table, a network"),
]


@each("number", range(len(WRONG)))
def test_read_policy__mutants_are_refused(number):
    content, words = WRONG[number]
    with pytest.raises(PolicyError) as error:
        read_policy(content, "mine")
    assert words in str(error.value), error.value
    with pytest.raises(EntryError, match="field 'policy'"):
        Entry.from_json({**entry_of(RULE).to_json(), "policy": content})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("seed",), -1), (("seed",), 1.5), (("plans",), []), (("plans", CHAIN), [[64]]),
        (("plans", CHAIN), []), (("plans", CHAIN), [["1"]]), (("rule",), "none"),
    ],
)  # fmt: skip
def test_read_policy__mutants_of_recorded_runs_are_refused(path, value):
    content = {"kind": "recorded", "seed": 0, "rule": None, "plans": {CHAIN: [[0]]}}
    read_policy(content, "optimal")
    with pytest.raises(PolicyError, match="field"):
        read_policy(mutated(content, *path, value=value), "optimal")


def test_entry__a_policy_goes_where_policies_are_taken(tmp_path):
    path = tmp_path / "mine.json"
    entry = entry_of(NETWORK)
    entry.save(path)
    assert load_entry(path) == entry and "plans" not in json.loads(path.read_text())
    content = json.loads(path.read_text())
    with pytest.raises(EntryError, match="unknown field 'plans'"):
        Entry.from_json({**content, "plans": {}})
    with pytest.raises(EntryError, match="unknown field 'policy'"):
        Entry.from_json({**content, "task": "data-parallel"})
    recorded = {"kind": "recorded", "seed": 0, "rule": None, "plans": {"p4/x": [[0]]}}
    with pytest.raises(EntryError, match="names 'p4/x', no problem of elastic"):
        Entry.from_json({**content, "entry": "optimal", "policy": recorded})


def test_submit__other_weights_are_refused(tmp_path):
    weights = dict(shipped(ENV_ID).weights)
    del weights["last.bias"]
    np.savez(tmp_path / "agent.npz", **weights)
    with pytest.raises(ParenvsError, match="weights must be named"):
        agent_submission("elastic", str(tmp_path / "agent.npz"))


def test_elastic__every_agent_is_a_policy_and_is_entered():
    entries = {path.stem for path in FOLDER.glob("*.json")}
    assert entries >= set(AGENTS)
    assert all(load_entry(FOLDER / f"{name}.json").learned for name in entries - set(AGENTS))
    assert kind_of("elastic").policy is not None
    assert load_entry(FOLDER / "mean-chain.json").policy == policy("mean-chain")


@pytest.mark.thorough
def test_check__content_decides_how_an_entry_is_judged():
    checked = check(load_entry(FOLDER / "optimal.json"))
    assert checked.task.name == "elastic" and checked.reasons == ()
    assert float(checked.figures["of the optimal policy"]) == pytest.approx(1, abs=1e-3)
