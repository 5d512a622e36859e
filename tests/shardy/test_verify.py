"""Plans against Shardy: legal ones agree, illegal ones are found out, wrong sources are refused."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from jax_versions import jax_that_verifies

from parenvs import ParenvsError, from_hlo, from_jax, load_graph, verify
from parenvs.agents.partition.exact import exact_partition
from parenvs.cluster import choose_cluster
from parenvs.shardy.verify import verify_plan
from parenvs.tasks.partition.problem import Partitioning, PartitionPlan, load_partitioning
from parenvs.tasks.pipeline.plan import PipelinePlan

jax = jax_that_verifies()

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from parenvs.graph.proto import Module, Wrapper  # noqa: E402
from parenvs.graph.reader import proto_of  # noqa: E402


def shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def lower(function, *args):
    return jax.jit(function, keep_unused=True).lower(*args)


def mlp(params, momentum, batch):
    """One step with momentum, in which every variable has a state of the same path."""

    def loss(params):
        hidden = jnp.square(batch["x"] @ params["up"] + params["up_bias"])
        return jnp.sum(jnp.square(hidden @ params["down"] + params["down_bias"]))

    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, jax.grad(loss)(params))
    return jax.tree.map(jnp.subtract, params, momentum), momentum


def mlp_args(width=8):
    sizes = {"up": (6, width), "up_bias": (width,), "down": (width, 4), "down_bias": (4,)}
    params = {name: shape(*size) for name, size in sizes.items()}
    return params, params, {"x": shape(10, 6)}


HIDDEN = {"up": 1, "up_bias": 0, "down": 0}


@pytest.fixture(scope="module")
def lowered():
    return lower(mlp, *mlp_args())


@pytest.fixture(scope="module")
def graph():
    return from_jax(mlp, *mlp_args())


def refused(words, call, *args):
    with pytest.raises(ParenvsError, match=words):
        call(*args)


def plan_of(graph, partition, devices=8, instance="mlp", **options):
    cluster = choose_cluster(devices=devices)
    return PartitionPlan(instance, graph.fingerprint, cluster, partition, **options)


def test_verify__a_legal_plan_agrees(graph, lowered):
    verification = verify(graph, plan_of(graph, HIDDEN), lowered)
    assert verification.agrees and verification.legal
    assert (verification.mesh, verification.decided, verification.compared) == (8, 1, 9)
    assert not (verification.disagreements or verification.reshards or verification.not_compared)
    assert verification.collectives == {"all_reduce": 1} and verification.predicted_all_reduces == 1
    for words in ("Shardy agrees", "9 of 9 inputs", "1 all-reduce, as predicted"):
        assert words in verification.text()
    assert json.loads(json.dumps(verification.to_json()))["agrees"] is True


def test_verify__a_batch_plan_agrees(graph, lowered):
    verification = verify(graph, plan_of(graph, {"x": 0}, scope="inputs"), lowered)
    assert verification.agrees and verification.mesh == 2  # 10 samples
    assert verification.all_reduces == verification.predicted_all_reduces == 4
    spread = verify(graph, plan_of(graph, {"x": 1}, scope="inputs"), lowered)
    assert spread.agrees  # "up" follows, unnamed


def test_verify__a_missing_variable_is_found(graph, lowered):
    verification = verify(graph, plan_of(graph, {"up": 1}), lowered)
    assert not verification.agrees and not verification.legal
    assert {(x.path, x.ours, x.shardy) for x in verification.disagreements} == {
        ("up_bias", (), (0,)), ("down", (), (0,)),
    }  # fmt: skip
    assert "7 of 9 inputs" in verification.text()
    assert "down (plan: none; Shardy: 0)" in verification.text()
    content = json.loads(json.dumps(verification.to_json()))
    assert content["disagreements"][0] == {"path": "down", "ours": [], "shardy": [0]}


def test_verify__a_conflict_is_resharded(graph, lowered):
    verification = verify(graph, plan_of(graph, {**HIDDEN, "down_bias": 0}), lowered)
    assert verification.reshards and not verification.agrees and not verification.legal
    assert verification.mesh == 4
    assert "Shardy disagrees" in verification.text() and "Resharded: " in verification.text()
    alone = verify(graph, plan_of(graph, {"down": 1, "down_bias": 0}), lowered)
    assert alone.agrees and not alone.reshards


def test_verify__every_kind_of_source_gives_the_same(graph, lowered, tmp_path):
    data = proto_of(lowered)
    (tmp_path / "a.pb").write_bytes(data)
    wrapper = Wrapper(module=Module.FromString(data))
    (tmp_path / "b.pb").write_bytes(wrapper.SerializeToString())
    text = tmp_path / "c.txt"
    text.write_text(lowered.compiler_ir("hlo").as_hlo_text(), encoding="utf-8")
    plan = plan_of(graph, HIDDEN)
    expected = verify(graph, plan, lowered)
    assert verify(graph, plan, tmp_path / "a.pb") == expected
    assert verify(graph, plan, str(tmp_path / "b.pb")) == expected
    for path in (tmp_path / "a.pb", text):  # the plan's own instance
        own = plan_of(load_graph(path), HIDDEN, instance=str(path))
        assert replace(verify_plan(own), instance="mlp") == expected
    assert verify_plan(plan, lowered) == expected


def test_verify__tuples_among_the_parameters_are_flattened(tmp_path):
    path = tmp_path / "tuples.txt"
    path.write_text(
        """HloModule m

ENTRY main {
  p = (f32[4,6]{1,0}, (f32[6,8]{0,1}, s32[])) parameter(0)
  x = f32[4,8] parameter(1)
  w = f32[4,6] get-tuple-element(p), index=0
  q = (f32[6,8], s32[]) get-tuple-element(p), index=1
  v = f32[6,8] get-tuple-element(q), index=0
  d = f32[4,8] dot(w, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  c = f32[4,8] copy(d)
  y = f32[4,8] add(c, x)
  q2 = (f32[4,6], f32[4,8]) tuple(w, d)
  ROOT t = ((f32[4,6], f32[4,8]), f32[4,8]) tuple(q2, y)
}
"""
    )
    graph = from_hlo(path, variables=0, batch="x")
    second = graph.paths[1]
    plan = plan_of(graph, {second: 1, graph.paths[3]: 1}, instance=str(path))
    verification = verify(graph, plan)  # to x through a copy, of which Shardy knows nothing
    assert verification.agrees and verification.compared == 3
    wrong = verify(graph, replace(plan, partition={second: 0}))
    assert [(x.path, x.shardy) for x in wrong.disagreements] == [(graph.paths[0], (1,))]


def test_verify__what_is_named_when_reading_does_not_matter(lowered):
    graph = from_jax(mlp, *mlp_args(), variables="up*", batch_size=5)
    plan = plan_of(graph, HIDDEN)
    assert verify(graph, plan, lowered).agrees
    with pytest.raises(ParenvsError, match="fingerprint"):
        verify_plan(plan, lowered)  # read with the defaults


def test_verify__classes_that_no_mesh_divides_are_left_out():
    def function(params, batch):
        return params["odd"].reshape(4, 9).sum(0), batch["x"] @ params["even"]

    args = {"odd": shape(9, 4), "even": shape(6, 8)}, {"x": shape(4, 6)}
    graph, lowered = from_jax(function, *args), lower(function, *args)
    both = verify(graph, plan_of(graph, {"odd": 0, "even": 1}), lowered)
    assert both.agrees and both.legal and both.mesh == 8
    assert (both.decided, both.compared) == (1, 2)
    assert both.not_compared == {"dimension 0 of odd": "size 4 in its class is no multiple of 8"}
    assert "Not compared: dimension 0 of odd" in both.text()
    assert both.all_reduces == both.predicted_all_reduces == 0  # the sum is left out as well
    alone = verify(graph, plan_of(graph, {"odd": 0}), lowered)
    assert not alone.agrees and alone.decided == 0  # nothing was checked


def test_verify__all_reduces_count_as_the_judge_does():
    inner = jax.jit(lambda x, w: jnp.tanh(x @ w @ w.T))

    def function(params, batch):
        x = inner(inner(batch["x"], params["w"]), params["w"])
        return lax.scan(lambda c, _: (jnp.tanh(c @ params["w"] @ params["w"].T), None), x, length=5)

    args = {"w": shape(6, 8)}, {"x": shape(4, 6)}
    graph = from_jax(function, *args)
    verification = verify(graph, plan_of(graph, {"w": 1}), lower(function, *args))
    # two calls and a loop
    assert verification.agrees
    assert verification.all_reduces == verification.predicted_all_reduces == 3

    def largest(params, batch):
        return jnp.argmax(batch["x"] @ params["w"], axis=1)

    graph = from_jax(largest, *args)
    verification = verify(graph, plan_of(graph, {"w": 1}), lower(largest, *args))
    assert verification.all_reduces == verification.predicted_all_reduces == 2  # values, indices


@pytest.mark.thorough
@pytest.mark.parametrize("rules", ["automap", pytest.param("shardy", marks=pytest.mark.slow)])
def test_verify__exact_plan_of_a_shipped_graph_agrees(rules):
    problem = load_partitioning("vgg-19", choose_cluster(devices=8), rules)
    plan = problem.plan(exact_partition(problem).report.chosen)
    verification = verify_plan(plan)
    assert verification.agrees and verification.mesh == 8 and verification.compared == 116
    assert verification.all_reduces == verification.predicted_all_reduces > 0
    incomplete = dict(sorted(plan.partition.items())[1:])
    assert not verify(problem.graph, replace(plan, partition=incomplete)).agrees


def test_verify__random_legal_plans_agree(graph, lowered):
    cluster = choose_cluster(devices=2)
    problem = Partitioning.build(graph, cluster, reward="step_time", instance="mlp")
    rng = np.random.default_rng(0)
    for _ in range(5):
        chosen = np.zeros(len(problem.classes), dtype=bool)
        for label in rng.permutation(problem.decidable("all")):
            chosen[label] = not chosen[problem.classes.rivals(label)].any()
        plan = problem.plan(chosen)
        verification = verify(graph, plan, lowered)
        assert verification.agrees and verification.decided
        assert verification.all_reduces == verification.predicted_all_reduces


def test_verify__a_source_of_another_module(graph, tmp_path):
    other = lower(mlp, *mlp_args(width=16))
    plan = plan_of(graph, HIDDEN)
    refused("the lowered function: not the module that the plan's", verify, graph, plan, other)
    path = tmp_path / "other.pb"
    path.write_bytes(proto_of(other))
    refused(r"other\.pb: not the module", verify, graph, plan, path)
    refused("fingerprint: the plan is for", verify, from_hlo(path), plan)
    refused("fingerprint: the plan is for", verify_plan, plan, path)


def test_verify__sources_that_are_none(graph, lowered, tmp_path):
    path = tmp_path / "mlp.npz"
    graph.save(path)
    plan = plan_of(graph, HIDDEN, instance=str(path))
    refused(r"mlp\.npz: holds arrays only.*\.pb or \.txt", verify_plan, plan)
    assert verify_plan(plan, lowered).agrees
    refused("unknown instance 'mlp'", verify, graph, plan_of(graph, HIDDEN))
    refused(r"source: give what .* not 3", verify, graph, plan, 3)


def test_verify__plans_that_cannot_be_verified(graph, lowered):
    pipeline = PipelinePlan("mlp", graph.fingerprint, choose_cluster(devices=2), (1,), (1,))
    words = "task: pipeline has no decisions; plan with --task partition"
    refused(words, verify, graph, pipeline, lowered)
    partitions = {"no variable or batch input 'upp'": {"upp": 1}, "has no dimension 2": {"up": 2}}
    for words, partition in partitions.items():
        refused(words, verify, graph, plan_of(graph, partition), lowered)
    args = {"w": shape(1, 4)}, {"x": shape(4)}

    def flat(params, batch):
        return params["w"] + batch["x"]

    graph = from_jax(flat, *args)
    refused("has size 1", verify, graph, plan_of(graph, {"w": 0}), lower(flat, *args))


@pytest.mark.thorough
def test_verify__optimized_modules_are_refused(lowered, tmp_path):
    path = tmp_path / "optimized.txt"
    path.write_text(lowered.compile().as_text(), encoding="utf-8")
    graph = load_graph(path)
    plan = plan_of(graph, {}, instance=str(path))
    refused(r"mhlo\.fusion, of which Shardy knows nothing", verify, graph, plan)


def test_verify__without_jax(graph, lowered, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    words = r"needs the extra 'jax'.*pip install 'parenvs\[jax"
    refused(words, verify, graph, plan_of(graph, HIDDEN), lowered)
    refused(words, verify_plan, plan_of(graph, HIDDEN))


def test_verify__with_a_jax_that_is_too_old(graph, lowered, monkeypatch):
    import jax.extend.mlir

    monkeypatch.delattr(jax.extend.mlir, "hlo_to_stablehlo")
    words = r"needs the extra 'jax' \(cannot import name 'hlo_to_stablehlo'"
    refused(words, verify, graph, plan_of(graph, HIDDEN), lowered)
