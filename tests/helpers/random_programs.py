"""Random JAX functions of a few steps, for what must hold on any graph."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

SIZES = (1, 2, 2, 3, 4, 4, 5, 6)


class Program:
    """A random function of arrays, and in one of three cases its gradient.

    Args:
        pick: chooses one of several options.

    Attributes:
        function: the function.
        arguments: shapes of its arguments; whole numbers are indices.
        text: the steps, to read when something fails.
    """

    def __init__(self, pick):
        self.pick = pick
        self.arguments, self.text, self.steps, self.shared = [], [], [], {}
        self.shapes = [tuple(self.size() for _ in range(pick((1, 2, 3, 3, 3))))]
        self.argument(self.shapes[0])
        for _ in range(pick(range(2, 9))):
            last = len(self.shapes) - 1
            self.step(pick((last, last, last, *range(last))))
        self.gradient = pick((False, False, True))
        self.function = jax.grad(self.loss, self.floats()) if self.gradient else self.run

    def size(self):
        """Some size of a dimension."""
        return self.pick(SIZES)

    def axis(self, shape):
        """Some dimension."""
        return self.pick(range(len(shape)))

    def argument(self, shape, dtype=np.float32):
        """A new argument; returns its number."""
        self.arguments.append(jax.ShapeDtypeStruct(shape, dtype))
        return len(self.arguments) - 1

    def other(self, shape):
        """An earlier value of the same shape, or a new argument: a function of both lists."""
        same = [k for k, s in enumerate(self.shapes) if s == shape]
        at = self.pick((None, *same))
        if at is not None:
            return lambda a, v: v[at]
        new = self.argument(shape)
        return lambda a, v: a[new]

    def step(self, at):
        """Append a step that takes the value ``at``."""
        shape = self.shapes[at]
        names = [name for name, (fits, _) in STEPS.items() if fits(shape)]
        # Steps that leave a dimension alone block it and all that are tied to it: not too many.
        if self.pick((True, True, False)):
            names = [name for name in names if name not in BLOCKING]
        name = self.pick(names)
        function = STEPS[name][1](self, shape)
        self.steps.append((at, function))
        self.text.append(f"{name} of {at}: {shape}")
        inputs = [jax.ShapeDtypeStruct(s, np.float32) for s in self.shapes]
        made = jax.eval_shape(lambda a, v: function(v[at], a, v), self.arguments, inputs)
        self.shapes.append(made.shape)
        self.shared.clear()

    def positions(self, size):
        """0, 1, ...: a constant, one for all steps that ask for it."""
        if size not in self.shared:
            self.shared[size] = lax.iota(jnp.float32, size)
        return self.shared[size]

    def run(self, *arguments):
        """The last value."""
        values = [arguments[0]]
        for at, function in self.steps:
            values.append(function(values[at], arguments, values))
        self.shared.clear()
        return values[-1]

    def loss(self, *arguments):
        """A number, to take gradients of."""
        return jnp.sum(self.run(*arguments) ** 2)

    def floats(self):
        """Numbers of the arguments that are no indices."""
        return tuple(k for k, a in enumerate(self.arguments) if a.dtype == np.float32)


BLOCKING = {"concatenate", "slice", "pad", "reverse", "cumsum", "sort", "scatter", "convolution"}
BLOCKING |= {"dynamic-slice", "dynamic-update"}
STEPS = {}
"""Name -> (whether it takes an array of that shape, what makes the step)."""


def step(name, fits=lambda shape: True):
    """Put what makes a step into the table."""

    def put(make):
        STEPS[name] = fits, make
        return make

    return put


def ranks(low, high=9):
    """Whether an array has so many dimensions."""
    return lambda shape: low <= len(shape) <= high


for key, fn in {"tanh": jnp.tanh, "sin": jnp.sin}.items():
    step(key)(lambda p, s, fn=fn: lambda x, a, v: fn(x))


@step("add")
@step("multiply")
def _arithmetic(p, s):
    how, y = p.pick((jnp.add, jnp.multiply)), p.other(s)
    return lambda x, a, v: how(x, y(a, v))


@step("add a smaller one", ranks(1))
def _smaller(p, s):
    w = p.argument(tuple(p.pick((1, n)) for n in s[p.pick((0, 1)) :]))
    return lambda x, a, v: x + a[w]


@step("positions", ranks(1))
def _positions(p, s):
    axis = p.axis(s)
    shape = [n if k == axis else 1 for k, n in enumerate(s)]
    return lambda x, a, v: x * p.positions(s[axis]).reshape(shape)


@step("where")
def _where(p, s):
    y, z = p.other(s), p.pick((lambda a, v: 0.0, p.other(s)))
    return lambda x, a, v: jnp.where(x > y(a, v), x, z(a, v))


@step("dense", ranks(1))
def _dense(p, s):
    w = p.argument((s[-1], p.size()))
    return lambda x, a, v: x @ a[w]


@step("x.T @ y", ranks(2, 2))
def _transposed_dense(p, s):
    y = p.argument((s[0], p.size()))
    return lambda x, a, v: x.T @ a[y]


@step("with itself", ranks(2, 2))
def _itself(p, s):
    return p.pick((lambda x, a, v: x @ x.T, lambda x, a, v: x.T @ x))


@step("square", lambda s: len(s) == 2 and s[0] == s[1])
def _square(p, s):
    return p.pick((lambda x, a, v: x @ x, lambda x, a, v: x + x.T))


@step("batch", ranks(3, 3))
def _batch(p, s):
    text, left = p.pick((("bij,bjk->bik", 2), ("bij,bik->bjk", 1), ("bij,bjk->ik", 2)))
    y = p.argument((s[0], s[left], p.size()))
    return lambda x, a, v: jnp.einsum(text, x, a[y])


@step("transpose", ranks(2))
def _transpose(p, s):
    order = list(range(len(s)))
    for k in range(len(s) - 1):  # one exchange after the other, as pick gives one thing at a time
        other = p.pick(range(k, len(s)))
        order[k], order[other] = order[other], order[k]
    return lambda x, a, v: x.transpose(order)


@step("merge", ranks(2))
def _merge(p, s):
    k = p.pick(range(len(s) - 1))
    return lambda x, a, v: x.reshape(*s[:k], s[k] * s[k + 1], *s[k + 2 :])


@step("split", lambda s: len(s) < 4 and any(n > 2 and n % 2 == 0 for n in s))
def _split(p, s):
    k = p.pick([k for k, n in enumerate(s) if n > 2 and n % 2 == 0])
    parts = p.pick(((2, s[k] // 2), (s[k] // 2, 2)))
    return lambda x, a, v: x.reshape(*s[:k], *parts, *s[k + 1 :])


@step("reshape across", ranks(2))
def _across(p, s):
    return lambda x, a, v: x.reshape(s[::-1])


@step("broadcast", ranks(0, 3))
def _broadcast(p, s):
    k, n = p.pick(range(len(s) + 1)), p.size()
    shape, places = (*s[:k], n, *s[k:]), [d + (d >= k) for d in range(len(s))]
    return lambda x, a, v: lax.broadcast_in_dim(x, shape, places)


@step("reduce", ranks(1))
def _reduce(p, s):
    how, axis, keep = p.pick((jnp.sum, jnp.max, jnp.mean)), p.axis(s), p.pick((False, True))
    return lambda x, a, v: how(x, axis=axis, keepdims=keep)


@step("concatenate", ranks(1))
def _concatenate(p, s):
    axis = p.axis(s)
    w = p.argument((*s[:axis], p.size(), *s[axis + 1 :]))
    twice = p.pick((False, True))
    return lambda x, a, v: jnp.concatenate([x, a[w], x] if twice else [x, a[w]], axis)


@step("slice", lambda s: any(n > 1 for n in s))
def _slice(p, s):
    axis = p.pick([k for k, n in enumerate(s) if n > 1])
    place = (slice(None),) * axis + (p.pick((slice(1, None), slice(None, None, 2))),)
    return lambda x, a, v: x[place]


@step("pad", ranks(1))
def _pad(p, s):
    axis, edges = p.axis(s), p.pick(((1, 0, 0), (0, 2, 0), (0, 0, 1)))
    config = [edges if k == axis else (0, 0, 0) for k in range(len(s))]
    return lambda x, a, v: lax.pad(x, jnp.float32(0), config)


for key, fn in {
    "softmax": lambda x, axis: jax.nn.softmax(x, axis=axis),
    "reverse": lambda x, axis: jnp.flip(x, axis),
    "cumsum": lambda x, axis: jnp.cumsum(x, axis),
    "sort": lambda x, axis: jnp.sort(x, axis),
}.items():

    @step(key, ranks(1))
    def _along(p, s, fn=fn):
        axis = p.axis(s)
        return lambda x, a, v: fn(x, axis)


@step("take", ranks(1, 3))
def _take(p, s):
    axis, i = p.axis(s), p.argument(p.pick(((2,), (4,), (2, 3))), np.int32)
    mode = p.pick(("clip", "fill"))
    return lambda x, a, v: jnp.take(x, a[i], axis=axis, mode=mode)


@step("scatter", ranks(1))
def _scatter(p, s):
    n, add = p.pick((2, 4)), p.pick((True, True, False))
    i, u = p.argument((n,), np.int32), p.argument((n, *s[1:]))
    return lambda x, a, v: x.at[a[i]].add(a[u]) if add else x.at[a[i]].set(a[u])


@step("convolution", ranks(3, 3))
def _convolution(p, s):
    groups = p.pick((1, 1, 2)) if s[1] % 2 == 0 else 1
    w = p.argument((groups * p.pick((1, 2)), s[1] // groups, p.pick((1, 3))))
    stride = p.pick((1, 1, 2))
    convolve = partial(lax.conv_general_dilated, window_strides=(stride,), padding="SAME")
    return lambda x, a, v: convolve(x, a[w], feature_group_count=groups)


@step("dynamic-slice", ranks(1))
def _dynamic_slice(p, s):
    axis, i = p.axis(s), p.argument((), np.int32)
    size = p.pick((1, s[axis]))
    return lambda x, a, v: lax.dynamic_slice_in_dim(x, a[i], size, axis)


@step("dynamic-update", ranks(1))
def _dynamic_update(p, s):
    axis, i = p.axis(s), p.argument((), np.int32)
    u = p.argument(tuple(p.pick((1, n)) if k == axis else n for k, n in enumerate(s)))
    return lambda x, a, v: lax.dynamic_update_slice_in_dim(x, a[u], a[i], axis)
