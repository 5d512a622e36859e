"""What is shown of tracing: PyTorch's errors in one line, and none of its warnings."""

from __future__ import annotations

import contextlib
import logging
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from parenvs.errors import HloError, one_line
from parenvs.graph.pytorch.losses import ROOT

NO_VALUES = "what a tensor holds decides a shape or a branch there, which no compiled step can have"
"""Why a data-dependent module cannot be planned."""
_LIBRARIES = ("site-packages", "dist-packages", "/parenvs/graph/pytorch/")
_LONGEST = 200
"""Characters of PyTorch's error that are shown."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep PyTorch's own warnings and logs of tracing off the user's screen."""
    logger = logging.getLogger("torch")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


@dataclass
class Watch:
    """Knows which submodule was running when tracing failed.

    Attributes:
        whole: the module that is traced.
        running: its submodules that run, outermost first.
    """

    whole: nn.Module
    running: list[nn.Module] = field(default_factory=list)

    def __enter__(self) -> Watch:
        """Start watching."""
        hooks = torch.nn.modules.module
        self._handles = [
            hooks.register_module_forward_pre_hook(lambda m, _: self.running.append(m)),
            hooks.register_module_forward_hook(lambda m, _, __: self._leave()),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()

    def _leave(self) -> None:
        if self.running:
            self.running.pop()

    def explained(self, error: Exception, name: str) -> HloError:
        """The framework's error in short, and ours."""
        paths = {id(m): path for path, m in self.whole.named_modules()}
        last = self.running[-1] if self.running else None
        path = paths.get(id(last), "").removeprefix(ROOT).lstrip(".").replace(".", "/")
        where = f"{name}, submodule {path} ({type(last).__name__})" if path else name
        words = one_line(error).partition(" (unhinted")[0].rstrip(". ")
        kind = type(error).__name__
        by_value = "DataDependent" in kind or "data-dependent" in words or ".item()" in words
        words = words if len(words) <= _LONGEST else words[:_LONGEST] + "..."
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if not any(part in f.filename for part in _LIBRARIES)]
        own = [f for f in own if not f.filename.startswith("<")]
        where = f"{own[-1].filename}:{own[-1].lineno}: {where}" if own else where
        remedy = (
            f"{NO_VALUES}: compute all cases and mask them"
            if by_value
            else "the module has to run on its example inputs, and torch.export(strict=False) has "
            "to accept it"
        )
        return HloError(f"{where}: torch.export fails ({kind}: {words}); {remedy}")
