"""The loss of a PyTorch module: what it returns itself, what a function makes of it, a stand-in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import _pytree as fx_pytree
from torch.fx import traceback as fx_traceback
from torch.utils import _pytree as pytree

from parenvs.errors import HloError, shown
from parenvs.graph.pytorch.build import TITLE

ROOT = "module"
"""Where the user's module stands below the module that is exported."""


class _StandIn:
    """Whether a stand-in is the loss; exporting would set a plain attribute back."""

    used = False


class Loss(nn.Module):
    """The module with its loss on top."""

    def __init__(self, module: nn.Module, loss: Callable[..., Any] | None, targets: int) -> None:
        super().__init__()
        setattr(self, ROOT, module)
        self.loss, self.targets = loss, targets
        self.stand_in = _StandIn()

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed in the last run, in sentences."""
        if not self.stand_in.used:
            return ()
        return (
            f"{title_of(getattr(self, ROOT))} returns no loss, so the mean square of its "
            "output stands in for it; return the loss, or give one (docs/reading.md)",
        )

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Return the loss; the last ``targets`` of ``inputs`` are what it compares with."""
        inputs, targets = inputs[: len(inputs) - self.targets], inputs[len(inputs) - self.targets :]
        module: nn.Module = getattr(self, ROOT)
        output, title = _run(module, inputs, keywords), title_of(module)
        if self.loss is not None:
            return _scalar(self.loss(output, *targets), f"the loss {name_of(self.loss)!r} returns")
        value, is_own = loss_of(output, title)
        self.stand_in.used |= not is_own
        return value


def _run(module: nn.Module, inputs: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """What a module returns; of an exported program, whose nodes keep the submodules they are of.

    Its own code would be traced anew, and lose them.
    """
    if not isinstance(module, torch.fx.GraphModule) or not hasattr(module, TITLE):
        return module(*inputs, **keywords)
    flat = fx_pytree.tree_flatten_spec((inputs, keywords), module._in_spec)
    with fx_traceback.preserve_node_meta():
        made = torch.fx.Interpreter(module).run(*flat, enable_io_processing=False)
    spec: Any = module._out_spec
    return pytree.tree_unflatten(made, spec)


def loss_of(output: Any, title: str) -> tuple[Any, bool]:
    """Return the loss in what a module returns, and whether it is its own or stands in for one.

    Args:
        output: what the module returns.
        title: of the module, for the error.

    Raises:
        HloError: no floating tensor is in it.
    """
    found = _own_loss(output)
    if found is not None:
        return found, True
    parts = output.logits if hasattr(output, "logits") else output
    tensors = [t for t in pytree.tree_leaves(parts) if _is_floating(t)]
    if not tensors:
        raise HloError(
            f"{title} returns no floating tensor, so nothing can be trained; return the loss"
        )
    return sum(t.float().square().mean() for t in tensors), False


def _own_loss(output: Any) -> Any:
    """The loss that a module returns itself, or None."""
    if isinstance(output, torch.Tensor):
        return output if _is_scalar(output) else None
    found = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if found is not None and _is_floating(found):
        return found.mean() if found.ndim else found
    if isinstance(output, (tuple, list)):
        scalars = [x for x in output if _is_scalar(x)]
        return scalars[0] if len(scalars) == 1 else None
    return None


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_scalar(value: Any) -> bool:
    return _is_floating(value) and value.numel() == 1


def _scalar(value: Any, what: str) -> Any:
    if not _is_scalar(value):
        kind = f"a tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else shown(value)
        raise HloError(f"{what} {kind}; it has to be a floating scalar")
    return value


def title_of(module: nn.Module) -> str:
    """Return the name of a module's class, of an exported program the name that it was made of."""
    return getattr(module, TITLE, None) or name_of(type(module))


def name_of(thing: Any) -> str:
    """Return the name of a class or function, or of an object's class."""
    return getattr(thing, "__name__", type(thing).__name__)
