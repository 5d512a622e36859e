"""Recurrent layers, one loop over time for each layer and direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from parenvs.graph.pytorch.operations.table import random

State = tuple[Array, ...]
Cell = Callable[..., State]
"""Computes the next state of a state, the input's product, the weight and the bias."""


def _dense(x: Array, weight: Array, bias: Array | None) -> Array:
    product = lax.dot_general(x, weight, (((x.ndim - 1,), (1,)), ((), ())))
    return product if bias is None else product + bias


def _lstm_cell(
    state: State, given: Array, weight: Array, bias: Array | None, projection: Array | None = None
) -> State:
    gates = given + _dense(state[0], weight, bias)
    enter, forget, new, leave = jnp.split(gates, 4, -1)
    cell = jax.nn.sigmoid(forget) * state[1] + jax.nn.sigmoid(enter) * jnp.tanh(new)
    out = jax.nn.sigmoid(leave) * jnp.tanh(cell)
    return out if projection is None else _dense(out, projection, None), cell


def _gru_cell(state: State, given: Array, weight: Array, bias: Array | None) -> State:
    reset, update, new = jnp.split(given, 3, -1)
    own_reset, own_update, own_new = jnp.split(_dense(state[0], weight, bias), 3, -1)
    update = jax.nn.sigmoid(update + own_update)
    new = jnp.tanh(new + jax.nn.sigmoid(reset + own_reset) * own_new)
    return ((1 - update) * new + update * state[0],)


def _plain_cell(function: Callable[[Array], Array]) -> Cell:
    def cell(state: State, given: Array, weight: Array, bias: Array | None) -> State:
        return (function(given + _dense(state[0], weight, bias)),)

    return cell


def _run(
    cell: Cell,
    x: Array,
    states: Sequence[Array],
    weights: Sequence[Array],
    how: tuple[Any, ...],
    key: Any,
) -> tuple[Array, ...]:
    """Run the layers; returns the outputs and the last states, as PyTorch's operations do.

    ``how`` says whether there are biases, how many layers, the share of dropout, whether in
    training, whether both directions, and whether the batch comes first.
    """
    has_biases, layers, dropout, train, bidirectional, batch_first = how
    each, over = divmod(len(weights), layers * (1 + bidirectional))
    projected = each - (4 if has_biases else 2)
    if over or projected not in (0, 1):
        raise NotImplementedError(f"{len(weights)} weights of a recurrent layer")
    x = x.swapaxes(0, 1) if batch_first else x
    last: list[State] = []
    for layer in range(layers):
        directions = []
        for back in range(1 + bidirectional):
            number = layer * (1 + bidirectional) + back
            of_input, of_state, *others = weights[each * number : each * (number + 1)]
            bias, own = others[:2] if has_biases else (None, None)
            held = (of_state, own, *others[len(others) - projected :])

            def step(state: State, given: Array, held: Any = held) -> Any:
                state = cell(state, given, *held)
                return state, state[0]

            start = tuple(state[number] for state in states)
            end, made = lax.scan(step, start, _dense(x, of_input, bias), reverse=bool(back))
            directions.append(made)
            last.append(end)
        x = jnp.concatenate(directions, -1) if bidirectional else directions[0]
        if dropout and train and layer < layers - 1:
            x = key.dropout(x, dropout)
    ends = [jnp.stack(parts) for parts in zip(*last, strict=True)]
    return (x.swapaxes(0, 1) if batch_first else x, *ends)


@random("lstm.input")
def _lstm(x: Array, states: Sequence[Array], weights: Any, *how: Any, key: Any) -> Any:
    return _run(_lstm_cell, x, states, weights, how, key)


@random("gru.input")
def _gru(x: Array, state: Array, weights: Any, *how: Any, key: Any) -> Any:
    return _run(_gru_cell, x, [state], weights, how, key)


@random("rnn_tanh.input")
def _rnn_tanh(x: Array, state: Array, weights: Any, *how: Any, key: Any) -> Any:
    return _run(_plain_cell(jnp.tanh), x, [state], weights, how, key)


@random("rnn_relu.input")
def _rnn_relu(x: Array, state: Array, weights: Any, *how: Any, key: Any) -> Any:
    return _run(_plain_cell(jax.nn.relu), x, [state], weights, how, key)
