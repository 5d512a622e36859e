"""Models named as ``FILE.py:NAME`` or ``package.module:NAME``, lowered to HLO.

A name stands for a JAX function (extra ``jax``), or for a PyTorch module, a class of one or a
function that makes one (extra ``torch``).

The user's code runs here: what it prints goes to standard error, and an error of it becomes one
line that names its file and line.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import lru_cache, partial, reduce
from pathlib import Path
from typing import Any

from parenvs.errors import HloError, ParenvsError, did_you_mean, need_extra, shown
from parenvs.files import is_function
from parenvs.graph import sources
from parenvs.graph.cache import is_users, load_or_make
from parenvs.graph.graph import Graph


def torch_model(thing: Any, memory: bool = False) -> tuple[Any, Any]:
    """Return the PyTorch module that ``thing`` is or makes, and its loss; None for what is missing.

    Args:
        thing: a module, an ``ExportedProgram``, a class of a module, or a function without
            arguments that returns one of them, or a pair of one and its loss. Anything else is not
            called, if it takes arguments.
        memory: whether its weights get memory and values.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return None, None
    result = sources.of_program(thing)
    if not isinstance(result, torch.nn.Module):
        if hasattr(thing, "lower") or takes_arguments(thing):
            return None, None
        result = thing() if memory else without_memory(thing)
    model, *others = result if isinstance(result, tuple) and result else (result,)
    model = sources.of_program(model)
    if not isinstance(model, torch.nn.Module) or len(others) > 1:
        return None, None
    return model, (others[0] if others else None)


def without_memory(make: Callable[[], Any]) -> Any:
    """Return what ``make()`` returns: on PyTorch's meta device, unless it needs values."""
    torch = sys.modules["torch"]
    try:
        with torch.device("meta"):
            return make()
    except Exception:
        return make()


def takes_arguments(function: Any) -> bool:
    """Return whether a function has a parameter without a default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(p.default is p.empty and p.kind not in optional for p in parameters)


_LONGEST = 300
"""Characters of a user's error that are shown."""


def graph_of(instance: str, arguments: str | None = None, **options: Any) -> Graph:
    """Lower a function or module, see ``lower``, and read its graph, see ``read_module``."""
    name = sources.split_name(instance)[1].split(".")[-1]
    return lower(instance, arguments).graph(instance, name=name, **options)


def lower(instance: str, arguments: str | None = None) -> sources.Lowered:
    """Lower a function abstractly, or a PyTorch module's training step, to an HloModuleProto.

    Equal calls give the same module without running the user's code again, until the file changes.

    Args:
        instance: the function (also a jitted one, or an object that can be called), or a PyTorch
            module, an ``ExportedProgram``, a class of a module, or a function without arguments
            that returns one or a pair of one and its loss.
        arguments: its arguments: a name in the same file, or ``FILE.py:NAME``. A function is called
            for them, abstractly if it can be traced, so that nothing is allocated. A tuple or list
            holds positional arguments, a dict keyword arguments; anything else is one argument. The
            last one is what a module's loss, if one is given, compares with.

    Raises:
        ParenvsError: JAX or PyTorch is missing, there is no such file or name, no arguments are
            given, or the user's code fails; the line names its file and line.
    """
    return _lowered(instance, arguments, sources.stamp(instance))


@lru_cache(maxsize=1)
def _lowered(instance: str, arguments: str | None, changed_ns: int | None) -> sources.Lowered:
    return load_or_make((str(Path.cwd()), instance, arguments), partial(_new, instance, arguments))


def _new(instance: str, arguments: str | None) -> sources.Lowered:
    with need_extra("jax", "planning a function"):
        import jax
    with _resolved(instance, arguments) as (function, given):
        with _users_code(instance):
            model, loss = torch_model(function)
        if model is None:
            _check_given(given, function, instance)
            return _lower(jax, function, given, instance)
        inputs, named = _inputs(model, loss, given, instance, memory=False)
        count = len(inputs) - (loss is not None)
        with _users_code(instance):
            return sources.lower_module(model, inputs[:count], named, loss, inputs[count:])


def torch_module(
    instance: str, arguments: str | None = None
) -> tuple[Any, Any, tuple[Any, ...], dict[str, Any]]:
    """Make a PyTorch module, with values, and its arguments; see ``lower``.

    Returns:
        The module, its loss or None, positional arguments (with a loss, the last one is what that
        compares with) and keyword arguments.
    """
    with _resolved(instance, arguments) as (function, given):
        with _users_code(instance):
            model, loss = torch_model(function, memory=True)
        if model is None:
            raise ParenvsError(f"{instance}: {shown(function)} makes no torch.nn.Module")
        return model, loss, *_inputs(model, loss, given, instance)


def called(instance: str) -> Any:
    """Call a function without arguments, named as for ``lower``, and return what it returns."""
    with _resolved(instance, None) as (function, _), _users_code(instance):
        return function()


def is_torch(instance: str) -> bool:
    """Return whether an instance (see ``lower``) is a PyTorch module, not a JAX function."""
    with _resolved(instance, None) as (function, _), _users_code(instance):
        return torch_model(function)[0] is not None


def jax_function(
    instance: str, arguments: str | None = None, parts: bool = False
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return a JAX function, its positional and its keyword arguments; see ``lower``.

    ``parts``: whether weights that are several in one are taken apart, as they are planned.
    """
    with _resolved(instance, arguments) as (function, given):
        positional, named = _arguments(given, function, instance)
        with _users_code(instance):
            from parenvs.graph.parts import split_fused

            result = split_fused(function, positional, named) if parts else None
    if result is not None:
        return result.function, result.positional, result.named
    return function, positional, named


_NONE = object()
"""In the place of arguments that are not given."""
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""


@contextlib.contextmanager
def _resolved(instance: str, arguments: str | None) -> Iterator[tuple[Any, Any]]:
    """Yield the function that an instance names, and what gives its arguments."""
    module, name = sources.split_name(instance)
    if module.endswith(".py") and not Path(module).is_file():
        raise ParenvsError(f"instance {instance!r}: no file {module!r}")
    argument_module, argument_name = module, arguments
    if arguments is not None and is_function(arguments):
        argument_module, argument_name = sources.split_name(arguments)
    with _importing(module), _importing(argument_module), contextlib.redirect_stdout(sys.stderr):
        function = _attribute(_module(module), name, module)
        if not callable(function):
            raise ParenvsError(
                f"{instance}: {shown(function)} is no function; give one that can be called"
            )
        if argument_name is None:
            yield function, _NONE
        else:
            yield function, _attribute(_module(argument_module), argument_name, argument_module)


def _check_given(given: Any, function: Any, instance: str) -> None:
    if given is _NONE and takes_arguments(function):
        raise ParenvsError(
            f"{instance} takes arguments: give --args NAME, a function of that file (or "
            "FILE.py:NAME) that returns them as a tuple or dict, or the tuple or dict itself"
        )


def _inputs(model: Any, loss: Any, given: Any, instance: str, memory: bool = True) -> Arguments:
    """Return the arguments of a PyTorch module, with what the loss compares with."""
    example = sources.example_inputs(model) if given is _NONE else None
    positional, named = example or _arguments(given, model.forward, instance, memory)
    if loss is not None and not positional:
        raise ParenvsError(
            f"{instance}: it has a loss, so the last of its arguments (a tuple or list) has to be "
            "what the loss compares the output with"
        )
    return positional, named


def _arguments(given: Any, function: Any, instance: str, memory: bool = True) -> Arguments:
    """Return positional and keyword arguments, those of a function with ``memory`` or without."""
    _check_given(given, function, instance)
    with _users_code(instance):
        if callable(given):
            given = given() if memory else without_memory(given)
        return _call_form(() if given is _NONE else given)


def _lower(jax: Any, function: Any, given: Any, where: str) -> sources.Lowered:
    """Lower with the arguments that ``given`` is or returns, abstract ones if they suffice."""
    is_called = callable(given) and not isinstance(given, type)
    if is_called:
        with contextlib.suppress(Exception, SystemExit):
            return sources.lower_function(function, *_call_form(jax.eval_shape(given)))
    with _users_code(where):
        arguments = () if given is _NONE else given() if is_called else given
        return sources.lower_function(function, *_call_form(arguments))


def _call_form(value: Any) -> Arguments:
    """Return the positional and the keyword arguments that a value stands for."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return (), value
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return tuple(value), {}
    return (value,), {}


@contextlib.contextmanager
def _importing(module: str) -> Iterator[None]:
    """Put the folder of a file, or the current one, first on the path of imports."""
    folder = str(Path(module).resolve().parent) if module.endswith(".py") else str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _module(module: str) -> Any:
    """Import a module by name or file; a file runs once, under its own name if that is free."""
    with _users_code(module):
        if not module.endswith(".py"):
            return importlib.import_module(module)
        path = Path(module).resolve()
        name = path.stem
        existing = sys.modules.get(name)
        if existing is not None and getattr(existing, "__parenvs_stamp__", None) is None:
            name = f"parenvs_source_{name}"  # another module has the file's name
        stamp = (str(path), path.stat().st_mtime_ns)
        if getattr(sys.modules.get(name), "__parenvs_stamp__", None) == stamp:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        result: Any = importlib.util.module_from_spec(spec)
        sys.modules[name] = result  # as importing does: dataclasses and pickle look there
        try:
            spec.loader.exec_module(result)
        except BaseException:
            del sys.modules[name]
            raise
        result.__parenvs_stamp__ = stamp
        return result


def _attribute(module: Any, name: str, where: str) -> Any:
    try:
        return reduce(getattr, name.split("."), module)
    except AttributeError:
        known = [key for key in vars(module) if not key.startswith("_")]
        raise ParenvsError(f"{where}: no name {name!r}{did_you_mean(name, known)}") from None


@contextlib.contextmanager
def _users_code(where: str) -> Iterator[None]:
    """Turn an error of the user's code in the block into one line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise user_error(error, where) from None


def user_error(error: BaseException, where: str) -> ParenvsError:
    """Return an error of the user's code as a line, with the innermost place that they wrote."""
    if isinstance(error, ParenvsError):
        return error
    if isinstance(error, SyntaxError):
        line, words = f"{error.filename}:{error.lineno}", error.msg
    else:
        frames = traceback.extract_tb(error.__traceback__)
        lines_of_user = [f"{x.filename}:{x.lineno}" for x in frames if is_users(x.filename)]
        line, words = lines_of_user[-1] if lines_of_user else where, str(error)
    message = " ".join(part.strip() for part in words.splitlines() if part.strip())
    message = message if len(message) <= _LONGEST else message[:_LONGEST] + "..."
    return HloError(f"{_short(line)}: {type(error).__name__}" + (f": {message}" if message else ""))


def _short(location: str) -> str:
    with contextlib.suppress(ValueError, OSError):
        return str(Path(location).relative_to(Path.cwd()))
    return location
