"""Products, copies and collectives of JAX, on all devices of a process (extra ``jax``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from parenvs.clock.timer import samples
from parenvs.clock.xla.devices import devices
from parenvs.cluster import COLLECTIVES
from parenvs.errors import one_line

_TYPES = {
    "fp32": "float32",
    "tf32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
}
_SLOW = 1.0
"""Seconds of one run from which on it is not repeated."""
_AXIS = "device"
_ELEMENT = 4  # bytes of a float32


def measure(
    kind: str,
    count: int,
    shapes: Sequence[tuple[int, int, int]],
    copied: Sequence[int],
    sizes: Sequence[int],
    groups: Sequence[int],
    repeats: int,
) -> dict[str, Any]:
    """Measure kernels on all devices at once, then collectives of growing groups.

    Args:
        kind: ``"cpu"`` or ``"cuda"``.
        count: number of devices.
        shapes: (m, k, n) of products.
        copied: bytes of the arrays that are copied on each device.
        sizes: bytes of the arrays of collectives.
        groups: devices of the collectives.
        repeats: runs that count.

    Returns:
        See ``parenvs.clock.collectives.measure``; and ``"device"``, the name, and ``"memory"``,
        bytes of a device or None.
    """
    own = devices(kind, count)
    rates, missing = _products(own, shapes, repeats, kind)
    seconds: dict[tuple[str, int, int], list[float]] = {}
    for group in groups:
        for name in COLLECTIVES:
            if name == "send" and group > 2:
                continue
            for size in sizes:
                exact = max(1, round(size / (_ELEMENT * group))) * group * _ELEMENT
                try:
                    run = collective(name, exact, own[:group])
                    seconds[name, group, exact] = samples(run, repeats, 3)
                except Exception as error:  # of any kind, from within XLA
                    missing[f"{name} of {group}"] = one_line(error)
                    break
    stats = own[0].memory_stats() or {}
    return {
        "products": rates,
        "copies": {size: _copies(own, size, repeats) for size in copied},
        "collectives": seconds,
        "missing": missing,
        "device": own[0].device_kind,
        "memory": stats.get("bytes_limit"),
    }


def collective(name: str, size: int, own: Sequence[Any]) -> Callable[[], Any]:
    """Return what runs a collective once, on arrays that are made beforehand.

    Args:
        name: one of ``COLLECTIVES``; a send is from the first device to the second.
        size: bytes as the methods of ``Links`` take them: of a reduction what each device has, of
            an all-gather the result.
        own: the devices.
    """
    import jax
    from jax import lax

    count = len(own)
    whole = size // _ELEMENT
    length = whole // count if name == "all-gather" else whole
    bodies: dict[str, Callable[[Any], Any]] = {
        "send": lambda x: lax.ppermute(x, _AXIS, [(0, 1)]),
        "all-reduce": lambda x: lax.psum(x, _AXIS),
        "all-gather": lambda x: lax.all_gather(x, _AXIS, tiled=True),
        "reduce-scatter": lambda x: lax.psum_scatter(x, _AXIS, tiled=True),
        "all-to-all": lambda x: lax.all_to_all(x, _AXIS, 0, 0, tiled=True),
    }
    array = _spread(own, (length,), "float32")
    run = _on_each(own, bodies[name])
    return lambda: jax.block_until_ready(run(array))


def _products(
    own: Sequence[Any], shapes: Sequence[tuple[int, int, int]], repeats: int, kind: str
) -> tuple[dict[tuple[str, tuple[int, int, int]], list[float]], dict[str, str]]:
    """Time products of each shape in each precision, on all devices at once."""
    import jax.numpy as jnp

    rates, missing = {}, {}
    for precision, name in _TYPES.items():
        if precision == "tf32" and kind == "cpu":
            missing[precision] = "CPUs have none"
            continue
        words = {"tf32": "tensorfloat32", "fp32": "highest"}.get(precision)
        body = partial(jnp.matmul, precision=words)
        try:
            for shape in shapes:
                m, k, n = shape
                a, b = _spread(own, (m, k), name), _spread(own, (k, n), name)
                run = _on_each(own, body)
                rates[precision, shape] = _repeated(partial(_finished, run, a, b), repeats)
                if max(rates[precision, shape]) > _SLOW:
                    missing[precision] = f"larger than {m} x {k} x {n}, which takes a second"
                    break
        except Exception as error:  # of any kind, from within XLA
            missing[precision] = one_line(error)
    return rates, missing


def _finished(run: Callable[..., Any], *given: Any) -> None:
    """Run until the devices have done it."""
    import jax

    jax.block_until_ready(run(*given))


def _copies(own: Sequence[Any], size: int, repeats: int) -> list[float]:
    """Time copies of arrays, on all devices at once; a copy reads and writes each byte."""
    import jax

    array = _spread(own, (size // _ELEMENT,), "float32")
    run = _on_each(own, lambda x: x + 1)  # a plain copy would be left out
    return _repeated(lambda: jax.block_until_ready(run(array)), repeats)


def _repeated(run: Callable[[], Any], repeats: int) -> list[float]:
    """Time a kernel behind the run that compiles it; one that takes long runs once."""
    (first,) = samples(run, 1, 1)
    return samples(run, repeats if first < _SLOW else 1, 1 if first < _SLOW else 0)


def _spread(own: Sequence[Any], shape: tuple[int, ...], name: str) -> Any:
    """An array of ones of a shape on each device, one behind the other."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    kind = NamedSharding(Mesh(np.array(own), (_AXIS,)), PartitionSpec(_AXIS))
    whole = (shape[0] * len(own), *shape[1:])
    return jax.block_until_ready(
        jax.jit(lambda: jnp.ones(whole, jnp.dtype(name)), out_shardings=kind)()
    )


def _on_each(own: Sequence[Any], body: Callable[..., Any]) -> Callable[..., Any]:
    """A jitted function that every device runs on its part."""
    import jax
    from jax.sharding import Mesh, PartitionSpec

    part = PartitionSpec(_AXIS)
    mesh = Mesh(np.array(own), (_AXIS,))
    shard_map: Any = getattr(jax, "shard_map", None)
    if shard_map is None:
        from jax.experimental.shard_map import shard_map
    return jax.jit(shard_map(body, mesh=mesh, in_specs=part, out_specs=part))
