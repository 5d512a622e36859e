"""The problem of partitioning: step time, returns, and choices as paths and back."""

import copy
import json
from dataclasses import replace

import numpy as np
import partition_toys as toys
import pytest
from cases import each, slow

from parenvs import (
    ParenvsError,
    Partitioning,
    PartitionPlan,
    load_graph,
)
from parenvs.cluster import Cluster, choose_cluster
from parenvs.errors import ClusterError, UnknownInstanceError
from parenvs.tasks.partition import problem as problems
from parenvs.tasks.partition.classes import full_scope
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


@each(("devices", "hidden"), [(2, 1 / 2), (4, 2 / 6), (5, 2 / 6), (8, 1 / 6)])
def test_partitioning__device_share_of_six(devices, hidden):
    problem = toys.problem_of(toys.MLP, devices)
    share, batch = problem.device_share, {2: 1 / 2, 4: 1 / 4, 5: 2 / 8, 8: 1 / 8}
    assert share[label(problem, "w1", 1)] == pytest.approx(hidden)
    assert share[label(problem, "x", 0)] == batch[devices]


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


def test_partitioning__device_share_equals_loop():
    for problem in (toys.shipped("t5-base"), *(toys.random_problem(s) for s in range(10))):
        slow = toys.slow_share(problem)
        assert problem.device_share.tolist() == pytest.approx([slow[c] for c in range(len(slow))])


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


@pytest.mark.thorough
@each("seed", range(40))
def test_partitioning__step_seconds_one_by_one_on_random_programs(seed):
    problem, rng = toys.random_problem(seed, steps=12), np.random.default_rng(seed)
    for _ in range(5):
        agree(problem, toys.random_choice(problem, rng))


@pytest.mark.parametrize(("name", "rules"), [("vgg-19", "shardy"), *slow(("t5-base", "automap"))])
def test_partitioning__step_seconds_one_by_one_on_shipped_graphs(name, rules):
    problem, rng = toys.shipped(name, rules), np.random.default_rng(0)
    for _ in range(2):
        agree(problem, toys.random_choice(problem, rng))


@pytest.mark.parametrize("text", [toys.LOOP, toys.BRANCHES])
def test_partitioning__step_seconds_with_loops_and_branches(text):
    """An all-reduce in a loop runs in each trip; one in a branch that is not taken never does."""
    problem = toys.problem_of(text)
    choices = np.eye(len(problem.classes), dtype=bool)
    for chosen in choices:
        if problem.legal(chosen):
            agree(problem, chosen)


def test_partitioning__all_reduces_in_a_loop_run_in_each_trip():
    """x @ w in a loop of five trips, contracted over the width that a device has half of."""
    body = toys.LOOP.split("ENTRY")[0].replace("constant(9)", "constant(7)")
    body = body.replace("dot(x.1, z.1)", "dot(z.1, z.1)")
    text = body + toys.module(
        {"params__w__": "f32[4,4]{1,0}"},
        [
            "start.3 = s32[] constant(2)",
            "zero.3 = f32[] constant(0)",
            "sum.3 = f32[4,4]{1,0} broadcast(zero.3), dimensions={}",
            "t.3 = (s32[], f32[4,4]{1,0}, f32[4,4]{1,0}) tuple(start.3, sum.3, params__w__.1)",
            "loop.3 = (s32[], f32[4,4]{1,0}, f32[4,4]{1,0}) while(t.3), condition=condition, "
            "body=body",
        ],
        "out.3 = f32[4,4]{1,0} get-tuple-element(loop.3), index=1",
    ).replace("HloModule m\n", "")
    # z is squared: its dimensions are tied to each other, and nothing can be split. Read the
    # seconds of an all-reduce of the product, as if it could.
    problem = toys.problem_of(text)
    partial = problem.classes.factors.instruction[problem.classes.factors.partial].tolist()
    names = [row[0] for row in toys.instructions(problem.graph)]
    assert [names[i] for i in partial] == ["dot"]
    inner = problem.classes.factor_class[problem.classes.factors.partial][0]
    assert problem.all_reduce_seconds[inner] == pytest.approx(5 * 2 * 64 * (1 / 2) / 5e8)


def test_partitioning__slow_links_between_servers():
    """An all-reduce of all devices goes over the links between servers if there are several."""
    graph = toys.read(toys.MLP)
    one, two = (
        Partitioning.build(graph, Cluster.parse(f"{shape}:v100,10Gbps,100GB/s"))
        for shape in ("1x4", "2x2")
    )
    np.testing.assert_allclose(two.all_reduce_seconds, one.all_reduce_seconds * 80, rtol=1e-12)
    assert np.array_equal(two.saved_seconds, one.saved_seconds)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["vgg-19", "bert-48"])
def test_partitioning__many_plans_at_once(name):
    """(..., C) in, (...) out, as one by one; the step time is linear."""
    problem, rng = toys.shipped(name), np.random.default_rng(3)
    table = np.array([toys.random_choice(problem, rng) for _ in range(6)])
    stacked = table.reshape(2, 3, -1)
    seconds = problem.step_seconds(stacked)
    assert seconds.shape == (2, 3)
    assert seconds.ravel() == pytest.approx([float(problem.step_seconds(row)) for row in table])
    first, second = table[0] & ~table[1], table[1] & ~table[0]
    both = problem.step_seconds(first | second) + problem.replicate_seconds
    assert both == pytest.approx(problem.step_seconds(first) + problem.step_seconds(second))
    for reward in ("paper", "step_time"):
        for scope in SCOPES:
            returns = problem.returns_of(reward, scope)
            values = returns.value(stacked)
            assert values.shape == (2, 3)
            assert values.ravel() == pytest.approx([float(returns.value(row)) for row in table])
        asked = toys.asked(problem, reward=reward)
        values = asked.value(stacked)
        assert values.ravel() == pytest.approx([float(asked.value(row)) for row in table])


@each("scope", SCOPES)
@each("seed", range(8))
def test_partitioning__returns_one_by_one(seed, scope):
    """0.1 for each dimension, 0.3 more if it is partitioned; the share of the step saved."""
    problem, rng = toys.random_problem(seed), np.random.default_rng(seed)
    closure = toys.Closure(problem, scope)
    for _ in range(5):
        chosen = toys.random_choice(problem, rng)
        split = sum(
            bool(chosen[c]) and not stuck
            for c, stuck in zip(closure.label, closure.stuck, strict=True)
        )
        paper = 0.1 * (len(closure.label) - split) + 0.4 * split
        assert problem.returns_of("paper", scope).value(chosen) == pytest.approx(paper)
        share = 1 - problem.step_seconds(chosen) / problem.replicate_seconds
        assert problem.returns_of("step_time", scope).value(chosen) == pytest.approx(share)


def test_partitioning__scopes(mlp):
    assert [mlp.graph.paths[i] for i in mlp.parameters("variables")] == ["w1", "w2"]
    assert [mlp.graph.paths[i] for i in mlp.parameters("inputs")] == ["x", "y"]
    assert [mlp.graph.paths[i] for i in mlp.parameters("all")] == ["w1", "w2", "x", "y"]
    batch, inner = label(mlp, "x", 0), label(mlp, "x", 1)
    hidden, output = label(mlp, "w1", 1), label(mlp, "w2", 1)
    assert label(mlp, "w1", 0) == inner
    assert mlp.decidable("variables").tolist() == sorted([inner, hidden, output])
    assert mlp.decidable("inputs").tolist() == sorted([batch, inner, output])
    assert mlp.decidable("all").tolist() == sorted([batch, inner, hidden, output])
    counts = mlp.counts("all")
    assert [counts[c] for c in (batch, inner, hidden, output)] == [2, 2, 2, 2]
    counts = mlp.counts("variables")
    assert [counts[c] for c in (batch, inner, hidden, output)] == [0, 1, 2, 1]
    assert full_scope("inputs", "paper") == full_scope("inputs", "step_time") == "inputs"
    assert full_scope("variables", "paper") == "variables"
    assert full_scope("variables", "step_time") == "all"


def test_partitioning__weights_by_hand(mlp):
    base, weights = mlp.returns
    assert base == pytest.approx(0.4)
    assert weights[label(mlp, "w1", 1)] == pytest.approx(0.6)
    assert weights[label(mlp, "w1", 0)] == pytest.approx(0.3)
    assert weights[label(mlp, "x", 0)] == 0
    base, weights = toys.timed(mlp).returns
    assert base == 0
    assert weights == pytest.approx(mlp.gain_seconds / mlp.replicate_seconds)
    with pytest.raises(ParenvsError, match="reward must be one of"):
        mlp.returns_of("speed", "all")


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
        with pytest.raises(ParenvsError, match=f"{key} must be one of .* not '{value}'"):
            replace(mlp, **{key: value})
        with pytest.raises(ParenvsError, match=f"{key} must be one of .* not '{value}'"):
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


def test_partitioning__state_of_the_same_name():
    """``params["x"]`` and ``moments["x"]`` have one path too; plans mean the variable."""
    parameters = {
        "params__x__": "f32[4,6]{1,0}",
        "moments__x__": "f32[4,6]{1,0}",
        "batch__y__": "f32[8,4]{1,0}",
    }
    lines = [
        PRODUCT.replace("batch__x", "batch__y"),
        "op.2 = f32[4,6]{1,0} tanh(moments__x__.1)",  # not tied to the variable
        "op.3 = f32[4,6]{1,0} tanh(params__x__.1)",
    ]
    root = "t.1 = (f32[4,6]{1,0}, f32[4,6]{1,0}, f32[8,6]{1,0}) tuple(op.3, op.2, op.1)"
    problem = toys.problem_of(toys.module(parameters, lines, root))
    assert problem.graph.paths == ["x", "x", "y"]
    variable = problem.graph.parameter_tensor[0]
    assert problem.tensor == {"x": variable, "y": problem.graph.parameter_tensor[2]}
    for c in problem.decidable("all"):
        chosen = np.zeros(len(problem.classes), dtype=bool)
        chosen[c] = True
        assert np.array_equal(problem.chosen(problem.partition(chosen, "all")), chosen)


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


@pytest.mark.parametrize("uneven", ["pad", "forbid"])
def test_partitioning__uneven(uneven):
    problem = toys.problem_of(toys.MLP, devices=4, uneven=uneven)
    hidden, batch = label(problem, "w1", 1), label(problem, "x", 0)
    assert (hidden in problem.decidable("variables")) == (uneven == "pad")
    assert batch in problem.decidable("all")


def test_partitioning__errors():
    graph = load_graph("vgg-19")
    with pytest.raises(ParenvsError, match=r"devices: partitioning needs at least 2, .* has 1"):
        Partitioning.build(graph, Cluster.parse("1x1:v100"))
    for options in ({"rules": "gspmd"}, {"uneven": "drop"}):
        with pytest.raises(ParenvsError, match="must be one of"):
            Partitioning.build(graph, Cluster.parse("A"), **options)
    text = toys.module(
        {"params__i__": "s32[4]{0}", "batch__x__": "f32[4]{0}"},
        ["op.1 = f32[4]{0} convert(params__i__.1)"],
        "op.2 = f32[4]{0} add(op.1, batch__x__.1)",
    )
    with pytest.raises(ParenvsError, match=r"toy: no trainable variable; .*variables="):
        toys.problem_of(text)
    assert len(toys.problem_of(text, variables=["x"]).graph.variables) == 1


@each(
    ("cluster", "devices", "words"),
    [
        (None, 1, "devices: partitioning needs at least 2, not 1"),
        (None, 0, "devices: partitioning needs at least 2, not 0"),
        (None, -8, "devices: partitioning needs at least 2, not -8"),
        (None, "8", "devices"),
        (None, 2.5, "devices|2.5"),
        ("A", 8, "devices: 8 asked for, but the cluster has 16"),
        ("Z", None, "'Z' does not parse"),
        ({"servers": 1}, None, "cluster"),
    ],
)
def test_partitioning__bad_clusters(cluster, devices, words):
    with pytest.raises(ParenvsError, match=words):
        choose_cluster(cluster, devices)


def test_partitioning__choose_cluster():
    assert choose_cluster() == Cluster.parse("1x8:v100")
    assert choose_cluster(None, 4) == Cluster.parse("1x4:v100")
    assert choose_cluster("A") == choose_cluster("A", 16) == Cluster.parse("A")
    assert choose_cluster(Cluster.parse("B")) == Cluster.parse("B")
    assert choose_cluster(toys.toy_cluster(3)).devices == 3


def test_partitioning__load():
    """The same arguments give the same object, whatever the cluster's form."""
    problems._cached.cache_clear()  # classes found by other tests may be gone
    problem = load_partitioning("vgg-19", choose_cluster("A"))
    assert load_partitioning("vgg-19", choose_cluster("2x8:v100,25Gbps")) is problem
    assert load_partitioning("vgg-19", choose_cluster("A"), "automap") is not problem
    assert load_partitioning("vgg-19", choose_cluster("A"), uneven="forbid") is not problem
    assert copy.deepcopy(problem) is problem
    timed = load_partitioning("vgg-19", "A", reward="step_time")
    assert timed is not problem
    assert timed.classes is problem.classes
    assert load_partitioning("vgg-19", "A", reward="step_time") is timed
    inputs = load_partitioning("vgg-19", "A", scope="inputs")
    assert (inputs.scope, inputs.classes is problem.classes) == ("inputs", True)
    assert {p.instance for p in (problem, timed, inputs)} == {"vgg-19"}


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


def test_partitioning__profiles_are_no_graphs(tmp_path):
    """A chain has no instructions; the message must not ask for what was given."""
    path = tmp_path / "chain.csv"
    path.write_text("name,forward_ms,backward_ms,cut_bytes,parameter_bytes\n")
    with pytest.raises(ParenvsError) as error:
        load_partitioning(path, choose_cluster())
    assert "must end in .csv" not in str(error.value)


def test_partitioning__memory_limit():
    problem = toys.problem_of(toys.MLP)
    assert problem.memory_limit == pytest.approx(0.9e6)
    bigger = replace(problem.cluster.device, memory_bytes=2e6)
    cluster = replace(problem.cluster, device=bigger)
    assert Partitioning.build(problem.graph, cluster).memory_limit == pytest.approx(1.8e6)
