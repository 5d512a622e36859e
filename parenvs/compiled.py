"""Sums of arrays, and loops over them that numba compiles; it is imported on their first call."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial, update_wrapper
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

F = TypeVar("F", bound=Callable)
WIDE = 64
"""Values per row from which NumPy adds rows faster than it accumulates columns."""
Array = np.ndarray
Figure = Any
"""A number or an array of numbers."""


def compiled(function: F) -> F:
    """Compile a function of arrays and numbers; it then runs without the interpreter's lock.

    Other compiled functions that it calls must be globals of its module, or of modules that are.
    Machine code is kept for later processes: in ``NUMBA_CACHE_DIR``, in the package's folder, or in
    the user's cache folder, whichever can be written first. The undecorated function is
    ``py_func``.
    """
    return cast(F, Compiled(function))


def shared(function: F, arrays: Callable | None = None) -> F:
    """Make an elementwise function one that compiled functions can call with numbers.

    Python runs it as it stands, on arrays, or ``arrays`` in its place.
    """
    return cast(F, Shared(function, arrays))


def bare(function: F) -> F:
    """Compile as ``compiled`` does a function that makes no arrays and divides by zero as NumPy."""
    # Most of the time of short loops over rows would be reference counting.
    return cast(F, Compiled(function, error_model="numpy", _nrt=False, forceinline=True))


def warm(function: Callable, *arguments: Any) -> None:
    """Compile a function, or load it from the disk, for the types of some arguments; do not run it.

    Solvers call it before they start their clock.
    """
    dispatcher = cast(Compiled, function).dispatcher
    dispatcher.compile(tuple(_numba().typeof(argument) for argument in arguments))


class Compiled:
    """A function that numba compiles on its first call, for each combination of argument types."""

    def __init__(self, function: Callable, **options: Any) -> None:
        self.py_func, self._dispatcher, self._options = function, None, options
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        """Run the function, compiled for the types of its arguments."""
        return self.dispatcher(*arguments)

    def __reduce__(self) -> str:
        """Pickle by name, as functions are: machine code belongs to one process."""
        return self.py_func.__qualname__

    @property
    def dispatcher(self) -> Any:
        """Numba's own object for the function."""
        if self._dispatcher is None:
            dispatcher = _numba().njit(nogil=True, no_cfunc_wrapper=True, **self._options)(
                self.py_func
            )
            dispatcher.get_call_template = partial(_called, dispatcher.get_call_template)
            # Without a folder that can be written, every process compiles for itself.
            with suppress(RuntimeError):
                dispatcher._cache = _disk_cache(self.py_func)
            self._dispatcher = self._dispatcher or dispatcher
        return self._dispatcher

    @property
    def _numba_type_(self) -> Any:
        # Numba reads this where a compiled function calls another.
        return _numba().types.Dispatcher(self.dispatcher)


def _called(template: Callable, arguments: Any, named: Any) -> Any:
    # Numba would compile a function that others call once for each constant that they pass.
    plain = _numba().types.unliteral
    return template(tuple(map(plain, arguments)), {name: plain(x) for name, x in named.items()})


class Shared(Compiled):
    """A function that Python runs on arrays, and compiled functions on numbers."""

    def __init__(self, function: Callable, arrays: Callable | None) -> None:
        super().__init__(function, error_model="numpy", _nrt=False, forceinline=True)
        self._arrays = arrays or function

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run the function in Python."""
        return self._arrays(*arguments, **named)


def _choose(condition: Any, one: Any, other: Any) -> Any:
    return one if condition else other


def _itself(values: Any) -> Any:
    return values


choose = shared(_choose, np.where)
"""Of arrays ``numpy.where``; of numbers one of the two."""
some = shared(_itself, np.any)
"""Whether any value is true."""


@cache
def _numba() -> Any:
    import numba
    from numba.core.compiler_lock import global_compiler_lock as lock

    # A child of a process in which another thread compiles would wait for that thread forever.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )
    return numba


def _disk_cache(function: Callable) -> Any:
    """Return numba's disk cache, keyed by ``_stamp``, that replaces broken entries on reading.

    Raises:
        RuntimeError: no folder can be written.
    """
    from numba.core import caching

    stamp = _stamp(function)

    def with_stamp(locator: Any) -> Any:
        return type(locator.__name__, (locator,), {"get_source_stamp": lambda _: stamp})

    class StampedFiles(caching.CompileResultCacheImpl):
        # Later folders are used where earlier ones cannot be written.
        _locator_classes = [  # noqa: RUF012 - numba declares it so
            with_stamp(caching.UserProvidedCacheLocator),
            with_stamp(caching.InTreeCacheLocator),
            with_stamp(caching.UserWideCacheLocator),
        ]

    class ForgivingCache(caching.FunctionCache):
        _impl_class = StampedFiles

        def load_overload(self, signature: Any, context: Any) -> Any:
            try:
                return super().load_overload(signature, context)
            except Exception:  # files that were cut short break pickle in many ways
                with suppress(OSError):
                    self.flush()
                return None  # compile anew

        def save_overload(self, signature: Any, data: Any) -> None:
            # The disk is full; or an argument is a function, which has no key on the disk: such a
            # function is kept as a part of those that call it.
            with suppress(OSError, TypeError):
                super().save_overload(signature, data)

    return ForgivingCache(function)


def _stamp(function: Callable) -> str:
    """Return a hash of the source files of a function and its compiled callees, and constants."""
    # Numba's own stamp is the time of the function's own file.
    parts: list[bytes] = []
    stack, seen = [function], {function}
    while stack:
        current = stack.pop()
        parts.append(Path(inspect.getfile(current)).read_bytes())
        names, scope = current.__code__.co_names, current.__globals__
        # Constants and callees may be those of a module, as in ``module.NAME``.
        scopes = [scope, *(vars(x) for x in map(scope.get, names) if inspect.ismodule(x))]
        for name, value in ((x, space[x]) for space in scopes for x in names if x in space):
            if isinstance(value, (int, float, str, tuple)):
                parts.append(f"{name}={value}".encode())
            elif isinstance(value, Compiled) and value.py_func not in seen:
                seen.add(value.py_func)
                stack.append(value.py_func)
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def running_sums(values: np.ndarray) -> np.ndarray:
    """Return the inclusive cumulative sums along the first axis."""
    if values.size < WIDE * len(values):
        return values.cumsum(axis=0)
    sums = np.empty_like(values)
    sums[:1] = values[:1]
    for index in range(1, len(values)):
        np.add(sums[index - 1], values[index], out=sums[index])
    return sums
