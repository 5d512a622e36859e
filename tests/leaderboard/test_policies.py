"""Policies as entries: every field mutated, networks equal to their rules, weights in files."""

import copy
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import each, slow

from parenvs.agents.elastic.entries import AGENTS, policy
from parenvs.agents.elastic.formats import OWN, SHAPES, PolicyError, features, rate, read_policy
from parenvs.agents.elastic.play import Observer, load, play, seeds
from parenvs.agents.elastic.policies import RULES
from parenvs.core.leaderboard import kind_of
from parenvs.errors import ParenvsError
from parenvs.leaderboard.check import PlanState, check, mean_score
from parenvs.leaderboard.entry import Entry, EntryError, load_entry
from parenvs.leaderboard.submit import agent_submission
from parenvs.leaderboard.tasks import TaskList, tasks
from parenvs.tasks.elastic.problem import Moment, follow


def start(name, count):
    """What policies see at the start of an episode, ``count`` times."""
    problem = load(name)
    nodes = int(problem.drawn(0).nodes[0])
    seen = Observer(problem)(Moment(0, nodes), nodes, 0)
    return {key: np.repeat(value, count, axis=0) for key, value in seen.items()}


FOLDER = Path(__file__).parents[2] / "leaderboard" / "submissions" / "elastic"
CHAIN, OTHER = "elastic-test/bulk-gpt-1.5b-000", "elastic-test/growth-bert-large-001"
SHARED = {"observation": 1}
TINY = {"weights": [[0.0]] * OWN, "biases": [0.0], "activation": "none"}
NETWORK = {"kind": "network", **SHARED, "layers": {"each": [TINY]}}
RATINGS = {
    "kind": "ratings",
    **SHARED,
    "weights": {name: np.zeros(shape).tolist() for name, shape in SHAPES.items()},
}
LIBRARY = "gpt-1.5b-measured"
TABLE = {"kind": "table", **SHARED, "tables": {LIBRARY: [[[0, 0]]] * 8}}
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


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["hysteresis", *slow("fastest")])
def test_play__networks_choose_as_the_rules_do(rule):
    """All courses at once, by features, and one by one, by the rule itself."""
    names = [CHAIN, OTHER, "p3/gpt-1.5b"]
    found = play(read_policy(policy(rule)), {name: load(name) for name in names}, 3)
    for name in names:
        problem = load(name)
        courses = [problem.drawn(number) for number in seeds(problem, 3)]
        assert len(found[name]) == len(courses) == (1 if name.startswith("p3") else 2)
        for chosen, course in zip(found[name], courses, strict=True):
            assert chosen == follow(problem, course, RULES[rule]()).plans.tolist()


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
    task = small((CHAIN, OTHER))
    verdicts = policy_verdicts(entry_of(policy("hysteresis")), task)
    for verdict in verdicts:
        problem = verdict.problem
        assert verdict.state == PlanState.LEGAL
        runs = [follow(problem.target, course, RULES["hysteresis"]()) for course in problem.courses]
        best = problem.hindsight().runs
        share = sum(run.total for run in runs) / sum(run.total for run in best)
        assert verdict.score == pytest.approx(share) and 0.5 < share < 1
        assert problem.reference.cost == pytest.approx(problem.cost(problem.hindsight()))
        assert problem.settings["expected"] <= 1 and problem.settings["optimal"] < 1
    assert mean_score(verdicts, "arithmetic") == pytest.approx(
        sum(verdict.score for verdict in verdicts) / 2
    )


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


LAYER = ("layers", "each", 0)
WRONG = [
    (None, "must be an object"),
    ({"kind": "onnx"}, "field 'kind' is 'onnx'"),
    (mutated(RULE, "rule", value="fastes"), "did you mean 'fastest'"),
    (mutated(RULE, "rule", value=["fastest"]), "field 'rule' is"),
    (mutated(RULE, "ruel", value="x"), "unknown field 'ruel'"),
    (mutated(RULE, "rule", drop=True), "field 'rule' is missing"),
    (mutated(NETWORK, "observation", value=2), "field 'observation' is 2"),
    (mutated(NETWORK, "layers", value=[]), "field 'layers' must have 'each'"),
    (mutated(NETWORK, "layers", "each", value=[]), "a list of 1 to 4 layers"),
    (mutated(NETWORK, "layers", "each", value=[TINY] * 5), "a list of 1 to 4 layers"),
    (mutated(NETWORK, "layers", "job", value=[TINY]), "16 inputs and 1 outputs"),
    (mutated(NETWORK, *LAYER, "activation", value="relo"), "activation is 'relo'"),
    (mutated(NETWORK, *LAYER, "biases", value=[0.0] * 257), "1 to 256 numbers"),
    (mutated(NETWORK, *LAYER, "biases", value=["0"]), "must be lists of numbers"),
    (mutated(NETWORK, *LAYER, "biases", value=[10**30]), "finite numbers"),
    (mutated(NETWORK, *LAYER, "weights", value=[[0.0]]), f"{OWN} inputs and 1 outputs"),
    (mutated(NETWORK, *LAYER, "weights", value=[[0.0], [0.0, 0.0]]), "lists of equal length"),
    (mutated(NETWORK, *LAYER, "more", value=1), "must have exactly"),
    (mutated(RATINGS, "weights", "more", value=[0.0]), "must have exactly state, first"),
    (mutated(RATINGS, "weights", "score", value=[0.0]), "'weights.score' is 1 numbers, not 16"),
    (mutated(TABLE, "tables", value={}), "1 to 16 libraries"),
    (
        mutated(TABLE, "tables", LIBRARY, value=[[[0]]]),
        "must be 8 x nodes x plans numbers, not 1 x",
    ),
    (mutated(TABLE, "tables", LIBRARY, value=[[[0] * 65]] * 8), "at most 8 x 65 x 64"),
    (mutated(TABLE, "tables", LIBRARY, value=[[[1]]] * 8), "names plans out of 0 to 0"),
    (mutated(TABLE, "tables", LIBRARY, value=[[[0.5]]] * 8), "must be lists of numbers"),
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


def weights_file(folder, **changes):
    """Write a network's weights to a file, and return the policy that names it."""
    arrays = {"each_0_weights": np.zeros((OWN, 1)), "each_0_biases": np.zeros(1), **changes}
    np.savez_compressed(folder / "mine.npz", **{k: v for k, v in arrays.items() if v is not None})
    digest = hashlib.sha256((folder / "mine.npz").read_bytes()).hexdigest()
    rest = {"file": "mine.npz", "sha256": digest, "activations": {"each": ["none"]}}
    return {"kind": "network", **SHARED, **rest}


def with_weights(policy, folder):
    """The policy of an entry in a folder, its weights read."""
    content = {**entry_of(RULE).to_json(), "policy": policy}
    (folder / "mine.json").write_text(json.dumps(content))
    return load_entry(folder / "mine.json").policy


def test_with_weights__a_file_of_arrays(tmp_path):
    assert with_weights(weights_file(tmp_path), tmp_path) == NETWORK


class Harm:
    """What must never be unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("it was unpickled",))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"each_0_biases": np.array([Harm()], dtype=object)}, "its header tells object"),
        ({"each_0_biases": None}, "has no each_0_biases"),
        ({"more": np.zeros(1)}, "has 'more', which is no layer"),
        ({"each_0_biases": np.zeros(1, dtype=int)}, "must be small floats"),
        ({"each_0_weights": np.zeros((1000, 1000))}, "unpacks to"),
    ],
)
def test_with_weights__other_files_are_refused(tmp_path, changes, words):
    with pytest.raises(EntryError, match=words):
        with_weights(weights_file(tmp_path, **changes), tmp_path)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("file",), "../mine.npz", "must be NAME.npz"),
        (("file",), "none.npz", "is no file"),
        (("file",), 1, "must be NAME.npz"),
        (("sha256",), "0", "field 'sha256'"),
        (("activations",), [], "field 'activations'"),
        (("activations",), {"every": []}, "field 'activations'"),
        (("activations", "each"), ["none"] * 5, "must be a list of layers"),
    ],
)
def test_with_weights__mutants_are_refused(tmp_path, path, value, words):
    content = mutated(weights_file(tmp_path), *path, value=value)
    with pytest.raises(EntryError, match=words):
        with_weights(content, tmp_path)
    (tmp_path / "mine.npz").write_bytes(b"PK" + b"x" * 2**22)
    with pytest.raises(EntryError):
        with_weights(content, tmp_path)


def test_scores__of_a_network_by_hand():
    """The layers in scalars: features, mean over what fits, numbers of the job."""
    rng = np.random.default_rng(0)

    def layer(inputs, outputs, activation):
        weights, biases = rng.normal(size=(inputs, outputs)), rng.normal(size=outputs)
        return {
            "weights": weights.tolist(), "biases": biases.tolist(), "activation": activation
        }  # fmt: skip

    layers = {
        "each": [layer(OWN, 3, "relu"), layer(3, 2, "tanh")],
        "job": [layer(16, 4, "tanh")],
        "score": [layer(8, 1, "none")],
    }
    network = read_policy({"kind": "network", **SHARED, "layers": layers})
    seen = {
        key: rng.random(shape, dtype=np.float32)
        for key, shape in (("plans", (2, 64, 6)), ("change", (2, 64, 3)), ("numbers", (2, 16)))
    }
    found = network.scores(seen)

    def through(part, x):
        for row in layers[part]:
            x = x @ np.array(row["weights"]) + row["biases"]
            x = {"relu": np.maximum(x, 0), "tanh": np.tanh(x), "none": x}[row["activation"]]
        return x

    for b in range(2):
        plans, numbers = seen["plans"][b], seen["numbers"][b]
        fits = [p[3] + p[4] / 32 <= numbers[0] + 1e-6 for p in plans]
        most = max(p[5] for p, fit in zip(plans, fits, strict=True) if fit)
        each = [
            through("each", np.array([*p, *c, 10 * (p[5] / most - 0.9), *numbers]))
            for p, c in zip(plans, seen["change"][b], strict=True)
        ]
        mean = np.mean([e for e, fit in zip(each, fits, strict=True) if fit], axis=0)
        job = through("job", numbers)
        wanted = [through("score", np.concatenate([e, mean, job]))[0] for e in each]
        assert found[b] == pytest.approx(wanted, rel=1e-3, abs=1e-3)


def test_learned__weights_become_an_entry_that_chooses_the_same(tmp_path):
    rng = np.random.default_rng(3)
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    np.savez(tmp_path / "agent.npz", **weights)
    path = str(tmp_path / "agent.npz")
    agent_submission("elastic", path, entry="mine", seed=3).save(tmp_path / "mine.json")
    entry = load_entry(tmp_path / "mine.json")
    assert (entry.learned, entry.seeds) == (True, (3,))
    policy = read_policy(entry.policy)
    seen = start(CHAIN, 2)
    seen["numbers"] = seen["numbers"] + np.random.default_rng(1).random((2, 16)) * 0.1
    fits = np.zeros((2, 64), dtype=bool)
    fits[:, :5] = True
    chosen = np.where(fits, policy.scores(seen), -np.inf).argmax(axis=1)
    rated = rate(weights, features(seen["plans"], seen["change"], seen["numbers"]))
    assert chosen.tolist() == np.where(fits, rated, -np.inf).argmax(axis=1).tolist()
    del weights["prior"]
    np.savez(tmp_path / "agent.npz", **weights)
    with pytest.raises(ParenvsError, match="weights must be named"):
        agent_submission("elastic", path)


def test_elastic__every_agent_is_a_policy_and_is_entered():
    entries = {path.stem for path in FOLDER.glob("*.json")}
    assert entries >= set(AGENTS)
    assert all(load_entry(FOLDER / f"{name}.json").learned for name in entries - set(AGENTS))
    assert kind_of("elastic").policy is not None
    for name in ("fastest", "hysteresis"):
        assert load_entry(FOLDER / f"{name}.json").policy == policy(name)


@pytest.mark.thorough
def test_check__content_decides_how_an_entry_is_judged():
    checked = check(load_entry(FOLDER / "optimal.json"))
    assert checked.task.name == "elastic" and checked.reasons == ()
    assert float(checked.figures["of the optimal policy"]) == pytest.approx(1, abs=1e-3)
