"""Tied and frozen weights: what stages hold of them, and what they share."""

from __future__ import annotations

from dataclasses import replace

import brute_force
import numpy as np
import pytest
import toys
from cases import each

from parenvs import from_jax, problem
from parenvs.cluster import Cluster
from parenvs.graph.flow import Reads
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.profile import TiedWeights


@each("seed", range(20))
def test_tied__tables_by_definition(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 12))
    reads = brute_force.random_reads(rng, n)["tied"]
    tied = TiedWeights(reads, n)
    for first in range(n):
        for end in range(first + 1, n + 1):
            inside = [(r, [p for p in r.positions if first <= p < end]) for r in reads]
            again = [r for r, places in inside if places and r.positions[0] < first]
            shared = [r for r, p in inside if 0 < len(p) < len(r.positions) and r.trainable]
            assert tied.again_bytes(first, end) == sum(r.size for r in again if r.trainable)
            assert tied.frozen_bytes(first, end) == sum(r.size for r in again if not r.trainable)
            assert tied.shared_bytes(first, end) == sum(r.size for r in shared)


def embedding():
    """Four pivots; the first reads a table of 100 bytes, and the last reads it again."""
    profile = toys.chain([1.0] * 4, [2.0] * 4, [8.0] * 4, [100.0, 10.0, 10.0, 5.0])
    return replace(profile, tied=(Reads((0, 3), 100.0, True),))


def test_tied__both_stages_hold_the_table_and_sum_its_gradient():
    cluster = Cluster.parse(toys.shape(2, 2, 50.0, 10.0))
    once = Pipeline(embedding(), cluster, 2)
    held = replace(once, tied="held")
    plan = np.array([2]), np.array([2])
    assert (held.stage_memory(*plan) - once.stage_memory(*plan)).tolist() == [0, 2 * 100]
    before, after = once.stage_times(*plan).all_reduce, held.stage_times(*plan).all_reduce
    ring, exchange = (
        2 * 100 / (2 * 50.0),
        100 / 10.0,
    )  # the stage's own two devices; the other stage
    assert np.allclose(after - before, [exchange, 0, ring + exchange])
    one = np.zeros(0, dtype=int), np.zeros(0, dtype=int)
    assert held.with_stages(1).length(*one) == once.with_stages(1).length(*one)
    report = held.report(held.plan(*plan))
    assert [s.parameter_bytes for s in report.stages] == [110, 115]
    assert report.plan.to_json()["tied"] == "held" and "tied" not in once.plan(*plan).to_json()


def test_frozen__one_copy_and_no_gradient():
    cluster = Cluster.parse(toys.shape(2, 2, 50.0, 10.0))
    trained = Pipeline(toys.chain([1.0] * 3, [2.0] * 3, [8.0] * 3, [10.0, 7.0, 9.0]), cluster, 2)
    profile = replace(
        trained.profile, parameter_bytes=[10.0, 7.0, 0.0], frozen_bytes=[0.0, 0.0, 9.0]
    )
    frozen = Pipeline(profile, cluster, 2)
    plan = np.array([2]), np.array([2])
    assert frozen.report(frozen.plan(*plan)).legal  # a stage of frozen weights alone
    assert (trained.stage_memory(*plan) - frozen.stage_memory(*plan)).tolist() == [0, 9]
    assert frozen.stage_times(*plan).all_reduce[2] == 0


def losses():
    """The same network four times: plain, cast where it is read, cast at the top, tied."""
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def network(cast, params, tokens):
        x = cast(params["table"])[tokens]
        for weight in params["layers"]:
            x = jnp.tanh(x @ cast(weight))
        return x

    def low(weight):
        return weight.astype(jnp.bfloat16)

    def loss(x):
        return jnp.square(x.astype(jnp.float32)).mean()

    def inside(params, tokens):
        return loss(network(low, params, tokens))

    def at_the_top(params, tokens):
        return loss(network(lambda w: w, jax.tree.map(low, params), tokens))

    def tied(params, tokens):
        low_params = jax.tree.map(low, params)
        return loss(network(lambda w: w, low_params, tokens) @ low_params["table"].T)

    struct = jax.ShapeDtypeStruct
    params = {
        "table": struct((500, 64), jnp.float32),
        "layers": [struct((64, 64), jnp.float32) for _ in range(6)],
    }
    args = params, struct((32, 8), jnp.int32)
    return {f.__name__: from_jax(f, *args) for f in (inside, at_the_top, tied)}


def test_tied__casts_at_the_top_do_not_read():
    """They all counted for the first stage, and their results crossed every cut."""
    graphs = losses()
    inside, top = (problem(graphs[k], "1x2:v100", stages=2) for k in ("inside", "at_the_top"))
    counts = [p.profile.parameter_bytes[p.profile.parameter_bytes > 0] for p in (inside, top)]
    assert counts[0].tolist() == counts[1].tolist()
    assert top.profile.cut_bytes[:6].tolist() == [0] * 6  # behind the casts of the layers
    assert top.profile.parameter_bytes[:6].tolist() == [0] * 6
    import parenvs

    lengths = [parenvs.solve(p).cost for p in (inside, top)]
    assert lengths[0] == pytest.approx(lengths[1], rel=5e-3)  # the casts themselves take time


def test_tied__a_table_read_through_a_transposed_cast_is_tied():
    made = problem(losses()["tied"], "1x2:v100", stages=2)
    (reads,) = made.profile.tied
    assert reads.size == 4 * 500 * 64 and len(reads.positions) == 2 and reads.trainable
    assert made.tied == "held"
    held = made.variable_bytes(*np.array([[0, 15], [15, len(made.profile)]]))
    assert held.sum() == made.parameter_sum[-1] + reads.size
