"""Programs whose inputs are hard to tell apart, each with the truth beside it. Needs JAX.

Loops over layers that hand the weights on, ensembles, micro-batches and time as leading dimensions,
gradients of gradients, scales and keys; and models of many kinds, from graphs to fields.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax, named_scope

from programs import (  # isort: skip
    BATCH, FROZEN, MLP, OPTIMIZER, SAMPLES, SCALAR, STACK, STATISTICS, TOKENS, VARIABLE, VECTORS,
    AdamState, Array, Program, Tree, adam, adam_program, adam_state, block, convolve,
    cross_entropy, dense, floats, integers, layer, mlp, optimized, sgd,
)  # fmt: skip

_KEYS = partial(jax.ShapeDtypeStruct, dtype=jnp.uint32)


def network(weights: Tree, x: Array) -> Array:
    """A perceptron with one hidden layer."""
    return dense(weights["out"], jnp.tanh(dense(weights["up"], x)))


def two_layers(inputs: int, hidden: int, outputs: int) -> Tree:
    """Its weights."""
    return {"up": layer(inputs, hidden), "out": layer(hidden, outputs)}


def stepped(
    loss: Callable[..., Array],
    args: tuple[Tree, ...],
    truth: tuple[Tree, ...],
    update: Callable[[Tree, Tree], Tree] = sgd,
) -> Program:
    """``step(params, ...)`` that updates the first argument by its gradient alone."""

    def step(params: Tree, *rest: Tree) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, *rest)
        with named_scope("update"):
            return update(gradients, params), value

    def named(params: Tree, batch: Tree) -> Any:
        return step(params, batch)

    def with_more(params: Tree, batch: Tree, more: Tree) -> Any:
        return step(params, batch, more)

    function = named if len(args) == 2 else with_more
    return Program(function, args, truth, loss, jax.value_and_grad(loss))


# Loops over layers


def scan_that_hands_on() -> Program:
    """A scan over checkpointed blocks that returns their weights, as ``nnx.scan`` does."""

    def forward(params: Tree, batch: Tree) -> tuple[Array, Tree]:
        body = jax.checkpoint(lambda x, weights: (block(weights, x), weights))
        x, blocks = lax.scan(body, params["embedding"][batch["tokens"]], params["blocks"])
        loss = cross_entropy(dense(params["head"], x), batch["labels"])
        return loss, {**params, "blocks": blocks}

    gradients_of = jax.value_and_grad(forward, has_aux=True)

    def step(state: Tree, batch: Tree) -> Any:
        (value, params), gradients = gradients_of(state["params"], batch)
        with named_scope("update"):
            params, moments = adam(gradients, state["optimizer"], params)
        return {"params": params, "optimizer": moments}, value

    state = {"params": STACK, "optimizer": adam_state(STACK)}
    return Program(
        step,
        (state, TOKENS),
        ({"params": VARIABLE, "optimizer": OPTIMIZER}, BATCH),
        lambda state, batch: forward(state["params"], batch)[0],
        lambda state, batch: gradients_of(state["params"], batch),
    )


def update_by_scan() -> Program:
    """Plain gradient descent on stacked weights, layer by layer in a scan of its own."""

    def loss(params: Tree, batch: Tree) -> Array:
        x = params["embedding"][batch["tokens"]]
        x, _ = lax.scan(lambda x, weights: (block(weights, x), None), x, params["blocks"])
        return cross_entropy(dense(params["head"], x), batch["labels"])

    def update(gradients: Tree, params: Tree) -> Tree:
        new = sgd(gradients, params)

        def one(_: None, pair: tuple[Tree, Tree]) -> tuple[None, Tree]:
            return None, sgd(*pair)

        blocks = lax.scan(one, None, (gradients["blocks"], params["blocks"]))[1]
        return {**new, "blocks": blocks}

    return stepped(loss, (STACK, TOKENS), (VARIABLE, BATCH), update)


# Ensembles, micro-batches and time as leading dimensions

MEMBERS = 5


def _members(tree: Tree) -> Tree:
    """Abstract arrays with the members of an ensemble in front."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((MEMBERS, *x.shape), x.dtype), tree)


def _regression(params: Tree, batch: Tree) -> Array:
    return jnp.mean((network(params, batch["x"]) - batch["y"]) ** 2)


REGRESSION = {"x": floats(SAMPLES, 16), "y": floats(SAMPLES, 1)}


def _ensemble(batch: Tree, axes: Any) -> Program:
    params = two_layers(16, 32, 1)

    def each(params: Tree, batch: Tree) -> Array:
        return jax.vmap(_regression, in_axes=(0, axes))(params, batch).sum()

    return optimized(jax.vmap(adam), _members(adam_state(params)), each, _members(params), batch)


def ensemble() -> Program:
    """Five models side by side that see the same batch; each has a counter of its own."""
    return _ensemble(REGRESSION, None)


def ensemble_with_own_batches() -> Program:
    """Five models side by side, each of which sees a batch of its own."""
    return _ensemble(_members(REGRESSION), 0)


def micro_batches_in_front() -> Program:
    """Gradients are summed over the leading dimension of the batch, (4, samples, features)."""
    parts = 4
    batch = {"x": floats(parts, SAMPLES // parts, 16), "y": integers(parts, SAMPLES // parts)}

    def total(compute: Any, params: Tree, batch: Tree) -> Any:
        shapes = jax.eval_shape(compute, params, jax.tree.map(lambda x: x[0], batch))
        start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

        def add(total: Tree, part: Tree) -> tuple[Tree, None]:
            return jax.tree.map(jnp.add, total, compute(params, part)), None

        return lax.scan(add, start, batch)[0]

    gradients_of = partial(total, jax.value_and_grad(mlp))
    return optimized(adam, adam_state(MLP), partial(total, mlp), MLP, batch, gradients_of)


RECURRENT = {"input": floats(16, 32), "hidden": floats(32, 32), "head": layer(32, 4)}


def _recurrent(params: Tree, x: Array) -> Array:
    """States of a recurrent network, over a leading dimension of time."""

    def cell(hidden: Array, x: Array) -> tuple[Array, Array]:
        hidden = jnp.tanh(x @ params["input"] + hidden @ params["hidden"])
        return hidden, hidden

    return lax.scan(cell, jnp.zeros((SAMPLES, 32)), x)[1]


def time_in_front() -> Program:
    """A recurrent network whose data are (time, samples, features)."""

    def loss(params: Tree, batch: Tree) -> Array:
        out = dense(params["head"], _recurrent(params, batch["x"]))
        return jnp.mean((out - batch["y"]) ** 2)

    batch = {"x": floats(7, SAMPLES, 16), "y": floats(7, SAMPLES, 4)}
    return stepped(loss, (RECURRENT, batch), (VARIABLE, BATCH))


def tokens_with_time_in_front() -> Program:
    """The same with tokens, whose embeddings a scan goes through."""

    def loss(params: Tree, batch: Tree) -> Array:
        out = _recurrent(params, params["embedding"][batch["tokens"]])
        return cross_entropy(dense(params["head"], out), batch["labels"])

    params = {**RECURRENT, "embedding": floats(50, 16)}
    batch = {"tokens": integers(7, SAMPLES), "labels": integers(7, SAMPLES)}
    return stepped(loss, (params, batch), (VARIABLE, BATCH))


def next_words() -> Program:
    """The same where all words but the last are read, and all but the first are told."""

    def loss(params: Tree, words: Array) -> Array:
        out = _recurrent(params, params["embedding"][words[:-1]])
        return cross_entropy(dense(params["head"], out), words[1:])

    params = {**RECURRENT, "embedding": floats(50, 16), "head": layer(32, 50)}
    return stepped(loss, (params, integers(8, SAMPLES)), (VARIABLE, BATCH))


# Gradients of gradients


def inner_steps() -> Program:
    """MAML: the loss is that of weights after a step of gradient descent."""

    def loss(params: Tree, batch: Tree) -> Array:
        gradients = jax.grad(_regression)(params, {"x": batch["x"], "y": batch["y"]})
        return _regression(sgd(gradients, params), {"x": batch["query"], "y": batch["answer"]})

    batch = {**REGRESSION, "query": floats(SAMPLES, 16), "answer": floats(SAMPLES, 1)}
    return adam_program(loss, two_layers(16, 32, 1), batch)


def gradient_penalty() -> Program:
    """A critic whose gradient by its inputs is held at a norm of one."""

    def loss(params: Tree, batch: Tree) -> Array:
        def critic(x: Array) -> Array:
            return network(params, x).sum()

        slope = jax.grad(critic)(batch["mixed"])
        norm = jnp.sqrt((slope**2).sum(-1) + 1e-6)
        spread = critic(batch["fake"]) - critic(batch["real"])
        return spread / SAMPLES + 10 * jnp.mean((norm - 1) ** 2)

    batch = {name: floats(SAMPLES, 16) for name in ("real", "fake", "mixed")}
    return adam_program(loss, two_layers(16, 32, 1), batch)


def energy_and_forces() -> Program:
    """An interatomic potential: forces are gradients of the energy by positions."""

    def loss(params: Tree, batch: Tree) -> Array:
        def energy(positions: Array) -> Array:
            distance = positions[:, :, None] - positions[:, None]
            features = jnp.exp(-(distance**2)).sum(2)
            return network(params, features).sum()

        value, slope = jax.value_and_grad(energy)(batch["positions"])
        error = jnp.mean((slope + batch["forces"]) ** 2)
        return error + (value - batch["energy"].sum()) ** 2

    atoms = {"positions": floats(SAMPLES, 6, 3), "forces": floats(SAMPLES, 6, 3)}
    return adam_program(loss, two_layers(3, 32, 1), {**atoms, "energy": floats(SAMPLES)})


# Scales, counters and keys


def dynamic_loss_scale() -> Program:
    """A scale of the loss that halves where a gradient is not finite, and doubles at times."""

    def step(params: Tree, opt_state: AdamState, scaling: Tree, batch: Tree) -> Any:
        scale = scaling["scale"]
        value, gradients = jax.value_and_grad(lambda p: mlp(p, batch) * scale)(params)
        with named_scope("update"):
            gradients = jax.tree.map(lambda g: g / scale, gradients)
            finite = jnp.all(jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(gradients)]))
            new = adam(gradients, opt_state, params)
            params, opt_state = jax.tree.map(
                lambda new, old: jnp.where(finite, new, old), new, (params, opt_state)
            )
            good = jnp.where(finite, scaling["good"] + 1, 0)
            grown = jnp.where(good >= 200, scale * 2, scale)
            scaling = {"scale": jnp.where(finite, grown, scale / 2), "good": good % 200}
        return params, opt_state, scaling, value

    args = (MLP, adam_state(MLP), {"scale": floats(), "good": integers()}, VECTORS)
    return Program(
        step,
        args,
        (VARIABLE, OPTIMIZER, SCALAR, BATCH),
        lambda params, opt_state, scaling, batch: mlp(params, batch),
        lambda params, opt_state, scaling, batch: jax.value_and_grad(mlp)(params, batch),
    )


def keys_of_layers() -> Program:
    """A key for the dropout of every layer, in one array of (layers, 2)."""

    def loss(params: Tree, batch: Tree, keys: Array) -> Array:
        x = batch["x"]
        for weights, key in zip(params["layers"], keys, strict=True):
            x = jax.nn.relu(dense(weights, x))
            x = jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x, 0.0)
        return cross_entropy(dense(params["head"], x), batch["y"])

    return stepped(loss, (MLP, VECTORS, _KEYS((2, 2))), (VARIABLE, BATCH, SCALAR))


def keys_handed_on() -> Program:
    """A scan over layers that returns the keys of their dropout, as ``nnx.scan`` does."""

    def loss(params: Tree, batch: Tree, keys: Array) -> tuple[Array, Array]:
        def body(x: Array, given: Tree) -> tuple[Array, Array]:
            weights, key = given
            x = jnp.tanh(dense(weights, x))
            return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x, 0.0), key

        x, keys = lax.scan(body, batch["x"], (params["layers"], keys))
        return cross_entropy(dense(params["head"], x), batch["y"]), keys

    gradients_of = jax.value_and_grad(loss, has_aux=True)

    def step(params: Tree, batch: Tree, keys: Array) -> Any:
        (value, keys), gradients = gradients_of(params, batch, keys)
        with named_scope("update"):
            return sgd(gradients, params), keys, value

    params = {"layers": {"kernel": floats(3, 16, 16), "bias": floats(3, 16)}, "head": layer(16, 10)}
    return Program(
        step,
        (params, VECTORS, _KEYS((3, 2))),
        (VARIABLE, BATCH, SCALAR),
        lambda *args: loss(*args)[0],
        gradients_of,
    )


def keys_of_samples() -> Program:
    """A key for the noise of every sample."""

    def loss(params: Tree, batch: Tree) -> Array:
        noise = jax.vmap(lambda key: jax.random.normal(key, (16,)))(batch["keys"])
        return mlp(params, {"x": batch["x"] + noise, "y": batch["y"]})

    return stepped(loss, (MLP, {**VECTORS, "keys": _KEYS((SAMPLES, 2))}), (VARIABLE, BATCH))


# Paths that collide


def distillation() -> Program:
    """A student learns what a teacher of the same paths says."""

    def loss(student: Tree, teacher: Tree, batch: Tree) -> Array:
        aim = jax.nn.softmax(network(teacher, batch["x"]))
        return -(aim * jax.nn.log_softmax(network(student, batch["x"]))).sum(-1).mean()

    def step(student: Tree, teacher: Tree, batch: Tree) -> Any:
        value, gradients = jax.value_and_grad(loss)(student, teacher, batch)
        with named_scope("update"):
            return sgd(gradients, student), value

    args = (two_layers(16, 8, 10), two_layers(16, 64, 10), {"x": floats(SAMPLES, 16)})
    return Program(
        step, args, (VARIABLE, FROZEN, BATCH), loss, lambda *args: jax.value_and_grad(loss)(*args)
    )


# Models of many kinds


def graph_network() -> Program:
    """Messages along the edges of one graph, summed at the nodes."""
    params = {"message": layer(16, 16), "update": layer(32, 16), "out": layer(16, 3)}
    batch = {
        "nodes": floats(SAMPLES, 16),
        "senders": integers(60),
        "receivers": integers(60),
        "labels": integers(SAMPLES),
    }

    def loss(params: Tree, batch: Tree) -> Array:
        x = batch["nodes"]
        for _ in range(2):
            messages = jax.nn.relu(dense(params["message"], x[batch["senders"]]))
            heard = jax.ops.segment_sum(messages, batch["receivers"], num_segments=SAMPLES)
            x = jax.nn.relu(dense(params["update"], jnp.concatenate([x, heard], -1)))
        return cross_entropy(dense(params["out"], x), batch["labels"])

    return adam_program(loss, params, batch)


def packed_graphs() -> Program:
    """Graphs of a batch in one, whose nodes are summed by graph: the samples are the graphs."""
    params = {"nodes": floats(10, 16), "message": layer(17, 16), "out": layer(16, 1)}
    batch = {
        "kinds": integers(200),
        "senders": integers(900),
        "receivers": integers(900),
        "lengths": floats(900),
        "graphs": integers(200),
        "energies": floats(SAMPLES),
    }

    def loss(params: Tree, batch: Tree) -> Array:
        x = params["nodes"][batch["kinds"]]
        sent = jnp.concatenate([x[batch["senders"]], batch["lengths"][:, None]], -1)
        messages = jax.nn.relu(dense(params["message"], sent))
        x = x + jax.ops.segment_sum(messages, batch["receivers"], num_segments=200)
        energies = jax.ops.segment_sum(dense(params["out"], x)[:, 0], batch["graphs"], SAMPLES)
        return jnp.mean((energies - batch["energies"]) ** 2)

    return adam_program(loss, params, batch)


def actor_and_critic() -> Program:
    """Advantages by a scan back in time over data that are (time, samples, ...)."""

    def loss(params: Tree, batch: Tree) -> Array:
        values = network(params["critic"], batch["seen"])[..., 0]

        def back(total: Array, reward: Array) -> tuple[Array, Array]:
            total = reward + 0.99 * total
            return total, total

        rewards = batch["rewards"]
        returns = lax.scan(back, jnp.zeros(SAMPLES), rewards, reverse=True)[1]
        gain = lax.stop_gradient(returns - values)
        logits = jax.nn.log_softmax(network(params["actor"], batch["seen"]))
        taken = jnp.take_along_axis(logits, batch["actions"][..., None], -1)[..., 0]
        return jnp.mean((values - returns) ** 2 - taken * gain)

    batch = {
        "seen": floats(9, SAMPLES, 5),
        "actions": integers(9, SAMPLES),
        "rewards": floats(9, SAMPLES),
    }
    params = {"actor": two_layers(5, 32, 4), "critic": two_layers(5, 32, 1)}
    return adam_program(loss, params, batch)


def diffusion() -> Program:
    """Noise of a drawn strength is predicted; an average of the weights follows them."""

    def loss(params: Tree, schedule: Tree, x: Array, key: Array) -> Array:
        one, two = jax.random.split(key)
        times = jax.random.randint(one, (SAMPLES,), 0, 100)
        noise = jax.random.normal(two, x.shape)
        kept = schedule["kept"][times][:, None]
        mixed = jnp.sqrt(kept) * x + jnp.sqrt(1 - kept) * noise
        return jnp.mean((network(params, mixed) - noise) ** 2)

    def step(state: Tree, schedule: Tree, x: Array, key: Array) -> Any:
        params = state["params"]
        value, gradients = jax.value_and_grad(loss)(params, schedule, x, key)
        with named_scope("update"):
            params = sgd(gradients, params)
            average = jax.tree.map(lambda a, p: 0.99 * a + 0.01 * p, state["average"], params)
        return {"params": params, "average": average}, value

    weights = two_layers(12, 32, 12)
    return Program(
        step,
        (
            {"params": weights, "average": weights},
            {"kept": floats(100)},
            floats(SAMPLES, 12),
            _KEYS((2,)),
        ),
        ({"params": VARIABLE, "average": OPTIMIZER}, FROZEN, BATCH, SCALAR),
        lambda state, *rest: loss(state["params"], *rest),
        lambda state, *rest: jax.value_and_grad(loss)(state["params"], *rest),
    )


def running_normalizer() -> Program:
    """Inputs are normalized by running moments of their own."""
    params = {"stem": floats(3, 3, 3, 8), "head": layer(8, 10)}
    batch = {"images": floats(SAMPLES, 6, 6, 3), "y": integers(SAMPLES)}

    def loss(params: Tree, moments: Tree, batch: Tree) -> tuple[Array, Tree]:
        images = batch["images"]
        x = (images - moments["mean"]) * lax.rsqrt(moments["square"] + 1e-5)
        new = {
            "mean": 0.9 * moments["mean"] + 0.1 * images.mean((0, 1, 2)),
            "square": 0.9 * moments["square"] + 0.1 * (images**2).mean((0, 1, 2)),
        }
        x = jax.nn.relu(convolve(params["stem"], x)).mean((1, 2))
        return cross_entropy(dense(params["head"], x), batch["y"]), new

    gradients_of = jax.value_and_grad(loss, has_aux=True)

    def step(params: Tree, moments: Tree, batch: Tree) -> Any:
        (value, moments), gradients = gradients_of(params, moments, batch)
        with named_scope("update"):
            return sgd(gradients, params), moments, value

    return Program(
        step,
        (params, {"mean": floats(3), "square": floats(3)}, batch),
        (VARIABLE, STATISTICS, BATCH),
        lambda *args: loss(*args)[0],
        gradients_of,
    )


def delayed_policy() -> Program:
    """TD3: a branch trains the actor, and moves both targets, in every second step."""
    actor, critic = two_layers(5, 32, 2), two_layers(7, 32, 1)

    def value(critic: Tree, seen: Array, action: Array) -> Array:
        return network(critic, jnp.concatenate([seen, action], -1))[:, 0]

    def critic_loss(critic: Tree, targets: Tree, batch: Tree) -> Array:
        ahead = value(targets["critic"], batch["next"], network(targets["actor"], batch["next"]))
        aim = batch["reward"] + 0.99 * ahead
        return jnp.mean((value(critic, batch["seen"], batch["action"]) - aim) ** 2)

    def actor_loss(actor: Tree, critic: Tree, batch: Tree) -> Array:
        return -value(critic, batch["seen"], network(actor, batch["seen"])).mean()

    def step(params: Tree, targets: Tree, moments: Tree, batch: Tree, count: Array) -> Any:
        loss, gradients = jax.value_and_grad(critic_loss)(params["critic"], targets, batch)
        critic, of_critic = adam(gradients, moments["critic"], params["critic"])

        def late() -> Any:
            gradients = jax.grad(actor_loss)(params["actor"], critic, batch)
            new, of_actor = adam(gradients, moments["actor"], params["actor"])
            new_params = {"actor": new, "critic": critic}
            moved = jax.tree.map(lambda t, p: 0.99 * t + 0.01 * p, targets, new_params)
            return new, of_actor, moved

        old = (params["actor"], moments["actor"], targets)
        actor, of_actor, targets = lax.cond(count % 2 == 0, late, lambda: old)
        params, moments = (
            {"actor": actor, "critic": critic},
            {"actor": of_actor, "critic": of_critic},
        )
        return params, targets, moments, count + 1, loss

    def both(params: Tree, targets: Tree, batch: Tree) -> Any:
        critic = jax.value_and_grad(critic_loss)(params["critic"], targets, batch)
        return critic, jax.value_and_grad(actor_loss)(params["actor"], params["critic"], batch)

    params = {"actor": actor, "critic": critic}
    moments = {name: adam_state(part) for name, part in params.items()}
    batch = {
        "seen": floats(SAMPLES, 5),
        "next": floats(SAMPLES, 5),
        "action": floats(SAMPLES, 2),
        "reward": floats(SAMPLES),
    }
    return Program(
        step,
        (params, params, moments, batch, integers()),
        (VARIABLE, FROZEN, OPTIMIZER, BATCH, SCALAR),
        lambda params, targets, moments, batch, count: (
            critic_loss(params["critic"], targets, batch),
            actor_loss(params["actor"], params["critic"], batch),
        ),
        lambda params, targets, moments, batch, count: both(params, targets, batch),
    )


def secants() -> Program:
    """Quasi-Newton: the last weights and gradients, and differences of the ten steps before."""

    def step(params: Tree, memory: Tree, batch: Tree) -> Any:
        value, gradients = jax.value_and_grad(mlp)(params, batch)
        with named_scope("update"):
            new: Tree = {"weights": params, "gradients": gradients}
            for name, now in tuple(new.items()):
                past = jax.tree.map(lambda a, b: a - b, now, memory[name])
                new[f"past {name}"] = jax.tree.map(
                    lambda old, last: jnp.roll(old, 1, 0).at[0].set(last),
                    memory[f"past {name}"],
                    past,
                )
            slopes = jax.tree.map(
                lambda s, y: (s * y).sum() / (1e-6 + (y * y).sum()),
                new["past weights"],
                new["past gradients"],
            )
            params = jax.tree.map(lambda p, g, s: p - s * g, params, gradients, slopes)
            return params, new, value

    ten = jax.tree.map(lambda x: floats(10, *x.shape), MLP)
    memory = {"weights": MLP, "gradients": MLP, "past weights": ten, "past gradients": ten}
    return Program(
        step,
        (MLP, memory, VECTORS),
        (VARIABLE, OPTIMIZER, BATCH),
        lambda params, memory, batch: mlp(params, batch),
        lambda params, memory, batch: jax.value_and_grad(mlp)(params, batch),
    )


def parallel_block() -> Program:
    """PaLM: one weight holds queries, one key and value for all heads, and a gated network."""
    heads, size, hidden, width = 4, 8, 64, 32
    places = [heads * size, (heads + 1) * size, (heads + 2) * size, (heads + 2) * size + hidden]

    def loss(params: Tree, batch: Tree) -> Array:
        x = params["embedding"][batch["tokens"]]
        for weights in params["layers"]:
            y = x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weights["scale"]
            made = jax.checkpoint(lambda y, w: y @ w["fused"] + w["bias"])(y, weights)
            q, k, v, gate, up = jnp.split(made, places, axis=-1)
            q = q.reshape(*q.shape[:2], heads, size)
            scores = jax.nn.softmax(jnp.einsum("bqhk,btk->bhqt", q, k) / size**0.5)
            seen = jnp.einsum("bhqt,btk->bqhk", scores, v).reshape(*q.shape[:2], heads * size)
            x = x + seen @ weights["attention"] + (jax.nn.silu(gate) * up) @ weights["down"]
        return cross_entropy(x @ params["embedding"].T, batch["labels"])

    outputs = places[-1] + hidden
    block = {
        "scale": floats(width),
        "fused": floats(width, outputs),
        "bias": floats(outputs),
        "attention": floats(heads * size, width),
        "down": floats(hidden, width),
    }
    return adam_program(loss, {"embedding": floats(50, width), "layers": [block, block]}, TOKENS)


HARD_PROGRAMS: dict[str, Callable[[], Program]] = {
    program.__name__: program
    for program in (
        scan_that_hands_on,
        update_by_scan,
        ensemble,
        ensemble_with_own_batches,
        micro_batches_in_front,
        time_in_front,
        tokens_with_time_in_front,
        next_words,
        inner_steps,
        gradient_penalty,
        energy_and_forces,
        dynamic_loss_scale,
        keys_of_layers,
        keys_handed_on,
        keys_of_samples,
        distillation,
        graph_network,
        packed_graphs,
        actor_and_critic,
        diffusion,
        running_normalizer,
        delayed_policy,
        parallel_block,
        secants,
    )
}
"""Name -> what makes the program."""
