"""Frozen weights: their gradients, updates and optimizer state leave the step."""

from __future__ import annotations

import numpy as np
import pytest

from parenvs import from_jax, problem
from parenvs.graph.graph import Phase, Role

jax = pytest.importorskip("jax")
jnp = jax.numpy


def shape(*dims):
    return jax.ShapeDtypeStruct(dims, jnp.float32)


def step(params, moments, x):
    """Three layers with momentum; ``body`` is what fine-tuning freezes."""

    def loss(params):
        hidden = jnp.tanh(x @ params["body"]["first"])
        hidden = jnp.tanh(hidden @ params["body"]["second"])
        return jnp.square(hidden @ params["head"]).mean()

    value, gradients = jax.value_and_grad(loss)(params)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradients)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments, value


def arguments():
    params = {"body": {"first": shape(16, 32), "second": shape(32, 32)}, "head": shape(32, 4)}
    return params, params, shape(8, 16)


def fine_tuned(params, moment, x):
    """The same step, written so that only the head is trained."""

    def loss(head):
        hidden = jnp.tanh(x @ params["body"]["first"])
        hidden = jnp.tanh(hidden @ params["body"]["second"])
        return jnp.square(hidden @ head).mean()

    value, gradient = jax.value_and_grad(loss)(params["head"])
    moment = 0.9 * moment + gradient
    return params["head"] - 0.1 * moment, moment, value


def dots(graph, phase):
    chosen = (graph.opcode == graph.opcodes.index("dot")) & (graph.phase == phase)
    return graph.flops[chosen].sum()


def test_freeze__as_if_written_so():
    whole = from_jax(step, *arguments())
    frozen = from_jax(step, *arguments(), frozen="body/*")
    params, _, x = arguments()
    written = from_jax(fine_tuned, params, params["head"], x)
    assert not frozen.complaint()
    names = [Role(role).name for role in frozen.parameter_role]
    assert names == ["FROZEN", "FROZEN", "VARIABLE", "OPTIMIZER", "BATCH"]
    assert [Role(role).name for role in written.parameter_role] == names
    assert frozen.paths[:4] == ["body/first", "body/second", "head", "head"]
    for phase in Phase:
        assert dots(frozen, phase) == dots(written, phase)
    assert dots(frozen, Phase.BACKWARD) < dots(whole, Phase.BACKWARD)
    assert len(frozen.outputs) == len(whole.outputs) - 4
    assert "2 frozen weights" in frozen.notes[0]
    problems = [problem(g, "1x2:v100", "partition") for g in (frozen, written, whole)]
    memory = [p.report(p.plan(np.zeros(len(p.classes), dtype=bool))) for p in problems]
    parts = [(m.memory.parameters, m.memory.optimizer, m.memory.gradients) for m in memory]
    assert parts[0] == parts[1]
    assert parts[0][0] == parts[2][0] == 4 * (16 * 32 + 32 * 32 + 32 * 4)
    assert parts[0][1] == 4 * 32 * 4 < parts[2][1]
