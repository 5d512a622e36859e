"""Schedules that split backward passes: published bubbles, paths, memory, rules, search."""

import itertools
from dataclasses import replace

import hybrid_toys
import numpy as np
import pytest
from cases import each

import parenvs
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.tasks.hybrid import schedules
from parenvs.tasks.hybrid.schedules import (
    CHUNKS,
    SPLIT,
    ChunkSeconds,
    core,
    held,
    operations,
    simulate,
)
from parenvs.tasks.hybrid.space import Constraints, UniformSpace, uniform_plans
from parenvs.tasks.hybrid.stack import STACKS

EVERY = ["1f1b", "interleaved", "early", *SPLIT]
BUBBLES = {
    # arXiv 2401.10241, table 1: B is the input's part there.
    "zb-h1": lambda s, f, i, w: (s - 1) * (f + i - w),
    # The table of DualPipe's README: (PP/2 - 1)(F&B + B - 3W), B = i + w, F&B = f + i + w here.
    "dualpipe": lambda s, f, i, w: (s / 2 - 1) * (f + 2 * i - w),
    # The same with PP = 2 S.
    "dualpipe-v": lambda s, f, i, w: (s - 1) * (f + 2 * i - w),
}


def uniform(stages, name, times):
    """The passes of equal stages."""
    return np.broadcast_to(np.reshape(times, (3, 1, 1)), (3, stages, CHUNKS[name])).astype(float)


def simulated(name, passes, rounds, transfers=None):
    transfers = np.zeros(passes.shape[1:]) if transfers is None else transfers
    seconds = ChunkSeconds(passes[0], passes[1] + passes[2], transfers, passes[2])
    return simulate(seconds, rounds * (2 if name == "dualpipe" else 1), name)


@pytest.mark.thorough
@each("name", BUBBLES)
@each("stages", [2, 4, 8])
@each("times", [(1, 1, 1), (2, 2, 1), (4, 4, 3)])
def test_bubbles__are_the_published_ones(name, stages, times):
    """Of equal stages, where inputs take as long as the forward pass, and weights no longer."""
    for rounds in (2 * stages, 2 * stages + 3, 9 * stages):
        work = CHUNKS[name] * rounds * sum(times)
        passes = uniform(stages, name, times)
        assert simulated(name, passes, rounds).core == work + BUBBLES[name](stages, *times)
        seconds, left = core(name, passes, np.zeros(passes.shape[1:]), rounds)
        assert seconds == work + BUBBLES[name](stages, *times)
        assert left.min() == 0


def test_zb_h1__is_the_best_order_of_its_memory():
    """Two stages, three micro-batches, two activations each: no pair of orders is shorter."""
    m, best = 3, np.inf
    orders = []
    for word in set(itertools.permutations([0] * m + [1] * m + [2] * m)):
        counts, fits = [0, 0, 0], True
        for kind in word:
            counts[kind] += 1
            fits &= counts[0] >= counts[1] >= counts[2] and counts[0] - counts[2] <= 2
        if fits:
            orders.append(word)
    times = (2, 2, 1)
    for pair in itertools.product(orders, repeat=2):
        best = min(best, _length(pair, times))
    assert best == simulated("zb-h1", uniform(2, "zb-h1", times), m).core


def _length(orders, times):
    """Seconds of two stages that do words of kinds in their order; inf if they wait forever."""
    ends, place, free, done = {}, [0, 0], [0.0, 0.0], [[0] * 3, [0] * 3]
    while place != [len(word) for word in orders]:
        before = list(place)
        for stage, word in enumerate(orders):
            while place[stage] < len(word):
                kind = word[place[stage]]
                number = done[stage][kind]
                near = {0: stage - 1, 1: stage + 1}.get(kind, -1)
                if near in (0, 1) and (kind, near, number) not in ends:
                    break
                begin = max(free[stage], ends.get((kind, near, number), 0.0))
                free[stage] = ends[kind, stage, number] = begin + times[kind]
                done[stage][kind] += 1
                place[stage] += 1
        if place == before:
            return np.inf
    return max(free)


@pytest.mark.thorough
@each("name", SPLIT)
def test_core__is_the_simulation_without_transfers_and_a_lower_bound_with_them(name):
    """Random passes; beyond ``steady`` rounds, too."""
    rng = np.random.default_rng(len(name))
    for _ in range(25):
        stages = int(rng.choice([2, 4, 6]))
        rounds = int(rng.integers(2 * stages, 8 * stages + 10))
        passes = rng.uniform(0.3, 2, (3, stages, CHUNKS[name]))
        if rng.integers(2):  # nearly equal stages: paths change late
            passes = uniform(stages, name, (1, 1.2, 0.9)) * rng.uniform(0.98, 1.02, (1, stages, 1))
        table = simulated(name, passes, rounds)
        seconds, left = core(name, passes, np.zeros(passes.shape[1:]), rounds)
        assert seconds == pytest.approx(table.core, rel=1e-12)
        if rounds <= schedules.steady(stages, rounds):
            np.testing.assert_allclose(table.core - table.stage_end, left, atol=1e-9)
        transfers = rng.uniform(0, 0.3, passes.shape[1:])
        transfers[-1, 0] = 0  # where a chain turns, or ends
        bound = core(name, passes, transfers, rounds)[0]
        assert seconds - 1e-9 <= bound <= simulated(name, passes, rounds, transfers).core + 1e-9


@each("name, peak", [("zb-h1", 1), ("zb-v", 1), ("dualpipe", 1.125), ("dualpipe-v", 1.0625)])
def test_held__is_what_is_published(name, peak):
    """S micro-batches; DualPipe one stage's more, DualPipeV half a stage's, on every stage."""
    stages = 8
    lines = held(name, stages, 40)
    share = {"zb-h1": stages, "dualpipe": stages}.get(name, 2 * stages)
    assert (lines.sum(axis=2).max(axis=1) / share == peak).all()
    few = held(name, stages, 16)
    assert few.sum(axis=2).max() <= lines.sum(axis=2).max()
    for stage in range(stages):  # another count: nothing is dropped before its weights are done
        now, highest = 0, 0
        for members in operations(name, stage, stages, 40, CHUNKS[name]):
            now += sum(kind == 0 for kind, _, _ in members)
            highest = max(highest, now)
            now -= sum(kind == 2 for kind, _, _ in members)
        assert highest == lines[stage].sum(axis=1).max()
        assert now == 0


def toy(batch=32, **shape):
    stack = {"name": "nemo-2024", "schedules": EVERY}
    return hybrid_toys.toy("2x8:h100", batch, stack, layers=16, **shape)


@pytest.fixture(scope="module")
def space():
    return UniformSpace.build(toy())


def of(problem, name, pp=4, **columns):
    limits = Constraints(schedule=name, pp=pp, tp=1, micro_batch=1, zero=(0,), context=1, **columns)
    rows = uniform_plans(problem, replace(limits, recompute=("none",)))
    return problem.uniform_plan(rows, 0)


def test_memory__dualpipe_holds_two_stages_and_zb_v_both_ends():
    problem = toy(tied=False)
    plain, two, turned = (
        problem.memory(of(problem, name)) for name in ("zb-h1", "dualpipe", "zb-v")
    )
    assert two.weights[1] == 2 * plain.weights[1] == plain.weights[1] + plain.weights[2]
    assert two.weights[0] == pytest.approx(plain.weights[0] + plain.weights[3])
    ends = plain.weights - plain.weights[1]
    assert turned.weights[0] == pytest.approx(plain.weights[1] + ends[0] + ends[3])
    # Tied weights are held once where both ends are on one device.
    tied = toy()
    assert tied.memory(of(tied, "zb-v")).weights[0] < turned.weights[0]
    assert tied.step(of(tied, "zb-v")).tied == 0 < tied.step(of(tied, "zb-h1")).tied


def test_step__dualpipe_sums_gradients_with_its_opposite():
    problem = toy()
    assert problem.cluster.devices_per_server == 8  # stages 0 and 3 lie in two servers
    two, half = problem.step(of(problem, "dualpipe")), problem.step(of(problem, "zb-h1"))
    assert (two.reduction > half.reduction).all()
    with_one = of(problem, "dualpipe", dp=1, devices=4)
    alone = problem.step(of(problem, "zb-h1", dp=1, devices=4))
    assert (alone.reduction == 0).all()  # of one replica nothing is summed
    bytes_of = problem.memory(with_one).gradients
    summed = problem.machine.links.all_reduce(bytes_of, 2, 8)
    np.testing.assert_allclose(problem.step(with_one).reduction, summed)


def test_stacks__say_which_schedules_they_have():
    """A plan of another is illegal, and the search proposes none."""
    problem = toy()
    plan = of(problem, "zb-v")
    plain = replace(problem, stack="nemo-2024")
    reasons = plain.report(replace(plan, stack=plain.stack.to_json())).reasons
    assert [reason.partition(":")[0] for reason in reasons] == ["schedule"]
    for name, known in (("titan-2025", {"", "zb-v"}), ("nemo-2024", {""})):
        rows = uniform_plans(replace(problem, stack=name))
        assert set(rows.schedule.tolist()) == known
        assert known - {""} <= set(STACKS[name].schedules)
    with pytest.raises(InfeasibleError, match="no uniform plan keeps to schedule zb-v"):
        uniform_plans(plain, Constraints(schedule="zb-v"))
    with pytest.raises(ParenvsError, match="'schedule' must be one of"):
        Constraints(schedule="early")


def test_solve__with_a_schedule():
    problem = toy()
    answer = parenvs.plan(problem, constraints={"schedule": "zb-v", "context": 1})
    assert answer.plan.schedule == "zb-v"
    report = problem.report(answer.plan)
    assert report.legal
