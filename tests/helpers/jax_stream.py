"""A JAX module on shuffled samples with dropout, under one plan after another, beside one device.

Runs by itself, as JAX counts devices as it starts; prints the largest relative difference of a
loss. Ids are checked inside.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np

import parenvs
from parenvs.exports.jax import shardings
from parenvs.exports.stream import Stream

SAMPLES, BATCH, WIDTH, STEPS = 22, 8, 16, 2
DATA, OPERATOR = "data", "operator"
ORDER = ((DATA, 4), (OPERATOR, 2), (DATA, 2), (OPERATOR, 4), (DATA, 4), (OPERATOR, 2))
"""Plans, and on how many devices; each mesh begins at another device than the one before."""


def step(params, batch):
    """Gradient descent on a product of two matrices, with a mask between them."""

    def loss(params):
        hidden = jax.nn.relu(batch["x"] @ params["up"]) * batch["mask"]
        return jnp.mean(jnp.square(hidden @ params["down"] - batch["x"]))

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


def data(stream):
    """Samples of the next step, and masks that belong to them."""
    x = np.random.default_rng(0).normal(size=(SAMPLES, 8)).astype(np.float32)[stream.ids()]
    keys = jax.random.wrap_key_data(stream.keys().view("uint32").reshape(-1, 2))
    mask = jax.vmap(lambda key: jax.random.bernoulli(key, 0.8, (WIDTH,)))(keys)
    return {"x": x, "mask": np.asarray(mask, np.float32) / np.float32(0.8)}


def first():
    rng = np.random.default_rng(1)
    shapes = {"up": (8, WIDTH), "down": (WIDTH, 8)}
    return {name: rng.normal(size=x).astype(np.float32) / 4 for name, x in shapes.items()}


def main():
    alone, params = Stream(SAMPLES, BATCH, 3), first()
    curve, ids = [], []
    for _ in range(len(ORDER) * STEPS):
        ids += alone.ids().tolist()
        params, value = jax.jit(step)(params, data(alone))
        curve.append(float(value))
        alone.advance()
    graph = parenvs.from_jax(step, first(), data(alone), name="mlp")
    plans, scopes = {}, {OPERATOR: "variables", DATA: "inputs"}
    for name, count in ORDER:
        problem = parenvs.problem(
            graph, f"1x{count}:v100", task="partition", scope=scopes[name], uneven="forbid",
            reward="step_time",
        )  # fmt: skip
        plans[name, count] = parenvs.solve(problem, "exact").plan
    params, state, found, seen = first(), Stream(SAMPLES, BATCH, 3).state_dict(), [], []
    for number, (name, count) in enumerate(ORDER):
        stream = Stream(SAMPLES, BATCH, 9)
        stream.load_state_dict(state)
        mesh = jax.sharding.Mesh(np.roll(jax.devices(), number)[:count], ("x",))
        own = shardings(plans[name, count], mesh, (first(), data(stream)), graph)
        before = jax.tree.map(np.asarray, params)
        params = jax.device_put(params, own[0])
        for moved, old in zip(jax.tree.leaves(params), jax.tree.leaves(before), strict=True):
            assert moved.sharding.device_set == set(mesh.devices)
            assert (np.asarray(moved) == old).all()
        run = jax.jit(step, out_shardings=(own[0], None))
        for _ in range(STEPS):
            seen += stream.ids().tolist()
            params, value = run(params, jax.device_put(data(stream), own[1]))
            found.append(float(value))
            stream.advance()
        state = stream.state_dict()
    assert seen == ids
    assert any(not x.sharding.is_fully_replicated for x in jax.tree.leaves(params))
    print(max(abs(a / b - 1) for a, b in zip(found, curve, strict=True)))


if __name__ == "__main__":
    main()
