"""What is shown of tracing: PyTorch's errors in one line, and none of its warnings."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch
from torch import nn
from torch.nn.modules import transformer

from parenvs.errors import one_line
from parenvs.graph.pytorch.losses import ROOT
from parenvs.graph.pytorch.nodes import RefusedError

NO_VALUES = "what a tensor holds decides a shape or a branch there, which no compiled step can have"
"""Why a data-dependent module cannot be planned."""
_OWN = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
"""Folders whose lines are not those that a user reads."""
_STANDARD = (contextlib.__file__, functools.__file__)
_LONGEST = 200
"""Characters of PyTorch's error that are shown."""

_INSTEAD = {
    "ctc_loss": "a kernel computes it that tracing cannot follow: return the log probabilities "
    "instead (the mean square of the output then stands in for the loss), or write it as a loop "
    "over time by torch.logsumexp",
    "flex_attention": "it has no gradient here: write it as scaled_dot_product_attention, with the "
    "block mask or what is added to the scores as attn_mask",
}
"""Name of a PyTorch function -> why it fails, and what can be written in its place."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep PyTorch's own warnings, logs and listings of tracing off the user's screen."""
    logger = logging.getLogger("torch")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    written = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(written):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
    sys.stderr.write(written.getvalue())  # what fails is listed there, which the error says


@contextlib.contextmanager
def masks_as_given() -> Iterator[None]:
    """Keep ``nn.Transformer`` from reading what its masks hold, which is but a hint for kernels."""
    before = transformer._detect_is_causal_mask
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: bool(is_causal)
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = before


def refused(error: Exception, whole: nn.Module, name: str) -> RefusedError:
    """Return PyTorch's error in short, and ours: the line, the submodule and the remedy.

    Args:
        error: what tracing raised.
        whole: the module that was traced.
        name: of the user's module.
    """
    paths = {id(m): path for path, m in whole.named_modules()}
    frames = _frames(error)
    running = [
        frame.f_locals.get("self")
        for frame, _ in frames
        if frame.f_code.co_name in ("_call_impl", "forward")
    ]
    known = [module for module in running if id(module) in paths]
    path = paths[id(known[-1])].removeprefix(ROOT).lstrip(".").replace(".", "/") if known else ""
    where = f"{name}, submodule {path} ({type(known[-1]).__name__})" if path else name
    words = one_line(error).partition(" (unhinted")[0].rstrip(". ")
    kind = type(error).__name__
    by_value = (
        "DataDependent" in kind
        or "DynamicOutput" in kind
        or "data-dependent" in words
        or ".item()" in words
    )
    words = words if len(words) <= _LONGEST else words[:_LONGEST] + "..."
    own = [(frame, line) for frame, line in frames if is_called_from(frame.f_code.co_filename)]
    where = f"{own[-1][0].f_code.co_filename}:{own[-1][1]}: {where}" if own else where
    if any(_is_packed(frame) for frame, _ in frames):
        remedy = (
            "packed sequences have shapes that depend on values: give the recurrent layer the "
            "padded batch, and mask what is behind each sequence's end"
        )
    elif instead := [
        name
        for name in _INSTEAD
        if f"aten._{name}" in words or any(frame.f_code.co_name == name for frame, _ in frames)
    ]:
        remedy = f"{instead[0]}: {_INSTEAD[instead[0]]}"
    elif by_value:
        remedy = f"{NO_VALUES}: compute all cases and mask them, or use torch.cond"
    else:
        remedy = (
            "the module has to run on its example inputs, and torch.export(strict=False) has to "
            "accept it"
        )
    return RefusedError(f"{where}: torch.export fails ({kind}: {words})", remedy)


def is_called_from(file: str) -> bool:
    """Return whether a file calls PyTorch: it is neither PyTorch's own nor the importer's."""
    return not (file.startswith((*_OWN, "<")) or file in _STANDARD)


def _frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """The frames and lines that an error came through, the outermost first."""
    return list(traceback.walk_tb(error.__traceback__))


def _is_packed(frame: FrameType) -> bool:
    """Whether a function packs sequences, or is given packed ones."""
    packed = torch.nn.utils.rnn.PackedSequence
    return frame.f_code.co_name == "pack_padded_sequence" or any(
        isinstance(value, packed) for value in frame.f_locals.values()
    )
