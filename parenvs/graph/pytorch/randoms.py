"""Operations that draw numbers.

All numbers come from ``rng-bit-generator``: one instruction each, which costs no FLOPs, as PyTorch
draws them inside its kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy import special

from parenvs.graph.pytorch.operations import RANDOM, operation, register
from parenvs.graph.pytorch.reductions import linear

KEY_WORDS = 4
"""32-bit words of the state that the generator starts from."""


class Key:
    """Random numbers of one training step; each draw adds its number to ``words``, (4,) uint32."""

    def __init__(self, words: Array) -> None:
        self.words = words
        self._number = itertools.count(1)

    def bits(self, shape: Sequence[int]) -> Array:
        """Draw 32 random bits for each element."""
        start = self.words + jnp.uint32(next(self._number))
        algorithm = lax.RandomAlgorithm.RNG_DEFAULT
        return lax.rng_bit_generator(start, tuple(shape), jnp.uint32, algorithm=algorithm)[1]

    def uniform(self, shape: Sequence[int]) -> Array:
        """Draw float32 numbers from [0, 1)."""
        # 24 bits are what a float32's mantissa can hold.
        return (self.bits(shape) >> 8).astype(jnp.float32) * 2.0**-24

    def normal(self, shape: Sequence[int]) -> Array:
        """Draw float32 numbers of mean 0 and variance 1."""
        return jnp.sqrt(2.0) * special.erfinv(2 * self.uniform(shape) - 1 + 2.0**-24)

    def below(self, end: int, shape: Sequence[int]) -> Array:
        """Draw int32 numbers from 0 to ``end - 1``."""
        return (self.bits(shape) % jnp.uint32(end)).astype(jnp.int32)

    def bernoulli(self, shape: Sequence[int], share: float) -> Array:
        """Draw True with a probability of ``share``."""
        return self.bits(shape) < jnp.uint32(min(int(share * 2**32), 2**32 - 1))

    def dropout(self, x: Array, share: float) -> Array:
        """Drop a share of the elements, and scale the others up."""
        if share >= 1:
            return jnp.zeros_like(x)
        return jnp.where(self.bernoulli(x.shape, 1 - share), x / (1 - share), 0)


@operation("native_dropout", kind=RANDOM)
def _dropout(x: Array, share: float, train: bool | None = True, *, key: Key) -> tuple[Any, ...]:
    if train is False or share == 0:
        return x, jnp.ones(x.shape, jnp.bool_)
    if share == 1:
        return jnp.zeros_like(x), jnp.zeros(x.shape, jnp.bool_)
    retained = key.bernoulli(x.shape, 1 - share)
    return jnp.where(retained, x / (1 - share), 0), retained


@operation("multinomial", kind=RANDOM)
def _multinomial(weights: Array, count: int, replacement: bool = False, *, key: Key) -> Array:
    """Draw indices by their weights: the largest logarithms with Gumbel noise (Gumbel-top-k)."""
    shape = (*weights.shape[:-1], count, weights.shape[-1]) if replacement else weights.shape
    noise = -jnp.log(-jnp.log(key.uniform(shape) + 2.0**-25))
    scores = jnp.log(weights[..., None, :] if replacement else weights) + noise
    return jnp.argmax(scores, -1) if replacement else lax.top_k(scores, count)[1]


register(
    {
        "bernoulli.p": lambda x, share=0.5, *, key: key.bernoulli(x.shape, share),
        "rand": lambda size, dtype=None, *, key: key.uniform(size),
        "rand_like": lambda x, dtype=None, *, key: key.uniform(x.shape),
        "uniform": lambda x, low=0.0, high=1.0, *, key: low + (high - low) * key.uniform(x.shape),
        "randn": lambda size, dtype=None, *, key: key.normal(size),
        "randn_like": lambda x, dtype=None, *, key: key.normal(x.shape),
        "normal_functional": lambda x, mean=0.0, std=1.0, *, key: mean + std * key.normal(x.shape),
        "randint": lambda high, size, dtype=None, *, key: key.below(high, size),
        "randint.low": lambda low, high, size, dtype=None, *, key: (
            low + key.below(high - low, size)
        ),
        # The inverse of the exponential distribution.
        "exponential": lambda x, rate=1.0, *, key: -jnp.log1p(-key.uniform(x.shape)) / rate,
        # Places sorted by random numbers are a random permutation.
        "randperm": lambda count, dtype=None, *, key: lax.sort(
            (key.bits((count,)), lax.iota(jnp.int32, count)), num_keys=1
        )[1],
    },
    RANDOM,
)


State = tuple[Array, ...]
Cell = Callable[..., State]
"""Computes the next state of a state, the input's product, the weight and the bias."""


def _lstm_cell(
    state: State, given: Array, weight: Array, bias: Array | None, projection: Array | None = None
) -> State:
    gates = given + linear(state[0], weight, bias)
    register, forget, new, leave = jnp.split(gates, 4, -1)
    cell = jax.nn.sigmoid(forget) * state[1] + jax.nn.sigmoid(register) * jnp.tanh(new)
    out = jax.nn.sigmoid(leave) * jnp.tanh(cell)
    return out if projection is None else linear(out, projection), cell


def _gru_cell(state: State, given: Array, weight: Array, bias: Array | None) -> State:
    reset, update, new = jnp.split(given, 3, -1)
    state_reset, state_update, state_new = jnp.split(linear(state[0], weight, bias), 3, -1)
    update = jax.nn.sigmoid(update + state_update)
    # PyTorch applies the reset gate behind the state's product, where the paper has it before.
    new = jnp.tanh(new + jax.nn.sigmoid(reset + state_reset) * state_new)
    return ((1 - update) * new + update * state[0],)


def _plain_cell(function: Callable[[Array], Array]) -> Cell:
    return lambda state, given, weight, bias: (function(given + linear(state[0], weight, bias)),)


def _recurrent(
    cell: Cell, x: Array, start: Any, weights: Sequence[Array], *how: Any, key: Any
) -> tuple[Array, ...]:
    """Run recurrent layers, with the arguments and results of PyTorch's operations."""
    has_biases, layers, dropout, train, bidirectional, batch_first = how
    per_run, rest = divmod(len(weights), layers * (1 + bidirectional))
    projections = per_run - (4 if has_biases else 2)
    if rest or projections not in (0, 1):
        raise NotImplementedError(f"{len(weights)} weights of a recurrent layer")
    states = start if isinstance(start, (tuple, list)) else [start]
    x = x.swapaxes(0, 1) if batch_first else x
    finals: list[State] = []
    for layer in range(layers):
        directions = []
        for back in range(1 + bidirectional):
            number = layer * (1 + bidirectional) + back
            input_weight, state_weight, *others = weights[per_run * number : per_run * (number + 1)]
            input_bias, state_bias = others[:2] if has_biases else (None, None)
            parameters = (state_weight, state_bias, *others[len(others) - projections :])

            def step(state: State, given: Array, parameters: Any = parameters) -> Any:
                state = cell(state, given, *parameters)
                return state, state[0]

            first = tuple(state[number] for state in states)
            projected = linear(x, input_weight, input_bias)
            final, result = lax.scan(step, first, projected, reverse=bool(back))
            directions.append(result)
            finals.append(final)
        x = jnp.concatenate(directions, -1) if bidirectional else directions[0]
        if dropout and train and layer < layers - 1:
            x = key.dropout(x, dropout)
    stacked = [jnp.stack(parts) for parts in zip(*finals, strict=True)]
    return (x.swapaxes(0, 1) if batch_first else x, *stacked)


register(
    {
        "lstm.input": partial(_recurrent, _lstm_cell),
        "gru.input": partial(_recurrent, _gru_cell),
        "rnn_tanh.input": partial(_recurrent, _plain_cell(jnp.tanh)),
        "rnn_relu.input": partial(_recurrent, _plain_cell(jax.nn.relu)),
    },
    RANDOM,
)


Program = Callable[..., tuple[Any, ...]]
"""A branch or body, given arrays."""


def _with_types_of(program: Program, start: Sequence[Array]) -> Program:
    """A body whose results have the types of what it starts from, as a loop's have to."""

    def body(*given: Array) -> tuple[Any, ...]:
        result = program(*given)
        carried = [
            jnp.asarray(x, s.dtype) for x, s in zip(result[: len(start)], start, strict=True)
        ]
        return (*carried, *result[len(start) :])

    return body


@operation("scan")
def _scan(
    body: Program, start: Sequence[Array], rows: Sequence[Array], others: Sequence[Array] = ()
) -> tuple[Any, ...]:
    body = _with_types_of(body, start)

    def step(carried: Sequence[Array], row: Sequence[Array]) -> tuple[Any, Any]:
        result = body(*carried, *row, *others)
        return list(result[: len(start)]), result[len(start) :]

    last, result = lax.scan(step, list(start), list(rows))
    return (*last, *result)


@operation("while_loop")
def _while(
    condition: Program, body: Program, start: Sequence[Array], others: Sequence[Array] = ()
) -> tuple[Any, ...]:
    """Repeat while a condition holds; no gradient goes through it, as its length is not known."""
    body = _with_types_of(body, start)

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


@operation("cond")
def _cond(predicate: Any, if_true: Program, if_false: Program, operands: Sequence[Array]) -> Any:
    return lax.cond(jnp.asarray(predicate, jnp.bool_).reshape(()), if_true, if_false, *operands)


@operation("map_impl")
def _map(body: Program, rows: Sequence[Array], others: Sequence[Array] = ()) -> Any:
    return lax.map(lambda row: body(*row, *others), list(rows))
