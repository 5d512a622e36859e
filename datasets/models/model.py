"""``Model``, and the functions of one that are lowered: its forward pass and a training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import named_scope

Tree = dict[str, Any]
Array = jax.Array


class Shapes(dict[str, Any]):
    """A tree of parameters while its shapes are collected: what is asked for is entered."""

    def __init__(self, dtype: Any, kept: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.dtype, self.kept = dtype, kept

    def __missing__(self, name: str) -> Shapes:
        """Enter a part of the tree."""
        self[name] = Shapes(self.dtype_of(name))
        return self[name]

    def dtype_of(self, name: str) -> Any:
        """Return the type in which the model sees a part of the tree."""
        return jnp.float32 if name in self.kept else self.dtype

    def plain(self) -> Tree:
        """Return the tree that was collected."""
        return {k: part.plain() if isinstance(part, Shapes) else part for k, part in self.items()}


def weight(weights: Tree, name: str, *shape: int) -> Array:
    """Return an array of a tree of parameters, which declares its shape."""
    if not isinstance(weights, Shapes):
        return weights[name]
    weights[name] = floats(*shape)
    return jnp.zeros(shape, weights.dtype_of(name))


@dataclass(frozen=True, eq=False)
class Optimizer:
    """What a training step does with gradients.

    Attributes:
        name: Lower-case name, which is also the scope of its instructions.
        init: Function from shapes of parameters to those of its state.
        update: ``update(params, grads, state) -> (params, state)``, all float32.
    """

    name: str
    init: Callable[[Tree], Tree]
    update: Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]


def adam(learning_rate: float = 1e-3, beta2: float = 0.999, decay: float = 0.0) -> Optimizer:
    """Return Adam (arXiv 1412.6980), or AdamW (arXiv 1711.05101) if weights decay.

    The state holds the moments ``m`` and ``v``, shaped like the parameters, and ``count``, the
    int32 number of steps taken. Biases and scales, which have one dimension, do not decay.
    """
    name, beta1, epsilon = "adamw" if decay else "adam", 0.9, 1e-8

    def init(params: Tree) -> Tree:
        return {"m": params, "v": params, "count": jax.ShapeDtypeStruct((), jnp.int32)}

    def update(params: Tree, grads: Tree, state: Tree) -> tuple[Tree, Tree]:
        with named_scope(name):
            count = state["count"] + 1
            time = count.astype(jnp.float32)
            # Bias correction in the efficient form that ends section 2 of the paper.
            rate = learning_rate * jnp.sqrt(1 - beta2**time) / (1 - beta1**time)

            def new(param: Array, grad: Array, m: Array, v: Array) -> tuple[Array, ...]:
                grad = grad.astype(param.dtype)
                m = beta1 * m + (1 - beta1) * grad
                v = beta2 * v + (1 - beta2) * jnp.square(grad)
                step = rate * m / (jnp.sqrt(v) + epsilon)
                # Decoupled decay (AdamW, algorithm 2): scaled by the rate, not by the moments.
                if decay and param.ndim > 1:
                    param = (1 - learning_rate * decay) * param
                return param - step, m, v

            updated = jax.tree.map(new, params, grads, state["m"], state["v"])
            params, m, v = jax.tree.transpose(jax.tree.structure(params), None, updated)
        return params, {"m": m, "v": v, "count": count}

    return Optimizer(name, init, update)


def adamw() -> Optimizer:
    """Return AdamW with the settings of language models (arXiv 2005.14165, appendix B)."""
    return adam(beta2=0.95, decay=0.1)


def momentum(learning_rate: float = 0.1, rate: float = 0.9) -> Optimizer:
    """Return gradient descent with momentum; the state is ``m``, shaped like the parameters."""

    def update(params: Tree, grads: Tree, state: Tree) -> tuple[Tree, Tree]:
        with named_scope("momentum"):
            m = jax.tree.map(lambda m, g: rate * m + g.astype(m.dtype), state["m"], grads)
            return jax.tree.map(lambda w, v: w - learning_rate * v, params, m), {"m": m}

    return Optimizer("momentum", lambda params: {"m": params}, update)


def adagrad(learning_rate: float = 0.2, epsilon: float = 1e-7) -> Optimizer:
    """Return Adagrad; the state is ``v``, sums of squares shaped like the parameters."""

    def update(params: Tree, grads: Tree, state: Tree) -> tuple[Tree, Tree]:
        with named_scope("adagrad"):

            def new(param: Array, grad: Array, v: Array) -> tuple[Array, Array]:
                grad = grad.astype(param.dtype)
                v = v + jnp.square(grad)
                return param - learning_rate * grad / (jnp.sqrt(v) + epsilon), v

            updated = jax.tree.map(new, params, grads, state["v"])
            params, v = jax.tree.transpose(jax.tree.structure(params), None, updated)
        return params, {"v": v}

    return Optimizer("adagrad", lambda params: {"v": params}, update)


ADAM = adam()
"""Adam with the settings of its paper, which the paper's models are trained with."""


@dataclass(frozen=True, eq=False)
class Model:
    """A model to be trained, described by shapes.

    Attributes:
        family: Architecture, which models of other sizes share; splits are by family.
        description: One line for listings.
        source: Where the architecture and its sizes come from.
        loss: ``loss(params, batch)``, a float32 scalar; with statistics it is
            ``loss(params, statistics, batch)`` and returns that scalar and the new statistics. It
            asks for each array by ``weight``, which declares its shape.
        batch: The batch, a dict of ``jax.ShapeDtypeStruct``, examples first.
        trained_as: Source of batch size, sequence length and optimizer.
        optimizer: What updates the parameters.
        mixed: Whether the loss sees a bfloat16 copy of the float32 parameters.
        kept: First keys of parameters that are not copied.
        with_statistics: Whether the loss updates statistics, without a gradient.
    """

    family: str
    description: str
    source: str
    loss: Callable[..., Any]
    batch: Tree
    trained_as: str = ""
    optimizer: Optimizer = ADAM
    mixed: bool = True
    kept: tuple[str, ...] = ()
    with_statistics: bool = False

    @cached_property
    def shapes(self) -> list[Tree]:
        """Shapes of the parameters and, if there are any, of the statistics."""
        trees = [Shapes(jnp.bfloat16 if self.mixed else jnp.float32, self.kept)]
        trees += [Shapes(jnp.float32)] if self.with_statistics else []
        jax.eval_shape(lambda batch: self.loss(*trees, batch), self.batch)
        return [tree.plain() for tree in trees]

    @property
    def params(self) -> Tree:
        """Shapes of the parameters, a tree of ``jax.ShapeDtypeStruct``."""
        return self.shapes[0]

    @property
    def batch_size(self) -> int:
        """Examples in a batch."""
        first: jax.ShapeDtypeStruct = next(iter(self.batch.values()))
        return first.shape[0]

    def copies(self, params: Tree) -> Tree:
        """Return the parameters that the loss sees: bfloat16 copies if the precision is mixed."""
        if not self.mixed:
            return params
        with named_scope("cast"):
            half = partial(jax.tree.map, lambda leaf: leaf.astype(jnp.bfloat16))
            return {key: x if key in self.kept else half(x) for key, x in params.items()}


def forward(model: Model) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return ``forward(params, batch) -> loss``, and the shapes of its arguments.

    With statistics it is ``forward(params, statistics, batch) -> (loss, statistics)``.
    """
    if model.with_statistics:

        def forward_with(params: Tree, statistics: Tree, batch: Tree) -> tuple[Array, Tree]:
            return model.loss(model.copies(params), statistics, batch)

        return forward_with, (*model.shapes, model.batch)

    def forward(params: Tree, batch: Tree) -> Array:
        return model.loss(model.copies(params), batch)

    return forward, (model.params, model.batch)


def train_step(model: Model) -> tuple[Callable[..., tuple[Any, ...]], tuple[Any, ...]]:
    """Return one training step, and the shapes of its arguments.

    The step is ``step(params, opt_state, batch) -> (params, opt_state, loss)``; statistics, if
    any, stand before the batch and before the loss. With mixed precision the gradients are those
    of the bfloat16 copies; the optimizer updates the float32 parameters (arXiv 1710.03740, 3.1).
    """
    state = model.params, model.optimizer.init(model.params)
    if model.with_statistics:

        def step_with(
            params: Tree, opt_state: Tree, statistics: Tree, batch: Tree
        ) -> tuple[Tree, Tree, Tree, Array]:
            gradient = jax.value_and_grad(model.loss, has_aux=True)
            (loss, statistics), grads = gradient(model.copies(params), statistics, batch)
            params, opt_state = model.optimizer.update(params, grads, opt_state)
            return params, opt_state, statistics, loss

        return step_with, (*state, *model.shapes[1:], model.batch)

    def step(params: Tree, opt_state: Tree, batch: Tree) -> tuple[Tree, Tree, Array]:
        loss, grads = jax.value_and_grad(model.loss)(model.copies(params), batch)
        params, opt_state = model.optimizer.update(params, grads, opt_state)
        return params, opt_state, loss

    return step, (*state, model.batch)


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    """Return a float32 array's shape."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def integers(*shape: int) -> jax.ShapeDtypeStruct:
    """Return an int32 array's shape."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)
