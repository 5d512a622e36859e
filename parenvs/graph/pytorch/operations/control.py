"""Conditionals and loops whose branches and bodies are programs of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from parenvs.graph.pytorch.operations.table import operation

Program = Callable[..., tuple[Any, ...]]
"""A branch or body, given arrays."""


def _like(program: Program, start: Sequence[Array]) -> Program:
    """A body whose results have the types of what it starts from, as a loop's have to."""

    def body(*given: Array) -> tuple[Any, ...]:
        made = program(*given)
        carried = [jnp.asarray(x, s.dtype) for x, s in zip(made[: len(start)], start, strict=True)]
        return (*carried, *made[len(start) :])

    return body


@operation("cond")
def _cond(chosen: Any, yes: Program, no: Program, given: Sequence[Array]) -> tuple[Any, ...]:
    return lax.cond(jnp.asarray(chosen, jnp.bool_).reshape(()), yes, no, *given)


@operation("scan")
def _scan(
    body: Program, start: Sequence[Array], rows: Sequence[Array], others: Sequence[Array] = ()
) -> tuple[Any, ...]:
    body = _like(body, start)

    def step(carried: Sequence[Array], row: Sequence[Array]) -> tuple[Any, Any]:
        made = body(*carried, *row, *others)
        return list(made[: len(start)]), made[len(start) :]

    last, made = lax.scan(step, list(start), list(rows))
    return (*last, *made)


@operation("map_impl")
def _map(body: Program, rows: Sequence[Array], others: Sequence[Any] = ()) -> tuple[Any, ...]:
    return lax.map(lambda row: body(*row, *others), list(rows))


@operation("while_loop")
def _while(
    condition: Program, body: Program, start: Sequence[Array], others: Sequence[Array] = ()
) -> tuple[Any, ...]:
    """Repeat while a condition holds; no gradient goes through it, as its length is not known."""
    body = _like(body, start)

    @jax.custom_vjp
    def last(start: tuple[Array, ...], others: tuple[Array, ...]) -> tuple[Array, ...]:
        return lax.while_loop(
            lambda state: condition(*state, *others)[0].reshape(()),
            lambda state: tuple(body(*state, *others)),
            start,
        )

    def differentiated(*_: Any) -> Any:
        raise NotImplementedError(
            "the gradient of a loop whose length depends on values; write a loop of fixed length, "
            "or torch's scan"
        )

    last.defvjp(differentiated, differentiated)
    return last(tuple(map(jnp.asarray, start)), tuple(map(jnp.asarray, others)))
