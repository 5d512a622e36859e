"""``Model``, and the functions of one that are lowered: its forward pass and a training step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import named_scope

Tree = dict[str, Any]
Array = jax.Array


@dataclass(frozen=True, eq=False)
class Model:
    """A model to be trained, described by shapes.

    Attributes:
        name: Lower-case instance name.
        description: One line for listings.
        source: Where the architecture and its sizes come from.
        init: Function that returns the parameters, a pytree of ``jax.ShapeDtypeStruct``.
        loss: ``loss(params, batch)``, a float32 scalar.
        batch: The batch, a dict of ``jax.ShapeDtypeStruct``.
        batch_size: Examples in a batch.
    """

    name: str
    description: str
    source: str
    init: Callable[[], Tree]
    loss: Callable[[Tree, Tree], Array]
    batch: Tree
    batch_size: int


def forward(model: Model) -> tuple[Callable[..., Array], tuple[Any, ...]]:
    """Return ``forward(params, batch) -> loss``, and the shapes of its arguments."""

    def forward(params: Tree, batch: Tree) -> Array:
        return model.loss(params, batch)

    return forward, (model.init(), model.batch)


def train_step(
    model: Model,
    learning_rate: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> tuple[Callable[..., tuple[Tree, Tree, Array]], tuple[Any, ...]]:
    """Return one training step with Adam (arXiv 1412.6980), and the shapes of its arguments.

    The step is ``step(params, opt_state, batch) -> (params, opt_state, loss)``. ``opt_state`` holds
    the moments ``m`` and ``v``, shaped like the parameters, and ``count``, the int32 number of
    steps taken. The bias correction has the efficient form that ends section 2 of the paper.
    """

    def step(params: Tree, opt_state: Tree, batch: Tree) -> tuple[Tree, Tree, Array]:
        loss, grads = jax.value_and_grad(model.loss)(params, batch)
        with named_scope("adam"):
            count = opt_state["count"] + 1
            time = count.astype(jnp.float32)
            rate = learning_rate * jnp.sqrt(1 - beta2**time) / (1 - beta1**time)

            def update(param: Array, grad: Array, m: Array, v: Array) -> tuple[Array, ...]:
                m = beta1 * m + (1 - beta1) * grad
                v = beta2 * v + (1 - beta2) * jnp.square(grad)
                return param - rate * m / (jnp.sqrt(v) + epsilon), m, v

            updated = jax.tree.map(update, params, grads, opt_state["m"], opt_state["v"])
            params, m, v = jax.tree.transpose(jax.tree.structure(params), None, updated)
        return params, {"m": m, "v": v, "count": count}, loss

    params = model.init()
    opt_state = {"m": params, "v": params, "count": integers()}
    return step, (params, opt_state, model.batch)


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    """Return a float32 array's shape."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def integers(*shape: int) -> jax.ShapeDtypeStruct:
    """Return an int32 array's shape."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)
