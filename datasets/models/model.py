"""``Model``, and the functions of one that are lowered: its forward pass and a training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import named_scope

from parenvs.datasets.models.optimisers import Optimiser, adam

ADAM = adam()
"""Adam with the settings of its paper, which the paper's models are trained with."""
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
        loss: ``loss(params, batch)``, a float32 scalar; with ``statistics`` it is
            ``loss(params, statistics, batch)`` and returns that scalar and the new statistics.
        batch: The batch, a dict of ``jax.ShapeDtypeStruct``.
        batch_size: Examples in a batch.
        family: Architecture, which models of other sizes share; splits are by family.
        trained_as: Where batch, length of sequences and optimiser come from.
        mixed: Whether the loss sees a bfloat16 copy of the float32 parameters.
        kept: First keys of parameters of which there is no copy.
        optimiser: What updates the parameters.
        statistics: Shapes of what the loss updates without a gradient, if there is any.
    """

    name: str
    description: str
    source: str
    init: Callable[[], Tree]
    loss: Callable[..., Any]
    batch: Tree
    batch_size: int
    family: str = ""
    trained_as: str = ""
    mixed: bool = False
    kept: tuple[str, ...] = ()
    optimiser: Optimiser = ADAM
    statistics: Callable[[], Tree] | None = None

    def copies(self, params: Tree) -> Tree:
        """Return the parameters that the loss sees: bfloat16 copies if the precision is mixed."""
        if not self.mixed:
            return params
        with named_scope("cast"):
            return {
                key: part
                if key in self.kept
                else jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), part)
                for key, part in params.items()
            }


def forward(model: Model) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return ``forward(params, batch) -> loss``, and the shapes of its arguments.

    With statistics it is ``forward(params, statistics, batch) -> (loss, statistics)``.
    """
    if model.statistics is not None:

        def forward_with(params: Tree, statistics: Tree, batch: Tree) -> tuple[Array, Tree]:
            return model.loss(model.copies(params), statistics, batch)

        return forward_with, (model.init(), model.statistics(), model.batch)

    def forward(params: Tree, batch: Tree) -> Array:
        return model.loss(model.copies(params), batch)

    return forward, (model.init(), model.batch)


def train_step(model: Model) -> tuple[Callable[..., tuple[Any, ...]], tuple[Any, ...]]:
    """Return one training step, and the shapes of its arguments.

    The step is ``step(params, opt_state, batch) -> (params, opt_state, loss)``; statistics, if
    there are any, stand before the batch and before the loss. With mixed precision the gradients
    are those of the bfloat16 copies, and bfloat16 themselves; the optimiser updates the float32
    parameters by them (arXiv 1710.03740, section 3.1).
    """
    params = model.init()
    opt_state = model.optimiser.init(params)
    if model.statistics is not None:

        def step_with(
            params: Tree, opt_state: Tree, statistics: Tree, batch: Tree
        ) -> tuple[Tree, Tree, Tree, Array]:
            gradient = jax.value_and_grad(model.loss, has_aux=True)
            (loss, statistics), grads = gradient(model.copies(params), statistics, batch)
            params, opt_state = model.optimiser.update(params, grads, opt_state)
            return params, opt_state, statistics, loss

        return step_with, (params, opt_state, model.statistics(), model.batch)

    def step(params: Tree, opt_state: Tree, batch: Tree) -> tuple[Tree, Tree, Array]:
        loss, grads = jax.value_and_grad(model.loss)(model.copies(params), batch)
        params, opt_state = model.optimiser.update(params, grads, opt_state)
        return params, opt_state, loss

    return step, (params, opt_state, model.batch)


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    """Return a float32 array's shape."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def integers(*shape: int) -> jax.ShapeDtypeStruct:
    """Return an int32 array's shape."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)
