"""Plan your own JAX model.

A function of JAX, and the shapes of its arguments, are all that is needed. Nothing is allocated,
and no GPU has to be there. It needs the extra `jax`.
"""

import jax
import jax.numpy as jnp

import parenvs

LAYERS, WIDTH = 12, 4096

# %% The training step
# The step below is plain JAX: a loss, its gradients, and an update. `parenvs` finds the forward
# pass, the backward pass and the role of every input in the data flow of the compiled graph.


def loss(params, batch):
    """A stack of dense layers; the mean square of what comes out."""
    x = batch
    for weights in params:
        x = jnp.tanh(x @ weights["up"]) @ weights["down"] + x
    return jnp.mean(jnp.square(x))


def step(params, batch):
    """One step of gradient descent."""
    value, gradients = jax.value_and_grad(loss)(params, batch)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients), value


def shape(*sizes):
    """An array of which only shape and type count."""
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


params = [{"up": shape(WIDTH, 4 * WIDTH), "down": shape(4 * WIDTH, WIDTH)} for _ in range(LAYERS)]
batch = shape(64, WIDTH)

graph = parenvs.from_jax(step, params, batch, name="mine")
print(f"{len(graph.opcode)} instructions, {len(graph.weights)} variables")

# %% A pipeline
# Two stages on two servers. The answer says whether it is proven, and the report what each
# stage takes.

pipeline = parenvs.problem(graph, "2x4:a100", stages=2)
answer = parenvs.plan(pipeline)
print(answer.report)

# %% A partition
# The same graph, its operators split over the eight devices of one server. With the reward
# `step_time` the optimum is the shortest step.

problem = parenvs.problem(graph, "1x8:a100", task="partition", reward="step_time")
best = parenvs.plan(problem)
print(f"{best.report.step_seconds / best.report.replicate_seconds:.3f} of one device's seconds")

# %% Keep the plan
# Plans are JSON files. The graph is saved beside the plan, so that anybody can judge it.

graph.save("mine.npz")
best.plan.save("split.json")
print(parenvs.judge("split.json", graph).legal)

# %% Give it to JAX
# `shardings` turns the plan into what `jax.jit` and `jax.device_put` take, given a mesh of devices:
# `parenvs.exports.jax.shardings(best.plan, mesh, (params, batch), graph)`. The command line writes
# them as JSON: `parenvs export split.json --to jax`.
