"""An exported module as a JAX function of its weights, buffers and inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, named_scope

from parenvs.errors import HloError, one_line
from parenvs.graph.pytorch import layout
from parenvs.graph.pytorch.fused import fused_parts
from parenvs.graph.pytorch.nodes import (
    ElementType,
    Exported,
    Input,
    Node,
    Subprogram,
    TensorType,
    Value,
    all_nodes,
    check_known,
)
from parenvs.graph.pytorch.operations import (  # noqa: F401
    algebra,
    control,
    convolutions,
    fourier,
    indexing,
    norms,
    products,
    recurrent,
    reductions,
    sampling,
    shapes,
)
from parenvs.graph.pytorch.operations.elementwise import ELEMENTWISE
from parenvs.graph.pytorch.operations.randoms import Key
from parenvs.graph.pytorch.operations.table import OPERATIONS, RANDOM, without_place

_TAKE = "getitem"
_OUTSIDE = "loss"
"""Scope of what is in no submodule."""


class Program:
    """A module's loss as a JAX function.

    Attributes:
        exported: the operations.
        fused: weights that are several in one, see ``fused_parts``.

    Raises:
        HloError: an operation has no expression; the line names all such.
    """

    def __init__(self, exported: Exported) -> None:
        check_known(exported, {*OPERATIONS, _TAKE})
        self.exported = exported
        self.fused = fused_parts(exported)

    def abstract(self, *kinds: str) -> dict[str, jax.ShapeDtypeStruct]:
        """Path -> shape and type of the inputs of some kinds, as ``values`` has to hold them."""
        return {
            one.path: jax.ShapeDtypeStruct(self.shape(one), _dtype(one.type.element))
            for one in self.exported.inputs
            if one.kind in kinds
        }

    def shape(self, one: Input) -> tuple[int, ...]:
        """The shape of an input: of a weight that is several in one, with its parts apart."""
        groups = self.fused.get(one.path)
        return one.type.shape if groups is None else sum(groups, ())

    @property
    def is_random(self) -> bool:
        """Whether the loss depends on random numbers."""
        return any(_draws(node) for node in all_nodes(self.exported.nodes))

    def __call__(
        self, values: Mapping[str, Array], key: Array | None = None
    ) -> tuple[Array, dict[str, Array]]:
        """Compute the loss.

        Args:
            values: path of each input of the exported module -> its array, shaped as ``abstract``
                says.
            key: (4,) uint32, for random numbers, if it draws any.

        Returns:
            The loss, a scalar, and the new value of each buffer that is updated, by path.
        """
        drawn = None if key is None else Key(key)
        known: dict[str, Any] = {}
        for one in self.exported.inputs:
            if one.kind == "constant":
                kind = _dtype(one.type.element)
                known[one.name] = (
                    jnp.zeros(one.type.shape, kind)
                    if one.value is None
                    else jnp.asarray(one.value, kind)
                )
            else:
                groups = self.fused.get(one.path, tuple((n,) for n in one.type.shape))
                known[one.name] = layout.seen(values[one.path], groups)
        self._run_all(self.exported.nodes, known, drawn)
        loss = layout.plain(known[self.exported.loss.name])
        updated = {
            path: layout.plain(known[value.name]) for path, value in self.exported.updated.items()
        }
        return jnp.reshape(loss, ()), updated

    def _run_all(self, nodes: Sequence[Node], known: dict[str, Any], key: Key | None) -> None:
        """Compute nodes in their order, each in its scope."""
        for scope, group in groupby(nodes, key=lambda node: node.scope):
            with ExitStack() as stack:
                for part in (scope or _OUTSIDE).split("/"):
                    stack.enter_context(named_scope(part))
                for node in group:
                    known[node.name] = self._run(node, known, key)

    def _inner(self, program: Subprogram, key: Key | None) -> Callable[..., Any]:
        """A branch or body as a function of arrays."""

        def compute(*arrays: Array) -> tuple[Any, ...]:
            known: dict[str, Any] = dict(zip(program.inputs, arrays, strict=True))
            self._run_all(program.nodes, known, key)
            return tuple(layout.plain(_given(x, known)) for x in program.outputs)

        return compute

    def _run(self, node: Node, known: dict[str, Any], key: Key | None) -> Any:
        """Compute one node, of the type that PyTorch gives it."""
        arguments: list[Any] = [
            self._inner(x, key) if isinstance(x, Subprogram) else _given(x, known)
            for x in node.arguments
        ]
        if node.operation == _TAKE:
            made = arguments[0][arguments[1]]
            made = made() if callable(made) else made
            if made is None:
                raise HloError(
                    f"{_place(self.exported, node)}: result {arguments[1]} of "
                    f"{node.arguments[0].name} is needed, for which there is no expression"
                )
            return _checked(self.exported, node, lambda: made)
        keywords = {k: _given(x, known) for k, x in without_place(node.keywords).items()}
        if node.operation in RANDOM:
            keywords["key"] = key
        return _checked(
            self.exported,
            node,
            lambda: layout.apply(
                node.operation,
                OPERATIONS[node.operation],
                node.operation in ELEMENTWISE,
                arguments,
                keywords,
            ),
        )


def _checked(exported: Exported, node: Node, compute: Callable[[], Any]) -> Any:
    """What a node computes, of the type that PyTorch gives it; what fails is named."""
    try:
        return _typed(compute(), node.result)
    except HloError:
        raise
    except NotImplementedError as error:
        raise HloError(f"{_place(exported, node)}: no expression for {error}") from None
    except (TypeError, ValueError, AssertionError, AttributeError, IndexError) as error:
        raise HloError(
            f"{_place(exported, node)}: the expression for this operation fails "
            f"({type(error).__name__}: {one_line(error)}); please report it"
        ) from error


def _draws(node: Node) -> bool:
    """Whether a node needs random numbers: attention and recurrent layers only with dropout."""
    if node.operation not in RANDOM:
        return False
    if node.operation == "scaled_dot_product_attention":
        given = [*node.arguments[4:5], node.keywords.get("dropout_p", 0.0)]
        return any(share > 0 for share in given)
    if node.operation.endswith(".input"):
        share, train = node.arguments[5:7]
        return bool(share and train)
    return True


def _place(exported: Exported, node: Node) -> str:
    called = f", called at {node.line}" if node.line else ""
    return f"{exported.name}, {node.operation} in {node.scope or 'the module itself'}{called}"


def _given(value: Any, known: Mapping[str, Any]) -> Any:
    """An argument with the arrays that it refers to."""
    if isinstance(value, Value):
        return known[value.name]
    if isinstance(value, ElementType):
        return _dtype(value.name)
    if isinstance(value, list):
        return [_given(x, known) for x in value]
    return value


def _dtype(name: str) -> Any:
    """JAX's element type for PyTorch's; 64 bits become 32 where JAX has no others."""
    return jax.dtypes.canonicalize_dtype(jnp.dtype({"bool": "bool_"}.get(name, name)))


def _typed(made: Any, wanted: Any) -> Any:
    """Results with PyTorch's element types; their shapes are checked."""
    if isinstance(wanted, tuple):
        if not isinstance(made, tuple) or len(made) < len(wanted):
            raise TypeError(f"it gives {type(made).__name__}, not {len(wanted)} results")
        return made  # each is checked where it is taken
    if not isinstance(wanted, TensorType):
        return made
    if isinstance(made, tuple):
        made = made[0]
    if tuple(made.shape) != wanted.shape:
        raise TypeError(f"shape {tuple(made.shape)}, and PyTorch's is {wanted.shape}")
    kind = _dtype(wanted.element)
    if isinstance(made, layout.Merged):
        return layout.Merged(_cast(made.array, kind), made.groups)
    return _cast(made, kind)


def _cast(array: Any, kind: Any) -> Array:
    return jax.lax.convert_element_type(array, kind)
