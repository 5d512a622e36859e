"""The exact partitioner against every legal choice, and the optima that are known."""

import numpy as np
import partition_toys as toys
import pytest
from cases import each, slow

from parenvs.agents.partition.exact import exact_partition
from parenvs.errors import InfeasibleError, TimeLimitError

VARIABLES, INPUTS = "variables", "inputs"
SETTINGS = (  # scope, reward, and what may be decided
    (VARIABLES, "paper", None),
    (VARIABLES, "step_time", None),
    (INPUTS, "paper", None),
    (INPUTS, "step_time", None),
    (VARIABLES, "step_time", "variables"),
    (VARIABLES, "paper", "all"),
)
OWN = [(VARIABLES, "step_time"), (VARIABLES, "paper")]
EXACT = {"rel": 1e-12, "abs": 1e-12}


@pytest.fixture(scope="module", params=["shardy", "automap"])
def vgg(request):
    """VGG-19, every legal choice of its classes, and what each needs."""
    problem = toys.shipped("vgg-19", request.param)
    table = toys.independent_sets(problem, "all")
    return problem, table, toys.Simulation(problem).peaks(table)


def within(problem, table, peaks, scope=None):
    """The choices that a scope allows, and their peaks."""
    allowed = np.isin(np.arange(table.shape[1]), problem.decidable(scope))
    kept = ~table[:, ~allowed].any(axis=1)
    return table[kept], peaks[kept]


def check(problem, answer, scope=None):
    """A legal choice of the scope, worth what it says, and proven."""
    assert problem.legal(answer.report.chosen)
    assert set(np.flatnonzero(answer.report.chosen)) <= set(problem.decidable(scope).tolist())
    assert answer.value == pytest.approx(problem.value(answer.report.chosen), **EXACT)
    assert (answer.status, answer.method) == ("optimal", "exact")
    assert answer.problem.reward == problem.reward
    assert answer.bound >= answer.value
    assert answer.bound == pytest.approx(answer.value, rel=1e-9, abs=1e-9)
    assert answer.seconds >= 0


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [*range(8), *slow(*range(8, 50))])
def test_partition_exact__equals_brute_force_on_random_programs(seed):
    graph = toys.random_problem(seed, steps=16)
    for scope, reward, decided in SETTINGS:
        problem = toys.asked(graph, scope, reward)
        answer = exact_partition(problem, scope=decided)
        check(problem, answer, decided)
        values = problem.value(toys.independent_sets(problem, decided or problem.full_scope))
        assert answer.value == pytest.approx(values.max(), **EXACT)


@pytest.mark.thorough
@pytest.mark.parametrize(("scope", "reward", "decided"), SETTINGS)
def test_partition_exact__equals_brute_force_on_vgg(vgg, scope, reward, decided):
    graph, table, peaks = vgg
    problem = toys.asked(graph, scope, reward)
    values = problem.value(within(problem, table, peaks, decided)[0])
    answer = exact_partition(problem, scope=decided)
    check(problem, answer, decided)
    assert answer.value == pytest.approx(values.max(), **EXACT)


def against(problem, table, peaks, limit, scope=None):
    """The best within a limit, or none, as every choice says."""
    fits = peaks <= limit
    if not fits.any():
        with pytest.raises(InfeasibleError) as error:
            exact_partition(problem, limit, scope)
        text = str(error.value)
        assert f"no partition fits {limit:,.0f} bytes a device" in text
        assert "the smallest found needs" in text
        needed = float(text.split("needs ")[1].split(", ")[0].replace(",", ""))
        assert round(needed) >= round(peaks.min())
        return False
    answer = exact_partition(problem, limit, scope)
    check(problem, answer, scope)
    assert problem.footprint.memory(answer.report.chosen).peak <= limit + 1
    assert answer.value == pytest.approx(problem.value(table[fits]).max(), **EXACT)
    return True


# The others up to 30 are of the same kind, and three of them take 7 seconds each.
@pytest.mark.thorough
@pytest.mark.parametrize("seed", [*range(5), *slow(5, 6, 7, 8, 9, 10, *range(18, 30))])
def test_partition_exact__memory_limits_on_random_programs(seed):
    """Limits between the least and the largest peak, and some beyond."""
    problem, rng = toys.random_problem(seed, steps=13), np.random.default_rng(seed)
    timed = toys.timed(problem)
    table = toys.independent_sets(timed, timed.full_scope)
    peaks = np.array([problem.footprint.memory(chosen).peak for chosen in table])
    low, high = peaks.min(), peaks.max()
    limits = [*rng.uniform(low, high, 3), low - 3, high + 3, low + 0.5, rng.choice(peaks) + 0.5]
    for limit in limits:
        if np.abs(peaks - limit).min() > 1.5 or limit in limits[-2:]:  # a byte is tolerated
            against(timed, table, peaks, float(limit))
            against(problem, table, peaks, float(limit), "all")


@pytest.mark.thorough
@pytest.mark.parametrize(("scope", "reward"), OWN)
def test_partition_exact__memory_limits_on_vgg(vgg, scope, reward):
    graph, table, peaks = vgg
    problem = toys.asked(graph, scope, reward)
    table, peaks = within(problem, table, peaks)
    rng = np.random.default_rng(0)
    limits = [*rng.uniform(peaks.min(), peaks.max(), 12), peaks.min() - 2, peaks.min() + 1]
    found = [against(problem, table, peaks, float(x)) for x in limits]
    assert found[-2:] == [False, True]


@pytest.mark.thorough
@each("share", [1e-5, 1e-7, 1e-9])
@pytest.mark.parametrize(("scope", "reward"), OWN)
def test_partition_exact__memory_limits_just_below_a_better_choice(vgg, scope, reward, share):
    """A solver takes a limit as met within a tolerance; the answer may not."""
    graph, table, peaks = vgg
    problem = toys.asked(graph, scope, reward)
    table, peaks = within(problem, table, peaks)
    values = problem.value(table)
    order = np.lexsort((-values, peaks))
    rising = np.flatnonzero(np.diff(np.maximum.accumulate(values[order])) > 1e-9) + 1
    assert rising.size
    for i in order[rising][-3:]:
        against(problem, table, peaks, float(peaks[i] * (1 - share) - 2))


def test_partition_exact__says_by_how_much_it_misses():
    """Parameters, state and inputs of a half, and what is alive then, are known by hand."""
    problem = toys.problem_of(toys.MLP)
    table = toys.independent_sets(problem, "all")
    least = min(problem.footprint.memory(chosen).peak for chosen in table)
    limit = least - 100
    with pytest.raises(InfeasibleError) as error:
        exact_partition(toys.timed(problem), limit)
    assert f"no partition fits {limit:,.0f} bytes a device" in str(error.value)
    assert f"needs {least:,.0f}, 100 more" in str(error.value)


def test_partition_exact__by_hand():
    problem = toys.problem_of(toys.MLP)
    assert exact_partition(problem).value == pytest.approx(1.0)
    assert exact_partition(toys.asked(problem, INPUTS)).value == pytest.approx(0.4 + 0.6)
    answer = exact_partition(toys.timed(problem))
    gains = {
        name: problem.gain_seconds[problem.chosen(dict([name]))][0]
        for name in (("w1", 0), ("w1", 1), ("w2", 1), ("x", 0))
    }
    rate = problem.replicate_seconds
    options = [0, gains["w1", 1], gains["x", 0]]
    options += [gains["w1", 0], gains["w2", 1], gains["w1", 0] + gains["w2", 1]]
    assert answer.value == pytest.approx(max(options) / rate)


def test_partition_exact__nothing_to_decide():
    """T5 under automap: no batch dimension; every dimension is replicated, and that is proven."""
    problem = toys.shipped("t5-base", "automap", scope=INPUTS)
    answer = exact_partition(problem)
    assert not answer.report.chosen.any()
    assert answer.value == answer.bound == pytest.approx(0.4)
    with pytest.raises(InfeasibleError):
        exact_partition(problem, memory_limit=1e9)


def test_exact__what_time_cut_short_is_not_proven():
    """Neither optimal nor infeasible, whatever the solver had; the bound holds all the same."""
    problem = toys.asked(toys.shipped("vgg-19", "shardy"), VARIABLES, "step_time")
    best = exact_partition(problem)
    cut = exact_partition(problem, time_limit=0.0)
    assert best.proven and not cut.proven and cut.status == "feasible"
    assert cut.value <= best.value <= cut.bound and cut.report.legal
    with pytest.raises(TimeLimitError, match="no partition within memory in 0 s"):
        exact_partition(problem, memory_limit=1.0, time_limit=0.0)
