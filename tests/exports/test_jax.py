"""Plans as JAX's shardings: specs by path, refusals by name, and the example's equal losses."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from jax_versions import jax_that_verifies

from parenvs import HybridPlan, HybridStage, ParenvsError, from_jax
from parenvs.clock.compilation import compile_plan
from parenvs.cluster import Cluster, choose_cluster
from parenvs.exports.formats import export
from parenvs.exports.stages import layout_of
from parenvs.tasks.partition.problem import PartitionPlan
from parenvs.tasks.pipeline.plan import PipelinePlan

jax = jax_that_verifies()

import jax.numpy as jnp  # noqa: E402

from parenvs.exports.jax import document, shardings  # noqa: E402

ROOT = Path(__file__).parents[2]


def step(params, momentum, batch):
    """Two layers, of which the heads of an attention are none."""

    def loss(params):
        hidden = jax.nn.relu(batch["x"] @ params["up"] + params["up_bias"])
        return jnp.sum(jnp.square(hidden @ params["down"] + params["down_bias"]))

    value, gradients = jax.value_and_grad(loss)(params)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
    return jax.tree.map(jnp.subtract, params, momentum), momentum, value


def arguments(width=8, batch=8):
    def shape(*sizes):
        return jax.ShapeDtypeStruct(sizes, jnp.float32)

    params = {"up": shape(6, width), "up_bias": shape(width)}
    params |= {"down": shape(width, 4), "down_bias": shape(4)}
    return params, params, {"x": shape(batch, 6)}


@pytest.fixture(scope="module")
def graph():
    return from_jax(step, *arguments(), name="mlp")


HIDDEN = {"up": 1, "up_bias": 0, "down": 0}


def plan_of(graph, partition=HIDDEN, scope="variables", devices=4):
    cluster = choose_cluster(devices=devices)
    return PartitionPlan("mlp", graph.fingerprint, cluster, partition, scope)


def hybrid_of(graph, tp=2, devices=4, **options):
    stage = HybridStage(((0, 1),), devices, tp=tp, zero=options.pop("zero", 0))
    plan = HybridPlan(
        "mlp", graph.fingerprint, Cluster.parse(f"1x{devices}:v100"), "roofline", "fp32",
        batch=8, micro_batch=8 * tp // devices, stages=(stage,),
    )  # fmt: skip
    return replace(plan, **options)


def specs(sharding):
    """Argument and path of each input that is split -> its spec."""
    rows = document(sharding)["inputs"]
    return {(x["argument"], x["path"]): x["spec"] for x in rows if any(x["spec"])}


def mesh(*sizes):
    """What ``shardings`` asks of a mesh before it makes any sharding."""
    names = ("a", "b", "c")[: len(sizes)]
    return SimpleNamespace(shape=dict(zip(names, sizes, strict=True)), axis_names=names)


def test_sharding__one_axis(graph):
    sharding = layout_of(plan_of(graph), graph)
    split = {"up": [None, "model"], "up_bias": ["model"], "down": ["model", None]}
    assert specs(sharding) == {(a, p): s for a in (0, 1) for p, s in split.items()}
    assert sharding.outputs[:8] == sharding.inputs[:8]  # outputs are split as what they replace
    assert sharding.outputs[8] == () and sharding.donated == tuple(range(8))
    data = layout_of(plan_of(graph, {"x": 0}, "inputs"), graph)
    assert specs(data) == {(2, "x"): ["data", None]}


def test_sharding__two_axes_and_shared_states(graph):
    both = layout_of(hybrid_of(graph), graph)
    assert [(axis.name, axis.size) for axis in both.axes] == [("data", 2), ("model", 2)]
    assert specs(both)[2, "x"] == ["data", None] and specs(both)[0, "up"] == [None, "model"]
    states = specs(layout_of(hybrid_of(graph, zero=1), graph))
    assert states[1, "up"] == ["data", "model"] and states[0, "up"] == [None, "model"]
    shared = layout_of(hybrid_of(graph, zero=3), graph)
    assert specs(shared)[0, "up"] == ["data", "model"]
    assert shared.outputs[:8] == shared.inputs[:8]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda g: hybrid_of(g, context=2), "context: shardings of inputs"),
        (lambda g: replace(hybrid_of(g), stages=hybrid_of(g).stages * 2), "JAX's shardings have"),
        (lambda g: plan_of(g, {"up": 1}), "illegal"),
        (lambda g: plan_of(g, HIDDEN, devices=3), "f32[6,8], by 3; dimension 0 of up_bias"),
        (lambda g: replace(plan_of(g), fingerprint="sha256:0"), "fingerprint"),
        (
            lambda g: PipelinePlan("mlp", "x", choose_cluster(None), (1,), (4,)),
            "has no layout; plan",
        ),
    ],
)
def test_sharding__refuses_by_name(graph, change, words):
    with pytest.raises(ParenvsError, match=re.escape(words)):
        layout_of(change(graph), graph).check_even()


def test_shardings__refuses_other_meshes_and_trees(graph):
    plan = plan_of(graph)
    params, momentum, _ = arguments()
    renamed = {**params, "bias": params["down_bias"]}
    del renamed["down_bias"]
    both = hybrid_of(graph, zero=1)
    for words, *given in (
        (r"for model 4 devices, the mesh is \(8,\)", plan, mesh(8), arguments()),
        (r"for model 4 devices, the mesh is \(2, 2\)", plan, mesh(2, 2), arguments()),
        ("the plan has no 'bias'; the tree has no 'down_bias'", plan, mesh(4), renamed),
        ("the tree has no 'x'", plan, mesh(4), (params, momentum)),
        (r"down has the shape \(16, 4\), but was planned as", plan, mesh(4), arguments(width=16)),
        ("give the tuple of all", both, mesh(2, 2), params),
    ):
        with pytest.raises(ParenvsError, match=words):
            shardings(*given, graph)


def test_document__is_json_with_a_line_each(graph, tmp_path):
    graph.save(tmp_path / "mlp.npz")
    plan = replace(plan_of(graph), instance=str(tmp_path / "mlp.npz"))
    text = export(plan, "jax").text
    assert json.loads(text)["mesh"] == {"model": 4} and len(json.loads(text)["inputs"]) == 9
    (line,) = [x for x in text.splitlines() if '"path": "down"' in x and '"argument": 1' in x]
    assert '"role": "optimizer"' in line and '"spec": ["model", null]' in line
    with pytest.raises(ParenvsError, match=r"--to: no framework 'jaxx' \(did you mean 'jax'\?\)"):
        export(plan, "jaxx")


@pytest.mark.thorough
def test_compile__as_predicted(graph):
    lowered = jax.jit(step, keep_unused=True).lower(*arguments())
    found = compile_plan(hybrid_of(graph), lowered, graph, timeout_seconds=300)
    assert found.agrees and not found.changed and found.asked == 18
    assert found.all_reduces.arrays == found.predicted.arrays
    assert found.all_reduces.bytes == found.predicted.bytes
    assert found.argument_bytes == found.predicted.argument_bytes
    assert "keeps 18 of 18 shardings" in found.text() and "data 2 x model 2" in found.text()
    assert json.loads(json.dumps(found.to_json()))["agrees"] is True


@pytest.mark.slow
def test_example__losses_are_those_of_one_device():
    """Twenty steps under operator, data and hybrid plans on 8 virtual devices."""
    quick = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    ended = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "jax_transformer.py")],
        env={**os.environ, "XLA_FLAGS": quick, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    lines = ended.stdout.splitlines()
    first, last = map(float, re.findall(r"\d\.\d{4}", lines[0]))
    assert last < first / 2
    names = [line.split(":")[0] for line in lines[1:]]
    assert names == ["operator", "data", "hybrid", "operator, then hybrid"]
    assert all(float(line.rsplit(" ", 1)[1]) < 1e-4 for line in lines[1:])
    assert "5 parameters split over 8," in lines[1] and "5 parameters split over 2x4" in lines[3]
