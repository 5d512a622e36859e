"""AutoParallel's programs, by stand-ins of its objects: optima by brute force, bounds, refusals."""

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from cases import each
from placement_programs import Expression, Variable, optimizer_of, program_of

from parenvs.agents.sharding import autoparallel
from parenvs.agents.sharding.autoparallel import attach, place, variables_of
from parenvs.errors import InfeasibleError, ParenvsError, TimeLimitError
from parenvs.tasks.sharding.files import load_iopddl

FILES = Path(__file__).parents[3] / "shared" / "autoparallel"


def cheapest(optimizer):
    """Objective of the best choice of output strategies, by trying all; inf if there is none."""
    keys = variables_of(optimizer)
    outs = {}
    for node, _, out, _ in keys:
        outs.setdefault(node, set()).add(out)
    program, least = optimizer.prob, math.inf
    rows = [(dict(row.items()), row) for row in program.constraints.values()]
    for chosen in product(*(sorted(outs[node]) for node in sorted(outs))):
        out = dict(zip(sorted(outs), chosen, strict=True))
        taken = set()
        for (node, argument, o, i), variable in keys.items():
            producer = optimizer.producers.get((node, argument))
            if o == out[node] and i == (0 if producer is None else out[producer]):
                taken.add(variable)
        if all(row.holds(sum(c for x, c in terms.items() if x in taken)) for terms, row in rows):
            least = min(least, sum(c for x, c in program.objective.items() if x in taken))
    return least


@pytest.mark.thorough
@each("seed", range(12))
def test_place__finds_the_optimum_of_small_programs(seed):
    optimizer = optimizer_of(np.random.default_rng(seed))
    least = cheapest(optimizer)
    if least == math.inf:
        with pytest.raises(InfeasibleError):
            place(optimizer, seconds=None, steps=1)
        return
    placed = place(optimizer, seconds=None, steps=1)
    assert placed.cost == pytest.approx(least, rel=1e-12)
    assert placed.bound <= placed.cost and placed.gap < 3e-6
    assert {(k[0], k[2]) for k in placed.keys} == set(placed.out_idx.items())


@pytest.mark.thorough
def test_place__some_of_the_small_programs_have_what_they_test():
    """Memory that binds, clones, pairs, forbidden variables, programs without a plan."""
    made = [optimizer_of(np.random.default_rng(seed)) for seed in range(12)]
    assert sum(cheapest(x) == math.inf for x in made) in range(1, 6)
    binding = 0
    for x in made:
        with_memory = cheapest(x)
        for name in ("memory_high", "memory_low"):
            x.prob.constraints.pop(name, None)
        binding += cheapest(x) < with_memory < math.inf
    assert binding >= 2
    assert sum(len(set(variables_of(x).values())) < len(variables_of(x)) for x in made) >= 2


def test_attach__solves_in_the_place_of_pulp():
    optimizer = optimizer_of(np.random.default_rng(3))
    solver = attach(optimizer, seconds=None, steps=1)
    assert optimizer.prob.solve("a solver of PuLP", msg=True) == optimizer.prob.status == 1
    placed = solver.placement
    ones = {key for key, x in variables_of(optimizer).items() if x.varValue == 1}
    assert ones == placed.keys
    assert optimizer.prob.objective.value() == pytest.approx(placed.cost)
    assert all(row.holds(row.value() - row.constant) for row in optimizer.prob.constraints.values())


def test_attach__says_infeasible_as_pulp_does():
    optimizer = optimizer_of(np.random.default_rng(3))
    key, variable = next(iter(variables_of(optimizer).items()))
    group = [x for k, x in variables_of(optimizer).items() if k[:2] == key[:2]]
    optimizer.prob.add("none", Expression(dict.fromkeys(group, 1.0)), "==", 0.0)
    solver = attach(optimizer, seconds=None, steps=1)
    assert optimizer.prob.solve() == optimizer.prob.status == -1 and solver.placement is None
    assert variable.varValue is None


def test_place__bounds_of_variables_count():
    """Later versions fix strategies by bounds, which leave no row."""
    optimizer = optimizer_of(np.random.default_rng(3))
    free = place(optimizer, seconds=None, steps=1)
    key = min(free.keys)
    for other, variable in variables_of(optimizer).items():
        if other[0] == key[0] and other[2] == key[2]:
            variable.upBound = 0
    least = cheapest_without(optimizer, key[0], key[2])
    fixed = place(optimizer, seconds=None, steps=1)
    assert fixed.out_idx[key[0]] != key[2]
    assert fixed.cost == pytest.approx(least) and fixed.cost > free.cost
    variables_of(optimizer)[max(fixed.keys)].lowBound = 1
    assert place(optimizer, seconds=None, steps=1).cost == fixed.cost


def cheapest_without(optimizer, node, out):
    """Objective without an output strategy of a node, by a row of its own."""
    gone = {x: 1.0 for k, x in variables_of(optimizer).items() if k[0] == node and k[2] == out}
    optimizer.prob.add("gone", Expression(gone), "==", 0.0)
    least = cheapest(optimizer)
    del optimizer.prob.constraints["gone"]
    return least


def remove(words):
    def change(optimizer):
        for name in [x for x in optimizer.prob.constraints if x.startswith(words)]:
            del optimizer.prob.constraints[name]

    return change


def stranger(optimizer):
    optimizer.prob.add("own", Expression({Variable("mine"): 1.0}), "<=", 1.0)


def lone(optimizer):
    a, *_, b = variables_of(optimizer).values()
    optimizer.prob.add("lone", Expression({a: 1.0, b: 1.0}), "<=", 1.0)


def unset(optimizer):
    optimizer.prob.objective = None


def infinite(optimizer):
    optimizer.prob.objective.terms[next(iter(variables_of(optimizer).values()))] = math.inf


@each(
    ("change", "words"),
    [
        (remove("unique"), "nothing says that argument 0 of operation 0 has one pair"),
        (remove("same"), "nothing says that arguments 0 and 1 of operation .* the same output"),
        (stranger, "constraint own has variable mine, which is no decision variable"),
        (lone, "constraint lone joins single variables of operation"),
        (unset, "it has no objective that is minimised; get_solution"),
        (infinite, "the objective has the coefficient inf"),
    ],
)
def test_place__refuses_what_is_no_program_of_placements(change, words):
    optimizer = optimizer_of(np.random.default_rng(3))
    change(optimizer)
    with pytest.raises(ParenvsError, match=f"^AutoParallel: .*{words}"):
        place(optimizer, seconds=None, steps=1)


def test_variables__of_every_version():
    optimizer = optimizer_of(np.random.default_rng(3))
    found = variables_of(optimizer)

    class Decision:
        def __init__(self, var):
            self.var = var

    class Version:
        pass

    for name, value in (
        ("decision_vars", {key: Decision(x) for key, x in found.items()}),
        ("ds", {key: {"va": x} for key, x in found.items()}),
    ):
        version = Version()
        setattr(version, name, value)
        assert variables_of(version) == found
    with pytest.raises(ParenvsError, match="Version has no decision variables"):
        variables_of(Version())


def test_place__clones_by_operation():
    """Later versions link clones by operation, and have variables of the roots alone."""
    optimizer = optimizer_of(np.random.default_rng(3))
    optimizer.cluster_links = {99: 1}
    placed = place(optimizer, seconds=None, steps=1)
    assert placed.out_idx[99] == placed.out_idx[1]


def test_attach__time_is_up(monkeypatch):
    """AutoParallel sees the error, and no variable has a value."""

    def late(problem, **search):
        assert search == {"seconds": 2.0, "seed": 7}
        raise TimeLimitError(f"{problem.name}: no legal plan was found in 2 s")

    monkeypatch.setattr(autoparallel, "solve_iopddl", late)
    optimizer = optimizer_of(np.random.default_rng(3))
    attach(optimizer, seconds=2.0, seed=7)
    with pytest.raises(TimeLimitError, match=r"^autoparallel: no legal plan"):
        optimizer.prob.solve()
    assert {x.varValue for x in variables_of(optimizer).values()} == {None}


@pytest.mark.slow
@pytest.mark.skipif(not FILES.is_dir(), reason="AutoParallel's own problems are not here")
@each(
    ("name", "cost"),
    [
        ("llama3-8b-1-layer-8x8", 57303.7718),
        ("llama3-8b-2-layers-8x8", 94324.6948),
        ("llama3-8b-4-layers-clustered-8x8", 167937.8911),
    ],
)
def test_place__its_own_problems(name, cost):
    """AutoParallel's objectives, which are in the files by millionths."""
    optimizer = program_of(load_iopddl(FILES / f"{name}.json.gz"), 1e-6)
    placed = place(optimizer, seconds=60, processor=True)
    assert placed.cost == pytest.approx(cost, abs=1e-4) and placed.gap <= 2e-9
