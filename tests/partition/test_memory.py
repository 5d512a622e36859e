"""Memory on each device: by hand, by simulation with sets, and what splitting saves."""

from dataclasses import replace

import numpy as np
import partition_toys as toys
import pytest
from cases import each

from parenvs.tasks.partition.formulas import Footprint

PARTS = ("parameters", "optimizer", "inputs", "gradients", "activations")


@pytest.fixture(scope="module")
def mlp():
    return toys.problem_of(toys.MLP)


def none(problem):
    return np.zeros(len(problem.classes), dtype=bool)


def of(problem, path, dimension):
    """(C,) bool, the class of one dimension."""
    return problem.chosen({path: dimension})


def test_footprint__by_hand(mlp):
    """Alive while op.7 runs: tanh 192, the gradients of w2 48 and of the hidden layer 192, itself.

    The new weights and moments are written over the old ones; the learning rate needs nothing.
    """
    memory = mlp.footprint.memory(none(mlp))
    assert memory.parameters == 4 * (24 + 12)
    assert memory.optimizer == 4 * (24 + 12)
    assert memory.inputs == 4 * (32 + 16)
    assert memory.gradients == 48
    assert memory.activations == 3 * 192
    assert toys.instructions(mlp.graph)[memory.at][0] == "multiply"
    assert memory.peak == 144 + 144 + 192 + 48 + 576
    alive = dict(enumerate(mlp.footprint.alive(none(mlp))))
    # op.1 to op.16, the constant and its broadcast left out; parameters come before.
    by_hand = [192, 384, 256, 320, 304, 496, 624, 624, 624, 336, 144, 48, 0, 0]
    assert [x for i, x in alive.items() if not free_or_parameter(mlp.graph, i)] == by_hand


def free_or_parameter(graph, index):
    return bool(graph.free[index]) or toys.instructions(graph)[index][0] == "parameter"


def test_footprint__by_hand_split(mlp):
    """The hidden width over two devices halves what has it, the batch what has that."""
    hidden = mlp.footprint.memory(of(mlp, "w1", 1))
    assert hidden.parameters == 4 * (12 + 6)
    assert hidden.optimizer == 4 * (12 + 6)
    assert hidden.inputs == 192
    assert hidden.gradients == 24
    assert hidden.activations == 3 * 96
    batch = mlp.footprint.memory(of(mlp, "x", 0))
    assert (batch.parameters, batch.optimizer, batch.inputs) == (144, 144, 96)
    assert batch.gradients == 48  # a full gradient on each device
    assert batch.activations == 3 * 96


def test_footprint__split_unevenly():
    """Six over four devices: two of six on the fullest."""
    problem = toys.problem_of(toys.MLP, devices=4)
    memory = problem.footprint.memory(of(problem, "w1", 1))
    assert memory.parameters == pytest.approx(4 * (24 + 12) / 3)
    assert memory.activations == pytest.approx(192)


def test_footprint__least(mlp):
    """What one class splits is exact; of several each tensor takes the best, as no plan may."""
    footprint, classes = mlp.footprint, mlp.classes
    assert footprint.lower_bound(none(mlp)) == footprint.memory(none(mlp)).peak
    assert len(classes) > 3
    for one in np.eye(len(classes), dtype=bool):
        assert footprint.lower_bound(one) == footprint.memory(one).peak
    both = of(mlp, "w1", 1) | of(mlp, "x", 0)  # every tensor has one of them
    assert footprint.lower_bound(both) == footprint.memory(none(mlp)).peak / 2


@each("seed", range(4))
def test_footprint__no_plan_needs_less_than_the_least(seed):
    problem, rng = toys.random_problem(seed), np.random.default_rng(seed)
    least = problem.footprint.lower_bound(~problem.classes.blocked)
    for _ in range(20):
        chosen = toys.random_choice(problem, rng)
        assert least <= problem.footprint.memory(chosen).peak
        assert problem.footprint.lower_bound(chosen) <= problem.footprint.memory(chosen).peak


def agree(problem, chosen, simulation):
    """Bytes of every moment, and by kind those of the fullest."""
    rows = [simulation.at(i, chosen) for i in range(len(problem.graph.opcode))]
    total = [row["gradients"] + row["activations"] for row in rows]
    memory = problem.footprint.memory(chosen)
    np.testing.assert_allclose(problem.footprint.alive(chosen), total, rtol=1e-9, atol=1e-6)
    assert total[memory.at] == pytest.approx(max(total))
    for part in PARTS:
        assert getattr(memory, part) == pytest.approx(rows[memory.at][part]), part
    assert memory.peak == pytest.approx(max(sum(row.values()) for row in rows))


@pytest.mark.thorough
@each("seed", range(60))
def test_footprint__equals_simulation_on_random_programs(seed):
    problem, rng = toys.random_problem(seed, steps=12), np.random.default_rng(seed)
    simulation = toys.Simulation(problem)
    agree(problem, none(problem), simulation)
    for _ in range(4):
        agree(problem, toys.random_choice(problem, rng), simulation)


@pytest.mark.thorough
@pytest.mark.parametrize("rules", ["shardy", "automap"])
def test_footprint__equals_simulation_on_vgg(rules):
    problem, rng = toys.shipped("vgg-19", rules), np.random.default_rng(0)
    simulation = toys.Simulation(problem)
    for chosen in (none(problem), *(toys.random_choice(problem, rng) for _ in range(3))):
        agree(problem, chosen, simulation)
    table = np.array([toys.random_choice(problem, rng) for _ in range(50)])
    peaks = [problem.footprint.memory(chosen).peak for chosen in table]
    np.testing.assert_allclose(simulation.peaks(table), peaks, rtol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["vgg-19", "t5-base", "bert-48"])
def test_footprint__saved_at_is_what_splitting_saves(name):
    """At the fullest moment of any legal choice, the savings of its classes add up."""
    problem, rng = toys.shipped(name), np.random.default_rng(1)
    for _ in range(10):
        chosen = toys.random_choice(problem, rng)
        memory = problem.footprint.memory(chosen)
        whole, saved = problem.footprint.saved_at(memory.at)
        assert whole - saved[chosen].sum() == pytest.approx(memory.peak, rel=1e-12)
        assert (saved >= 0).all()
        assert saved.shape == (len(problem.classes),)


def chain(lines, root, **parameters):
    names = {
        f"params__{k}__" if k.startswith("w") else f"batch__{k}__": v for k, v in parameters.items()
    }
    return toys.problem_of(toys.module(names, lines, root))


SQUARE = "f32[8,8]{1,0}"
FULL = 256


def alive(problem, opcode):
    """Bytes while each instruction of an opcode runs."""
    found = problem.footprint.alive(none(problem))
    return [
        x for (name, _, _), x in zip(toys.instructions(problem.graph), found, strict=True)
        if name == opcode
    ]  # fmt: skip


@each(
    ("opcode", "shape"),
    [("reshape", "f32[64]{0}"), ("bitcast", "f32[64]{0}"), ("opt-barrier", SQUARE)],
)
def test_footprint__views_cost_nothing(opcode, shape):
    """A view keeps what it is a view of alive, and views of views do too."""
    lines = [
        f"a.1 = {SQUARE} tanh(batch__x__.1)",
        f"v.1 = {shape} {opcode}(a.1)",
        f"b.1 = {SQUARE} sine(params__w__.1)",
        f"u.1 = {SQUARE} {opcode}(v.1)",
        f"c.1 = {SQUARE} cosine(b.1)",
    ]
    problem = chain(lines, f"d.1 = {SQUARE} add(c.1, u.1)", w=SQUARE, x=SQUARE)
    assert alive(problem, "tanh") == [FULL]
    assert set(alive(problem, opcode)) <= {FULL, 2 * FULL}
    assert alive(problem, "sine") == [2 * FULL]
    assert alive(problem, "cosine") == [3 * FULL]  # a by its views, b and c
    # The result takes the variable's place; c and a, which it reads, are alive.
    assert alive(problem, "add") == [2 * FULL]


def test_footprint__outputs_take_the_place_of_variables():
    """As many outputs of a shape and type as there are variables; another stays until the end."""
    lines = [
        f"op.1 = {SQUARE} tanh(params__w__.1)",
        f"op.2 = {SQUARE} sine(params__w__.1)",
        "op.3 = f32[3]{0} slice(batch__x__.1), slice={[0:3]}",
        "op.4 = f32[3]{0} exponential(op.3)",
    ]
    root = f"t.1 = ({SQUARE}, {SQUARE}, f32[3]{{0}}) tuple(op.1, op.2, op.3)"
    problem = chain(lines, root, w=SQUARE, x="f32[4]{0}")
    assert alive(problem, "tanh") == [0]  # the first of that shape
    assert alive(problem, "sine") == [FULL]
    assert alive(problem, "exponential") == [FULL + 12]  # nothing reads its own: gone at once


def test_footprint__what_a_loop_carries_is_alive_in_it():
    """y and z enter; the body reads both of them in its seven trips, and makes another y."""
    problem = toys.problem_of(toys.LOOP)
    assert alive(problem, "while") == [128]
    assert alive(problem, "dot") == [3 * 64 + 4]  # y, z, the product and the counter
    # At the end, y alone; the sum takes the place of the variable.
    assert alive(problem, "add")[-1] == 64


def test_footprint__gradients_are_what_backward_makes_and_the_update_reads():
    """Without an update there are none; then all are activations."""
    problem = toys.problem_of(toys.MLP)
    graph = replace(problem.graph, phase=np.minimum(problem.graph.phase, 1))
    other = Footprint(graph, problem.classes.label, problem.device_share)
    one, two = problem.footprint.memory(none(problem)), other.memory(none(problem))
    assert one.gradients == 48
    assert two.gradients == 0
    assert one.peak == two.peak
