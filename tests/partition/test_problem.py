"""The problem of partitioning: step time, returns, and choices as paths and back."""

import json
from dataclasses import replace

import numpy as np
import partition_toys as toys
import pytest
from cases import each

from parenvs import ParenvsError, Partitioning, PartitionPlan, load_graph
from parenvs.cluster import Cluster, choose_cluster
from parenvs.errors import ClusterError, UnknownInstanceError
from parenvs.tasks.partition.problem import load_partitioning

HIDDEN = {"w1": 1, "w2": 0}
SCOPES = ("variables", "inputs", "all")


@pytest.fixture(scope="module")
def mlp():
    return toys.problem_of(toys.MLP)


def label(problem, path, dimension):
    tensor = problem.graph.parameter_tensor[problem.graph.paths.index(path)]
    return int(problem.classes.label[problem.graph.dim_offset[tensor] + dimension])


def test_partitioning__device_share_with_padding():
    """T5-base: 12 heads over 8 devices leave two of twelve on the fullest; 768 and 64 are even."""
    problem = toys.shipped("t5-base")
    share = problem.device_share
    assert share[label(problem, "encoder/layer_0/self/q", 1)] == pytest.approx(2 / 12)
    assert share[label(problem, "encoder/layer_0/conv1/kernel", 1)] == 1 / 8
    batch = problem.graph.paths[problem.inputs[0]]
    assert share[label(problem, batch, 0)] == 1 / 8


def test_partitioning__the_worst_dimension_of_a_class_counts():
    """64 elements, 4 x 16 of them: over 8 devices, one of four rows."""
    text = toys.module(
        {"params__w__": "f32[4,16]{1,0}", "batch__x__": "f32[64]{0}"},
        ["flat.1 = f32[64]{0} reshape(params__w__.1)"],
        "add.1 = f32[64]{0} add(flat.1, batch__x__.1)",
    )
    problem = toys.problem_of(text, devices=8)
    assert label(problem, "w", 0) == label(problem, "x", 0)
    assert problem.device_share[label(problem, "x", 0)] == 1 / 4


def test_partitioning__by_hand(mlp):
    """A device of 1 GFLOP/s and 1 GB/s: all instructions are bound by their bytes."""
    sizes = [128 + 96 + 192, 2 * 192, 192 + 48 + 64, 3 * 64, 192 + 64 + 48, 64 + 48 + 192, 3 * 192]
    sizes += [3 * 192, 3 * 192, 128 + 192 + 96, 3 * 96, 3 * 48, 3 * 96, 3 * 48]
    assert mlp.replicate_seconds == pytest.approx(sum(sizes) * 1e-9)
    nothing = np.zeros(len(mlp.classes), dtype=bool)
    assert mlp.step_seconds(nothing) == mlp.replicate_seconds
    # The output width: half of the second product, of the difference, and of two products of the
    # backward pass, one of which is contracted over it: 192 bytes, ring of two, 0.5 GB/s. And half
    # of the update of w2.
    output = mlp.chosen({"w2": 1})
    saved = (304 + 192 + 304 + 304 + 144 + 144) / 2 * 1e-9
    reduced = 2 * 192 * (1 / 2) / 5e8
    assert mlp.step_seconds(output) == pytest.approx(mlp.replicate_seconds - saved + reduced)
    # The batch: everything but the update, and all-reduces of the two gradients.
    batch = mlp.chosen({"x": 0})
    saved = (mlp.replicate_seconds - (288 + 144 + 288 + 144) * 1e-9) / 2
    reduced = 2 * (48 + 96) * (1 / 2) / 5e8
    assert mlp.step_seconds(batch) == pytest.approx(mlp.replicate_seconds - saved + reduced)


def agree(problem, chosen):
    compute, communication, _ = toys.slow_step(problem, chosen)
    step = float(problem.step_seconds(chosen))
    assert step == pytest.approx(compute + communication, rel=1e-9)
    assert problem.saved_seconds[chosen].sum() == pytest.approx(
        problem.replicate_seconds - compute, rel=1e-9, abs=1e-15
    )
    assert problem.all_reduce_seconds[chosen].sum() == pytest.approx(communication, rel=1e-9)


@pytest.mark.parametrize("text", [toys.LOOP, toys.BRANCHES])
def test_partitioning__step_seconds_with_loops_and_branches(text):
    """An all-reduce in a loop runs in each trip; one in a branch that is not taken never does."""
    problem = toys.problem_of(text)
    choices = np.eye(len(problem.classes), dtype=bool)
    for chosen in choices:
        if problem.legal(chosen):
            agree(problem, chosen)


def test_partitioning__legal(mlp):
    legal = {frozenset(np.flatnonzero(row)) for row in toys.independent_sets(mlp, "all")}
    assert len(legal) == 6  # nothing, the four classes, and the widths that never meet
    for number in range(2**4):
        chosen = np.zeros(len(mlp.classes), dtype=bool)
        chosen[mlp.decidable("all")] = [number >> k & 1 for k in range(4)]
        assert mlp.legal(chosen) == (frozenset(np.flatnonzero(chosen)) in legal)
    vgg = toys.shipped("vgg-19")
    blocked = np.zeros(len(vgg.classes), dtype=bool)
    blocked[np.flatnonzero(vgg.classes.blocked)[0]] = True
    assert not vgg.legal(blocked)


@pytest.mark.parametrize("name", toys.SHIPPED)
@each("scope", SCOPES)
def test_partitioning__partition_and_back(name, scope):
    """Paths and dimensions say which of the classes of a scope are partitioned."""
    problem, rng = toys.shipped(name), np.random.default_rng(0)
    for _ in range(3):
        chosen = toys.random_choice(problem, rng, scope)
        partition = problem.partition(chosen, scope)
        assert np.array_equal(problem.chosen(partition), chosen)
        for path, d in partition.items():
            assert chosen[label(problem, path, d)]
            shape = problem.graph.shape(problem.tensor[path])
            assert 0 <= d < len(shape)
            assert shape[d] > 1


def test_partitioning__plan(mlp):
    """What a plan names is what the problem decides; its scope is the problem's."""
    chosen = mlp.chosen({"x": 1})
    plan = mlp.plan(chosen)
    assert type(plan) is PartitionPlan
    assert plan.partition == {"w1": 0}
    assert (plan.instance, plan.fingerprint) == ("toy", mlp.graph.fingerprint)
    assert (plan.cluster, plan.rules, plan.uneven) == (mlp.cluster, "shardy", "pad")
    both = replace(mlp, reward="step_time", instance="here").plan(chosen)
    assert both.partition == {"w1": 0, "x": 1}
    assert both.instance == "here"
    batch = replace(mlp, scope="inputs").plan(chosen)
    assert (plan.scope, both.scope, batch.scope) == ("variables", "variables", "inputs")
    assert batch.partition == {"x": 1}
    assert all(type(d) is int for d in both.partition.values())


def test_partitioning__another_scope_or_reward_shares_the_classes(mlp):
    assert (mlp.scope, mlp.reward, mlp.full_scope) == ("variables", "paper", "variables")
    timed, inputs = replace(mlp, reward="step_time"), replace(mlp, scope="inputs")
    assert timed.classes is inputs.classes is mlp.classes
    assert (timed.full_scope, inputs.full_scope) == ("all", "inputs")
    assert replace(inputs, reward="step_time").full_scope == "inputs"
    for problem in (mlp, timed, inputs):
        assert np.array_equal(problem.decidable(), problem.decidable(problem.full_scope))
        assert np.array_equal(problem.parameters(), problem.parameters(problem.full_scope))
    assert mlp.value(mlp.chosen(HIDDEN)) == pytest.approx(1.0)
    share = mlp.gain_seconds[mlp.chosen(HIDDEN)][0] / mlp.replicate_seconds
    assert timed.value(mlp.chosen(HIDDEN)) == pytest.approx(share)
    assert inputs.value(mlp.chosen(HIDDEN)) == pytest.approx(0.4)
    for key, value in (("scope", "all"), ("reward", "speed")):
        with pytest.raises(ParenvsError, match=f"unknown {key} '{value}'; known: "):
            replace(mlp, **{key: value})
        with pytest.raises(ParenvsError, match=f"unknown {key} '{value}'; known: "):
            load_partitioning("vgg-19", "A", **{key: value})


def test_partitioning__clusters_as_text(tmp_path):
    """A preset's name, a short form, an object and a file say the same as a ``Cluster``."""
    graph, server = load_graph("vgg-19"), Cluster.parse("1x4:v100")
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(server.to_json()))
    for text in ("1x4:v100", server.to_json(), path, str(path), server):
        assert Partitioning.build(graph, text).cluster == server
        assert load_partitioning("vgg-19", text) is load_partitioning("vgg-19", server)
    with pytest.raises(ClusterError, match="does not parse"):
        Partitioning.build(graph, "Z")
    with pytest.raises(ClusterError, match="does not parse"):
        load_partitioning("vgg-19", "Z")


PRODUCT = (
    "op.1 = f32[8,6]{1,0} dot(batch__x__.1, params__x__.1), lhs_contracting_dims={1}, "
    "rhs_contracting_dims={0}"
)


def test_partitioning__parameters_of_the_same_name():
    """``params["x"]`` and ``batch["x"]`` begin with the argument; keys that collide are refused."""
    parameters = {"params__x__": "f32[4,6]{1,0}", "batch__x__": "f32[8,4]{1,0}"}
    problem = toys.problem_of(toys.module(parameters, [], PRODUCT))
    assert problem.graph.paths == ["params/x", "batch/x"]
    graph = problem.graph
    alike = replace(graph, parameter_path=graph.parameter_path[[0, 0]])
    with pytest.raises(ParenvsError, match="1 variables or batch inputs share a path, like 'param"):
        load_partitioning(alike, "1x4:v100")


def test_partitioning__a_tensor_is_split_once():
    """One mesh axis: of a variable that nothing touches, too, only one dimension can be split."""
    text = toys.module(
        {"params__u__": "f32[4,6]{1,0}", "params__w__": "f32[4]{0}"},
        [],
        "op.1 = f32[4]{0} tanh(params__w__.1)",
    )
    problem = toys.problem_of(text)
    both = np.zeros(len(problem.classes), dtype=bool)
    both[[label(problem, "u", 0), label(problem, "u", 1)]] = True
    assert not problem.legal(both)


def test_partitioning__errors():
    graph = load_graph("vgg-19")
    with pytest.raises(ParenvsError, match=r"devices: partitioning needs at least 2, .* has 1"):
        Partitioning.build(graph, Cluster.parse("1x1:v100"))
    for options in ({"rules": "gspmd"}, {"uneven": "drop"}):
        with pytest.raises(ParenvsError, match=r"unknown (rules|uneven)"):
            Partitioning.build(graph, Cluster.parse("A"), **options)
    text = toys.module(
        {"params__i__": "s32[4]{0}", "batch__x__": "f32[4]{0}"},
        ["op.1 = f32[4]{0} convert(params__i__.1)"],
        "op.2 = f32[4]{0} add(op.1, batch__x__.1)",
    )
    with pytest.raises(ParenvsError, match=r"toy: no trainable variable; .*variables="):
        toys.problem_of(text)
    assert len(toys.problem_of(text, variables=["x"]).graph.variables) == 1


def test_partitioning__load_a_file_anew_when_it_changes(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text(toys.MLP)
    problem = load_partitioning(path, choose_cluster(None, 2))
    assert load_partitioning(str(path), choose_cluster(None, 2)) is problem
    assert problem.graph.name == "mine"
    assert problem.instance == str(path)  # a plan finds its file
    assert problem.plan(np.zeros(len(problem.classes), dtype=bool)).instance == str(path)
    path.write_text(toys.MLP.replace("[8,", "[16,"))
    again = load_partitioning(path, choose_cluster(None, 2))
    assert again.graph.shape(again.tensor["x"]) == (16, 4)


@pytest.mark.parametrize(
    ("instance", "words"),
    [
        ("t5-bse", "did you mean 't5-base'"),
        ("none.npz", "no such file"),
        pytest.param("x" * 5000, "unknown instance", id="long"),
        ("a\0b", "unknown instance"),
    ],
)
def test_partitioning__unknown_instance(instance, words):
    with pytest.raises(UnknownInstanceError, match=words):
        load_partitioning(instance, choose_cluster())
