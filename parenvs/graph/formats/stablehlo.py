"""Turns StableHLO into HLO with jaxlib's own converter (extra ``jax``).

It reads MLIR text, which ``lowered.as_text()`` gives by default, and MLIR bytecode, which
``exported.mlir_module_serialized`` is. Text has the names of arguments and the scopes only with
``lowered.as_text(debug_info=True)``. The StableHLO of other front ends is read if its shapes are
fixed and its operations are StableHLO's.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

from parenvs.errors import HloError, one_line

SUFFIXES = (".mlir", ".mlirbc")
"""Endings of files that hold StableHLO."""
_BYTECODE = b"ML\xefR"
"""The first bytes of MLIR bytecode."""
_TEXT = re.compile(rb"^[ \t]*(\"?builtin\.)?module\b.*\{|\bfunc\.func\b|\bstablehlo\.", re.M)
"""What MLIR text has and HLO text has not."""
_CONVERTERS = ("jaxlib._jax", "jaxlib.xla_extension")
"""Modules in which versions of jaxlib keep their converter."""
_REMEDY = (
    "pip install 'parenvs[jax]', or write lowered.as_text('hlo', debug_info=True) or "
    "lowered.compiler_ir('hlo').as_serialized_hlo_module_proto()"
)


def is_stablehlo(data: bytes) -> bool:
    """Return whether a file's content is StableHLO, as text or as bytecode."""
    if data.startswith(_BYTECODE):
        return True
    return _TEXT.search(data) is not None


def hlo_of(data: bytes, where: str) -> bytes:
    """Convert StableHLO to a serialized HloModuleProto.

    Args:
        data: the content of a file, text or bytecode.
        where: the file, for error messages.

    Raises:
        HloError: JAX is missing or too old, or cannot convert the module.
    """
    source: bytes | str = data
    if not data.startswith(_BYTECODE):
        source = _text_of(data, where)
        if "loc(" not in source:
            warnings.warn(
                f"{where}: this StableHLO has no names of arguments and no scopes, so parameters "
                "are called Arg_0, Arg_1, ...; lowered.as_text(debug_info=True) keeps them",
                stacklevel=2,
            )
    convert = _converter()
    if convert is None:
        raise HloError(
            f"{where}: this is StableHLO, and JAX, which converts it, is not here: {_REMEDY}"
        )
    try:
        computation = convert(source, use_tuple_args=False, return_tuple=False)
        return computation.as_serialized_hlo_module_proto()
    except (RuntimeError, ValueError, TypeError) as error:
        raise HloError(
            f"{where}: jaxlib cannot turn this StableHLO into HLO: {one_line(error)}"
        ) from None


def _text_of(data: bytes, where: str) -> str:
    """Decode MLIR text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise HloError(f"{where}: not MLIR text (not UTF-8)") from None


def _converter() -> Callable[..., Any] | None:
    """Return jaxlib's function from MLIR to an XlaComputation, None if there is none."""
    for name in _CONVERTERS:
        try:
            return import_module(name).mlir.mlir_module_to_xla_computation
        except (ImportError, AttributeError):
            continue
    return None
