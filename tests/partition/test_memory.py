"""Memory on each device: by hand, by simulation with sets, and what splitting saves."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import partition_toys as toys
import pytest
from cases import each

from parenvs.tasks.partition import formulas
from parenvs.tasks.partition.classes import dimension_classes
from parenvs.tasks.partition.formulas import Footprint

PARTS = ("parameters", "optimiser", "inputs", "gradients", "activations")


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
    assert memory.optimiser == 4 * (24 + 12)
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
    assert hidden.optimiser == 4 * (12 + 6)
    assert hidden.inputs == 192
    assert hidden.gradients == 24
    assert hidden.activations == 3 * 96
    batch = mlp.footprint.memory(of(mlp, "x", 0))
    assert (batch.parameters, batch.optimiser, batch.inputs) == (144, 144, 96)
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
    assert footprint.least(none(mlp)) == footprint.memory(none(mlp)).peak
    assert len(classes) > 3
    for one in np.eye(len(classes), dtype=bool):
        assert footprint.least(one) == footprint.memory(one).peak
    both = of(mlp, "w1", 1) | of(mlp, "x", 0)  # every tensor has one of them
    assert footprint.least(both) == footprint.memory(none(mlp)).peak / 2


def test_footprint__of_parameters_alone():
    """A view needs no bytes, nothing else is held; without a word nothing is made again."""
    graph = toys.read(toys.module({"x": "f32[8]"}, [], "bitcast.1 = f32[8] bitcast(x.1)"))
    classes = dimension_classes(graph)
    footprint = Footprint(graph, classes.label, np.ones(len(classes)))
    nothing = np.zeros(len(classes), dtype=bool)
    assert footprint.least(nothing) == footprint.memory(nothing).peak == 32
    assert not footprint.again.any()


@each("seed", range(4))
def test_footprint__no_plan_needs_less_than_the_least(seed):
    problem, rng = toys.random_problem(seed), np.random.default_rng(seed)
    least = problem.footprint.least(~problem.classes.blocked)
    for _ in range(20):
        chosen = toys.random_choice(problem, rng)
        assert least <= problem.footprint.memory(chosen).peak
        assert problem.footprint.least(chosen) <= problem.footprint.memory(chosen).peak


def simulated(problem, chosen, simulation):
    """Memory of the fullest moment, by kind, and what is alive at every one."""
    rows = [simulation.at(i, chosen) for i in range(len(problem.graph.opcode))]
    total = [row["gradients"] + row["activations"] for row in rows]
    return rows, total


def agree(problem, chosen, simulation):
    rows, total = simulated(problem, chosen, simulation)
    memory = problem.footprint.memory(chosen)
    np.testing.assert_allclose(problem.footprint.alive(chosen), total, rtol=1e-9, atol=1e-6)
    assert total[memory.at] == pytest.approx(max(total))
    for part in PARTS:
        assert getattr(memory, part) == pytest.approx(rows[memory.at][part]), part
    assert memory.peak == pytest.approx(max(sum(row.values()) for row in rows))
    assert memory.peak == pytest.approx(sum(getattr(memory, part) for part in PARTS))


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


@each("seed", range(20))
def test_footprint__saved_at_any_instruction(seed):
    problem, rng = toys.random_problem(seed), np.random.default_rng(seed)
    simulation = toys.Simulation(problem)
    for at in range(len(problem.graph.opcode)):
        chosen = toys.random_choice(problem, rng)
        whole, saved = problem.footprint.saved_at(at)
        assert whole == pytest.approx(sum(simulation.at(at, none(problem)).values()))
        left = sum(simulation.at(at, chosen).values())
        assert whole - saved[chosen].sum() == pytest.approx(left)


def test_footprint__more_splitting_never_needs_more():
    problem, rng = toys.shipped("t5-base"), np.random.default_rng(2)
    for _ in range(5):
        chosen = toys.random_choice(problem, rng)
        fewer = chosen & (rng.random(len(chosen)) < 0.6)
        more, less = (problem.footprint.alive(c) for c in (chosen, fewer))
        assert (more <= less * (1 + 1e-9) + 1e-3).all()


def test_footprint__data_parallel_halves_activations_on_two_devices():
    """Of a real step, all that is alive at the peak has the batch."""
    problem = toys.shipped("bert-48")
    batch = problem.chosen({problem.graph.paths[i]: 0 for i in problem.inputs})
    before, after = (problem.footprint.memory(c) for c in (none(problem), batch))
    assert after.activations < before.activations / 7
    assert after.parameters == before.parameters == problem.graph.parameter_bytes
    assert after.optimiser == before.optimiser == 2 * problem.graph.parameter_bytes
    assert after.inputs == pytest.approx(before.inputs / 8)


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
    ("opcode", "shape", "rest", "back"),
    [
        ("reshape", "f32[64]{0}", "", ""),
        ("bitcast", "f32[64]{0}", "", ""),
        ("opt-barrier", SQUARE, "", None),
    ],
)
def test_footprint__views_cost_nothing(opcode, shape, rest, back):
    """A view keeps what it is a view of alive, and views of views do too."""
    lines = [
        f"a.1 = {SQUARE} tanh(batch__x__.1)",
        f"v.1 = {shape} {opcode}(a.1){rest}",
        f"b.1 = {SQUARE} sine(params__w__.1)",
    ]
    if back is None:
        lines.append("u.1 = f32[8,8]{1,0} opt-barrier(v.1)")
    else:
        lines.append(f"u.1 = {SQUARE} {opcode}(v.1)")
    lines.append(f"c.1 = {SQUARE} cosine(b.1)")
    problem = chain(lines, f"d.1 = {SQUARE} add(c.1, u.1)", w=SQUARE, x=SQUARE)
    assert alive(problem, "tanh") == [FULL]
    assert set(alive(problem, opcode)) <= {FULL, 2 * FULL}
    assert alive(problem, "sine") == [2 * FULL]
    assert alive(problem, "cosine") == [3 * FULL]  # a by its views, b and c
    # The result takes the variable's place; c and a, which it reads, are alive.
    assert alive(problem, "add") == [2 * FULL]


def test_footprint__broadcasts_are_fused_into_their_users():
    lines = [
        "a.1 = f32[8]{0} tanh(batch__x__.1)",
        "b.1 = f32[99,8]{1,0} broadcast(a.1), dimensions={1}",
        "c.1 = f32[99,8]{1,0} add(b.1, params__w__.1)",
    ]
    problem = chain(lines, "d.1 = f32[99,8]{1,0} sine(c.1)", w="f32[99,8]{1,0}", x="f32[8]{0}")
    assert alive(problem, "broadcast") == [32]
    assert alive(problem, "add") == [32 + 99 * 32]


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


def test_footprint__a_view_of_an_output_takes_the_place_of_a_variable():
    lines = ["a.1 = f32[64]{0} tanh(batch__x__.1)", "b.1 = f32[64]{0} sine(batch__x__.1)"]
    root = f"v.1 = {SQUARE} reshape(a.1)"
    problem = chain(lines, root, w=SQUARE, x="f32[64]{0}")
    assert alive(problem, "tanh") == [0]


def test_footprint__variables_that_are_returned_as_they_are():
    """Frozen weights stay where they are, and are counted."""
    lines = [f"a.1 = {SQUARE} tanh(params__w2__.1)"]
    root = f"t.1 = ({SQUARE}, {SQUARE}) tuple(params__w1__.1, a.1)"
    problem = chain(lines, root, w1=SQUARE, w2=SQUARE, x="f32[4]{0}")
    memory = problem.footprint.memory(none(problem))
    assert memory.parameters == 2 * FULL
    assert memory.activations == 0
    split = problem.footprint.memory(of(problem, "w2", 0))
    assert split.parameters == FULL + FULL / 2
    whole, _ = problem.footprint.saved_at(memory.at)
    assert whole == memory.peak


def test_footprint__a_view_of_a_variable_that_is_returned():
    lines = ["a.1 = f32[64]{0} tanh(batch__x__.1)"]
    root = "t.1 = (f32[64]{0}, f32[64]{0}) tuple(v.1, a.1)"
    lines.append("v.1 = f32[64]{0} reshape(params__w1__.1)")
    problem = chain(lines, root, w1=SQUARE, w2="f32[64]{0}", x="f32[64]{0}")
    assert problem.footprint.memory(none(problem)).parameters == 2 * FULL


def test_footprint__what_a_loop_carries_is_alive_in_it():
    """y and z enter; the body reads both of them in its seven trips, and makes another y."""
    problem = toys.problem_of(toys.LOOP)
    assert alive(problem, "while") == [128]
    assert alive(problem, "dot") == [3 * 64 + 4]  # y, z, the product and the counter
    # At the end, y alone; the sum takes the place of the variable.
    assert alive(problem, "add")[-1] == 64


def test_footprint__what_branches_read_is_alive_in_them():
    problem = toys.problem_of(toys.BRANCHES)
    names = [row[0] for row in toys.instructions(problem.graph)]
    inside = problem.footprint.alive(none(problem))[names.index("dot")]
    assert inside == 2 * 64  # y and the product; the result takes the variable's place


def test_footprint__gradients_are_what_backward_makes_and_the_update_reads():
    """Without an update there are none; then all are activations."""
    problem = toys.problem_of(toys.MLP)
    graph = replace(problem.graph, phase=np.minimum(problem.graph.phase, 1))
    other = Footprint(graph, problem.classes.label, problem.device_share)
    one, two = problem.footprint.memory(none(problem)), other.memory(none(problem))
    assert one.gradients == 48
    assert two.gradients == 0
    assert one.peak == two.peak


@pytest.mark.thorough
@pytest.mark.parametrize("name", toys.INSTANCES)
def test_footprint__shipped_graphs(name):
    """Adam keeps two moments, and the scalars' few bytes are all there is besides the batch."""
    problem = toys.shipped(name)
    graph = problem.graph
    memory = problem.footprint.memory(none(problem))
    assert memory.parameters == graph.parameter_bytes
    assert memory.optimiser == 2 * graph.parameter_bytes
    batch = graph.tensor_bytes[graph.parameter_tensor[problem.inputs]].sum()
    assert memory.inputs == batch
    assert memory.gradients <= graph.parameter_bytes
    assert memory.activations > 0


def test_footprint__bytes_of_one_count():
    """A truth value is one byte, and as alive as anything else."""
    lines = [
        "a.1 = pred[1]{0} compare(batch__x__.1, batch__x__.1), direction=LT",
        f"b.1 = {SQUARE} tanh(params__w__.1)",
        f"c.1 = {SQUARE} broadcast(a.2), dimensions={{0}}",
    ]
    lines.insert(2, "a.2 = f32[8]{0} convert(a.3)")
    lines.insert(2, "a.3 = pred[8]{0} concatenate(a.1, a.1, a.1, a.1, a.1, a.1, a.1, a.1), "
                 "dimensions={0}")  # fmt: skip
    problem = chain(lines, f"d.1 = {SQUARE} add(b.1, c.1)", w=SQUARE, x="f32[1]{0}")
    assert alive(problem, "compare") == [1]
    assert alive(problem, "tanh") == [1 + FULL]
    assert alive(problem, "concatenate") == [1 + FULL + 8]


def test_footprint__classes_that_cannot_be_split_save_nothing():
    """Dimensions of size 1 are whole on every device; those of size 2 are not."""
    shape = "f32[1,2,8]{2,1,0}"
    lines = [f"a.1 = {shape} tanh(batch__x__.1)"]
    problem = chain(lines, f"b.1 = {shape} add(a.1, params__w__.1)", w=shape, x=shape)
    graph, label = problem.graph, problem.classes.label
    at = problem.footprint.memory(none(problem)).at
    whole, saved = problem.footprint.saved_at(at)
    wide = np.zeros(len(problem.classes), dtype=bool)
    wide[label[graph.dims > 1]] = True
    assert not saved[~wide].any()
    assert (~wide).any()
    for size in (2, 8):
        chosen = np.zeros(len(problem.classes), dtype=bool)
        chosen[label[graph.dims == size]] = True
        assert saved[chosen].sum() == whole / 2
        assert problem.footprint.memory(chosen).peak == whole / 2


def test_footprint__cannot_be_changed(mlp):
    memory = mlp.footprint.memory(none(mlp))
    with pytest.raises(FrozenInstanceError):
        memory.parameters = 0.0


def test_narrowest__places_below_both_neighbours():
    """Of the plateau 3, 3 the last place; neither the first place nor the last of all."""
    crossing = np.array([1, 5, 3, 3, 4, 2, 6, 1])
    assert formulas._narrowest(crossing).tolist() == [3, 5]
    assert formulas._narrowest(np.array([4, 3, 2])).tolist() == []


def test_divide__by_hand():
    """The narrowest place from half a segment to all of one behind the border before."""
    crossing = np.array([9, 9, 0, 4, 2, 2, 9, 8, 9, 1, 3, 2, 9, 7, 6, 9, 9, 9, 9, 9])
    total = 5.0 * np.arange(1, 21)
    every = np.arange(20)
    assert formulas._divide(every, crossing, total, 30.0).tolist() == [5, 9, 14]
    assert formulas._divide(every, crossing, total, 50.0).tolist() == [
        9
    ]  # 50 are left, one segment
    assert formulas._divide(every, crossing, total, 100.0).tolist() == []


def test_divide__where_there_are_few_narrow_places():
    """The next one is taken where none is near enough; the last segment may be longer."""
    crossing, total = np.arange(20)[::-1], 5.0 * np.arange(1, 21)
    assert formulas._divide(np.array([0, 19]), crossing, total, 30.0).tolist() == [19]
    assert formulas._divide(np.array([0]), crossing, total, 30.0).tolist() == []
    begin = formulas._divide(np.array([0, 1]), np.array([1, 0]), np.array([15.5, 100.0]), 30.0)
    assert begin.tolist() == [0, 1]


def test_crosses__made_in_front_of_a_border_and_read_behind_it():
    made = np.array([True, True, True, True, False])
    first, used = np.array([0, 3, 5, 9, 3]), np.array([4, 5, 8, 12, 9])
    crosses = formulas._crosses(made, first, used, np.array([4, 8]))
    assert crosses.tolist() == [False, True, False, False, False]
    assert not formulas._crosses(made, first, used, np.array([], dtype=np.int64)).any()
