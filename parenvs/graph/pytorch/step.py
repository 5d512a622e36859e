"""The training step of an exported module, by ``jax.value_and_grad``, with an optimiser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax, named_scope

from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.graph.graph import Role
from parenvs.graph.pytorch.nodes import Exported
from parenvs.graph.pytorch.operations.randoms import KEY_WORDS
from parenvs.graph.pytorch.program import Program

Tree = dict[str, Any]
_WIDE = jnp.float32
_ROLES = (
    Role.VARIABLE, Role.OPTIMISER, Role.FROZEN, Role.STATISTICS, Role.BATCH, Role.SCALAR,
)  # fmt: skip
"""Roles of the step's arguments."""


@dataclass(frozen=True)
class Optimiser:
    """How a weight changes by its gradient.

    Attributes:
        state: names of its arrays, each shaped like the weights.
        update: ``update(weight, gradient, state, count) -> (weight, state)`` for one weight, its
            state as a dict by name; ``count`` is the number of this step, from 1, as float32.
    """

    state: tuple[str, ...]
    update: Callable[[Array, Array, Tree, Array], tuple[Array, Tree]]


def _adam(weight: Array, gradient: Array, state: Tree, count: Array) -> tuple[Array, Tree]:
    """Adam (arXiv 1412.6980, algorithm 1) with PyTorch's defaults."""
    m = 0.9 * state["m"] + 0.1 * gradient
    v = 0.999 * state["v"] + 0.001 * jnp.square(gradient)
    deviation = jnp.sqrt(v) / jnp.sqrt(1 - 0.999**count).astype(v.dtype) + 1e-8
    rate = (1e-3 / (1 - 0.9**count)).astype(m.dtype)
    return weight - rate * m / deviation, {"m": m, "v": v}


def _momentum(weight: Array, gradient: Array, state: Tree, count: Array) -> tuple[Array, Tree]:
    """Gradient descent with a momentum of 0.9, as ``torch.optim.SGD`` counts it."""
    velocity = 0.9 * state["velocity"] + gradient
    return weight - 1e-3 * velocity, {"velocity": velocity}


def _sgd(weight: Array, gradient: Array, state: Tree, count: Array) -> tuple[Array, Tree]:
    """Gradient descent."""
    return weight - 1e-3 * gradient, {}


OPTIMISERS = {
    "adam": Optimiser(("m", "v"), _adam),
    "momentum": Optimiser(("velocity",), _momentum),
    "sgd": Optimiser((), _sgd),
}
"""Name -> optimiser."""


@dataclass(frozen=True)
class Step:
    """A training step that can be lowered or run.

    Attributes:
        function: ``function(weights, optimiser, frozen, statistics, batch, key)``; a dict each, by
            path, but for ``key``, (4,) uint32. It returns the new weights, the new state of the
            optimiser, the new statistics and the loss.
        arguments: its arguments as shapes; the key is None if no random numbers are drawn.
        program: the loss.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    program: Program

    @classmethod
    def of(cls, exported: Exported, optimiser: str = "adam", masters: bool = False) -> Step:
        """Make the step.

        Args:
            exported: the module.
            optimiser: ``"adam"``, ``"momentum"`` or ``"sgd"``.
            masters: keep float32 copies of narrower weights with the optimiser's state, which is
                float32 then; the weights are cast from them.

        Raises:
            ParenvsError: the optimiser is unknown, or the module has no weights.
            HloError: an operation has no expression.
        """
        if optimiser not in OPTIMISERS:
            raise ParenvsError(
                f"optimiser: {shown(optimiser)} is unknown"
                f"{did_you_mean(str(optimiser), OPTIMISERS)}; known: {', '.join(OPTIMISERS)}"
            )
        program, rule = Program(exported), OPTIMISERS[optimiser]
        weights = program.abstract("weight")
        if not weights:
            raise ParenvsError(f"{exported.name}: no gradient reaches any parameter of the module")
        held = program.abstract("frozen", "buffer")
        statistics, batch = program.abstract("statistics"), program.abstract("batch")
        state: Tree = {}
        for name in rule.state:
            state[name] = {path: _like(w, masters) for path, w in weights.items()}
        copied = [path for path, w in weights.items() if masters and w.dtype != _WIDE]
        if copied:
            state["master"] = {path: _like(weights[path], True) for path in copied}
        if optimiser == "adam":
            state["count"] = jax.ShapeDtypeStruct((), jnp.int32)

        key = jax.ShapeDtypeStruct((KEY_WORDS,), jnp.uint32) if program.is_random else None

        def train_step(
            weights: Tree, optimiser: Tree, frozen: Tree, statistics: Tree, batch: Tree, key: Any
        ) -> tuple[Tree, Tree, Tree, Array]:
            def loss(weights: Tree) -> Any:
                return program({**frozen, **statistics, **batch, **weights}, key)

            (value, updated), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
            gradients = {path: ascent(gradient) for path, gradient in gradients.items()}
            with named_scope(rule_name):
                weights, optimiser = _updated(rule, weights, gradients, optimiser)
            return weights, optimiser, updated, value

        rule_name = optimiser
        return cls(train_step, (weights, state, held, statistics, batch, key), program)

    @property
    def roles(self) -> tuple[Role, ...]:
        """Role of each argument that holds any array, in order."""
        return tuple(
            role
            for role, given in zip(_ROLES, self.arguments, strict=True)
            if given is not None and len(jax.tree.leaves(given)) > 0
        )

    def lowered(self) -> bytes:
        """Lower the step and return its serialized HloModuleProto."""
        lowered = jax.jit(self.function, keep_unused=True).lower(*self.arguments)
        module: Any = lowered.compiler_ir("hlo")
        return module.as_serialized_hlo_module_proto()


def _like(weight: Any, wide: bool) -> jax.ShapeDtypeStruct:
    """Shape of an optimiser's array: of the weight's type, or float32."""
    return jax.ShapeDtypeStruct(weight.shape, _WIDE if wide else weight.dtype)


def ascent(gradient: Array) -> Array:
    """Return where the loss grows: JAX's gradient by a complex number is the conjugate of that."""
    return jnp.conj(gradient) if jnp.iscomplexobj(gradient) else gradient


def _changed(
    rule: Optimiser, weight: Array, gradient: Array, state: Tree, count: Array
) -> tuple[Array, Tree]:
    """One weight's update; the two parts of a complex number change each for itself."""
    if not jnp.iscomplexobj(weight):
        return rule.update(weight, gradient, state, count)
    parts = [
        rule.update(part(weight), part(gradient), jax.tree.map(part, state), count)
        for part in (jnp.real, jnp.imag)
    ]
    changed, own = jax.tree.map(lax.complex, *parts)
    return changed, own


def _updated(rule: Optimiser, weights: Tree, gradients: Tree, state: Tree) -> tuple[Tree, Tree]:
    """The new weights and the new state."""
    new_state: Tree = {name: {} for name in state if name != "count"}
    count = jnp.zeros((), jnp.float32)
    if "count" in state:
        new_state["count"] = state["count"] + 1
        count = new_state["count"].astype(jnp.float32)
    masters = state.get("master", {})
    new: Tree = {}
    for path, weight in weights.items():
        own = {name: state[name][path] for name in rule.state}
        held = masters.get(path, weight)
        kind = next((part.dtype for part in own.values()), held.dtype)
        changed, own = _changed(rule, held, gradients[path].astype(kind), own, count)
        changed = changed.astype(held.dtype)
        new[path] = changed.astype(weight.dtype)
        if path in masters:
            new_state["master"][path] = changed
        for name in rule.state:
            new_state[name][path] = own[name]
    return new, new_state
