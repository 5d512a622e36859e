"""The training step of an exported module, by ``jax.value_and_grad``, with an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import Array, lax, named_scope

from parenvs.errors import HloError, ParenvsError, one_line, refuse_unknown
from parenvs.graph.graph import Role
from parenvs.graph.pytorch import (  # noqa: F401  # each fills the table of operations
    convolutions,
    merged,
    nodes,
    reductions,
    shapes,
)
from parenvs.graph.pytorch.nodes import Exported, Input
from parenvs.graph.pytorch.operations import ELEMENTWISE, OPERATIONS, PLACE, RANDOM
from parenvs.graph.pytorch.randoms import KEY_WORDS, Key
from parenvs.graph.reader import proto_of

_TAKE = "getitem"
_OUTSIDE = "loss"
"""Scope of what is in no submodule."""


class Program:
    """A module's loss as a JAX function; ``fused`` is what ``fused_parts`` returns.

    Raises:
        HloError: an operation has no expression; the line names all such.
    """

    def __init__(self, exported: Exported) -> None:
        nodes.check_known(exported, {*OPERATIONS, _TAKE})
        self.exported = exported
        self.fused = nodes.fused_parts(exported)

    def abstract(self, *kinds: str) -> dict[str, jax.ShapeDtypeStruct]:
        """Path -> shape and type of the inputs of some kinds, as ``values`` has to hold them."""
        return {
            item.path: jax.ShapeDtypeStruct(sum(self.groups(item), ()), _dtype(item.element))
            for item in self.exported.inputs
            if item.kind in kinds
        }

    def groups(self, item: Input) -> merged.Groups:
        """The sizes that each dimension of an input is made of, of a weight that is several."""
        return self.fused.get(item.path, tuple((n,) for n in item.shape))

    @property
    def is_random(self) -> bool:
        """Whether the loss depends on random numbers."""
        return any(_draws(node) for node in nodes.all_nodes(self.exported.nodes))

    def __call__(
        self, values: Mapping[str, Array], key: Array | None = None
    ) -> tuple[Array, dict[str, Array]]:
        """Compute the loss, a scalar, and the new value of each buffer that is updated, by path.

        Args:
            values: path of each input of the exported module -> its array, shaped as ``abstract``
                says.
            key: (4,) uint32, for random numbers, if it draws any.
        """
        random = None if key is None else Key(key)
        results: dict[str, Any] = {}
        for item in self.exported.inputs:
            if item.kind == "constant":
                dtype = _dtype(item.element)
                results[item.name] = (
                    jnp.zeros(item.shape, dtype)
                    if item.value is None
                    else jnp.asarray(item.value, dtype)
                )
            else:
                results[item.name] = merged.grouped(values[item.path], self.groups(item))
        self._run_all(self.exported.nodes, results, random)
        loss = merged.plain(results[self.exported.loss])
        updated = self.exported.updated.items()
        return jnp.reshape(loss, ()), {path: merged.plain(results[x]) for path, x in updated}

    def _run_all(self, calls: Sequence[Any], known: dict[str, Any], key: Key | None) -> None:
        for scope, group in groupby(calls, key=nodes.scope):
            with ExitStack() as stack:
                for part in (scope or _OUTSIDE).split("/"):
                    stack.enter_context(named_scope(part))
                for node in group:
                    known[node.name] = self._run(node, known, key)

    def _inner(self, graph: Any, key: Key | None) -> Callable[..., Any]:
        inputs = [node.name for node in graph.nodes if node.op == "placeholder"]
        *_, output = graph.nodes

        def compute(*arrays: Array) -> tuple[Any, ...]:
            known: dict[str, Any] = dict(zip(inputs, arrays, strict=True))
            self._run_all(nodes.computed(graph), known, key)
            results = _resolved(output.args[0], known)
            return tuple(map(merged.plain, results if isinstance(results, list) else [results]))

        return compute

    def _run(self, node: Any, known: dict[str, Any], key: Key | None) -> Any:
        graphs = map(nodes.inner_graph, node.args)
        arguments: list[Any] = [
            _resolved(x, known) if graph is None else self._inner(graph, key)
            for x, graph in zip(node.args, graphs, strict=True)
        ]
        name = nodes.operation(node)
        if name == _TAKE:
            result = arguments[0][arguments[1]]
            result = result() if callable(result) else result
            if result is None:
                raise HloError(
                    f"{_where(self.exported, node)}: result {arguments[1]} of "
                    f"{node.args[0].name} is needed, for which there is no expression"
                )
            return _checked(self.exported, node, lambda: result)
        keywords = {k: _resolved(x, known) for k, x in node.kwargs.items() if k not in PLACE}
        if name in RANDOM:
            keywords["key"] = key
        apply = partial(merged.apply, name, OPERATIONS[name], name in ELEMENTWISE)
        return _checked(self.exported, node, lambda: apply(arguments, keywords))


def _checked(exported: Exported, node: Any, compute: Callable[[], Any]) -> Any:
    """What a node computes, of the type that PyTorch gives it; what fails is named."""
    try:
        return _checked_type(compute(), node.meta.get("val"))
    except HloError:
        raise
    except NotImplementedError as error:
        raise HloError(f"{_where(exported, node)}: no expression for {error}") from None
    except (TypeError, ValueError, AssertionError, AttributeError, IndexError) as error:
        raise HloError(
            f"{_where(exported, node)}: the expression for this operation fails "
            f"({type(error).__name__}: {one_line(error)}); please report it"
        ) from error


def _draws(node: Any) -> bool:
    """Whether a node needs random numbers: attention and recurrent layers only with dropout."""
    name = nodes.operation(node)
    if name == "scaled_dot_product_attention":
        return any(x > 0 for x in (*node.args[4:5], node.kwargs.get("dropout_p", 0.0)))
    if name in RANDOM and name.endswith(".input"):
        share, train = node.args[5:7]
        return bool(share and train)
    return name in RANDOM


def _where(exported: Exported, node: Any) -> str:
    return f"{exported.name}, {nodes.operation(node)} {nodes.where(node)}"


def _resolved(value: Any, known: Mapping[str, Any]) -> Any:
    if isinstance(value, torch.fx.Node):
        return known[value.name]
    if isinstance(value, torch.dtype):
        return _dtype(nodes.element_of(value))
    if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
        return None  # where and how a tensor is stored
    return [_resolved(x, known) for x in value] if isinstance(value, (tuple, list)) else value


def _dtype(name: str) -> Any:
    # Without JAX's 64-bit mode a PyTorch int64 is an int32 here.
    return jax.dtypes.canonicalize_dtype(jnp.dtype({"bool": "bool_"}.get(name, name)))


def _checked_type(result: Any, expected: Any) -> Any:
    """Results with PyTorch's element types; their shapes are checked."""
    if isinstance(expected, (tuple, list)):
        if not isinstance(result, tuple) or len(result) < len(expected):
            raise TypeError(f"it gives {type(result).__name__}, not {len(expected)} results")
        return result  # each is checked where it is taken
    if not isinstance(expected, torch.Tensor):
        return result
    result, shape = result[0] if isinstance(result, tuple) else result, nodes.shape_of(expected)
    if tuple(result.shape) != shape:
        raise TypeError(f"shape {tuple(result.shape)}, and PyTorch's is {shape}")
    dtype = _dtype(nodes.element_of(expected.dtype))
    if isinstance(result, merged.Merged):
        return merged.Merged(lax.convert_element_type(result.array, dtype), result.groups)
    return lax.convert_element_type(result, dtype)


Tree = dict[str, Any]
_WIDE = jnp.float32
_ROLES = (
    Role.VARIABLE, Role.OPTIMIZER, Role.FROZEN, Role.STATISTICS, Role.BATCH, Role.SCALAR,
)  # fmt: skip
"""Roles of the step's arguments."""


@dataclass(frozen=True)
class Optimizer:
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
    rate = (1e-3 / (1 - 0.9**count)).astype(m.dtype)  # bias correction of the first moment
    return weight - rate * m / deviation, {"m": m, "v": v}


def _momentum(weight: Array, gradient: Array, state: Tree, count: Array) -> tuple[Array, Tree]:
    # PyTorch's SGD: the rate multiplies the whole velocity, and dampening is 0.
    velocity = 0.9 * state["velocity"] + gradient
    return weight - 1e-3 * velocity, {"velocity": velocity}


def _sgd(weight: Array, gradient: Array, state: Tree, count: Array) -> tuple[Array, Tree]:
    return weight - 1e-3 * gradient, {}


OPTIMIZERS = {
    "adam": Optimizer(("m", "v"), _adam),
    "momentum": Optimizer(("velocity",), _momentum),
    "sgd": Optimizer((), _sgd),
}
"""Name -> optimizer."""


@dataclass(frozen=True)
class Step:
    """A training step that can be lowered or run.

    Attributes:
        function: ``function(weights, optimizer, frozen, statistics, batch, key)``; a dict each, by
            path, but for ``key``, (4,) uint32. It returns the new weights, the new state of the
            optimizer, the new statistics and the loss.
        arguments: its arguments as shapes; the key is None if no random numbers are drawn.
        program: the loss.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    program: Program

    @classmethod
    def of(cls, exported: Exported, optimizer: str = "adam", masters: bool = False) -> Step:
        """Make the step.

        Args:
            exported: the module.
            optimizer: ``"adam"``, ``"momentum"`` or ``"sgd"``.
            masters: keep float32 copies of narrower weights with the optimizer's state, which is
                float32 then; the weights are cast from them.

        Raises:
            ParenvsError: the optimizer is unknown, or the module has no weights.
            HloError: an operation has no expression.
        """
        refuse_unknown("unknown optimizer", optimizer, OPTIMIZERS)
        program, rule = Program(exported), OPTIMIZERS[optimizer]
        weights = program.abstract("weight")
        if not weights:
            raise ParenvsError(f"{exported.name}: no gradient reaches any parameter of the module")
        constants = program.abstract("frozen", "buffer")
        statistics, batch = program.abstract("statistics"), program.abstract("batch")
        like = {path: _like(w, masters) for path, w in weights.items()}
        state: Tree = {name: dict(like) for name in rule.state}
        copied = [path for path, w in weights.items() if masters and w.dtype != _WIDE]
        if copied:
            state["master"] = {path: _like(weights[path], True) for path in copied}
        if optimizer == "adam":
            state["count"] = jax.ShapeDtypeStruct((), jnp.int32)

        key = jax.ShapeDtypeStruct((KEY_WORDS,), jnp.uint32) if program.is_random else None

        def train_step(
            weights: Tree, optimizer: Tree, frozen: Tree, statistics: Tree, batch: Tree, key: Any
        ) -> tuple[Tree, Tree, Tree, Array]:
            def loss(weights: Tree) -> Any:
                return program({**frozen, **statistics, **batch, **weights}, key)

            (value, updated), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
            gradients = {path: ascent(gradient) for path, gradient in gradients.items()}
            with named_scope(rule_name):
                weights, optimizer = _update_all(rule, weights, gradients, optimizer)
            return weights, optimizer, updated, value

        rule_name = optimizer
        return cls(train_step, (weights, state, constants, statistics, batch, key), program)

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
        return proto_of(jax.jit(self.function, keep_unused=True).lower(*self.arguments))


def _like(weight: Any, wide: bool) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(weight.shape, _WIDE if wide else weight.dtype)


def ascent(gradient: Array) -> Array:
    """Return where the loss grows: JAX's gradient by a complex number is the conjugate of that."""
    return jnp.conj(gradient) if jnp.iscomplexobj(gradient) else gradient


def _update_all(rule: Optimizer, weights: Tree, gradients: Tree, state: Tree) -> tuple[Tree, Tree]:
    """The new weights and the new state of the optimizer, by path."""
    new_state: Tree = {name: {} for name in state if name != "count"}
    count = jnp.zeros((), jnp.float32)
    if "count" in state:
        new_state["count"] = state["count"] + 1
        count = new_state["count"].astype(jnp.float32)
    masters = state.get("master", {})
    new: Tree = {}
    for path, weight in weights.items():
        own = {name: state[name][path] for name in rule.state}
        # The master copy is what the optimizer changes; the narrow weight is cast from it.
        master = masters.get(path, weight)
        dtype = next((part.dtype for part in own.values()), master.dtype)
        gradient = gradients[path].astype(dtype)
        if jnp.iscomplexobj(master):  # the two parts of a complex number change each for itself
            parts = [
                rule.update(part(master), part(gradient), jax.tree.map(part, own), count)
                for part in (jnp.real, jnp.imag)
            ]
            changed, own = jax.tree.map(lax.complex, *parts)
        else:
            changed, own = rule.update(master, gradient, own, count)
        changed = changed.astype(master.dtype)
        new[path] = changed.astype(weight.dtype)
        if path in masters:
            new_state["master"][path] = changed
        for name in rule.state:
            new_state[name][path] = own[name]
    return new, new_state
