"""Reads a PyTorch module as the graph of its training step (extra ``torch``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parenvs.errors import HloError, ParenvsError, need_extra, shown
from parenvs.graph.graph import Graph, Role
from parenvs.graph.pytorch.build import example_inputs, of_program
from parenvs.graph.pytorch.nodes import RefusedError
from parenvs.graph.reader import read_proto

OPTIONS = ("loss", "targets", "optimiser", "masters")
"""Options of ``lower_module`` that are no inputs of a module."""


@dataclass(frozen=True)
class Lowered:
    """A module of HLO, and what is known of it.

    Attributes:
        proto: serialized HloModuleProto.
        name: of the class of a PyTorch module.
        roles: (arguments of the step,) what each of them holds, if that is known.
        notes: what was assumed, in sentences.
        results: names of the outputs of a JAX function.
        kept: whether it was read from the user's cache, see ``parenvs.graph.cache``.
    """

    proto: bytes
    name: str = ""
    roles: tuple[Role, ...] = ()
    notes: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    kept: bool = False

    def graph(self, where: str | None = None, **options: Any) -> Graph:
        """Read the graph; ``options`` are those of ``parenvs.graph.reader.read_module``."""
        options.setdefault("name", self.name)
        told = {"known": self.roles or None, "told": self.notes, "results": self.results}
        return read_proto(self.proto, where or self.name, **told, **options)


def lower_module(
    module: Any,
    inputs: Sequence[Any] | None = None,
    keywords: Mapping[str, Any] | None = None,
    loss: Callable[..., Any] | None = None,
    targets: Sequence[Any] = (),
    optimiser: str = "adam",
    masters: bool = False,
) -> Lowered:
    """Export a module and lower its training step; nothing is allocated.

    Args:
        module: a ``torch.nn.Module``, or an ``ExportedProgram`` of one.
        inputs: see ``parenvs.graph.pytorch.export.exported``; None or none for those that a program
            was exported with.
        keywords: see there.
        loss: see there.
        targets: see there.
        optimiser: see ``parenvs.graph.pytorch.step.Step.of``.
        masters: see there.

    Raises:
        ParenvsError: PyTorch or JAX is missing, PyTorch cannot export the module, or an operation
            has no expression; the line names it and the submodule that uses it.
    """
    with need_extra("torch", "planning a PyTorch module"):
        import jax  # noqa: F401
        import torch

        if not hasattr(torch.export, "default_decompositions"):
            raise ImportError(f"PyTorch {torch.__version__} is too old")
        from parenvs.graph.pytorch.export import exported
        from parenvs.graph.pytorch.step import Step
    module = of_program(module)
    if not isinstance(module, torch.nn.Module):
        raise HloError(f"{shown(module)} is no torch.nn.Module")
    given = (tuple(inputs or ()), dict(keywords or {}))
    given = (example_inputs(module) or given) if given == ((), {}) else given

    def made() -> tuple[Any, Any]:
        program = exported(module, *given, loss, targets)
        return program, Step.of(program, optimiser, masters)

    try:
        program, step = made()
    except RefusedError as error:
        raise RefusedError(error.what, _cure(module, made) + error.remedy) from error
    notes = program.notes
    fused = step.program.fused
    if fused:
        path, parts = max(fused.items(), key=lambda item: len(item[1]))
        more = f" and {len(fused) - 1:,} more" if len(fused) > 1 else ""
        shape = ", ".join(str(n) for group in parts for n in group)
        notes += (
            f"{path}{more} hold several weights in one, which are taken apart; they are planned as "
            f"({shape}), part by part",
        )
    return Lowered(step.lowered(), program.name, step.roles, notes)


def _cure(module: Any, made: Callable[[], Any]) -> str:
    """What to do first, if a module that is refused in training is read in evaluation mode."""
    training = [one for one in module.modules() if one.training]
    if not training or example_inputs(module) is not None:
        return ""
    try:
        module.eval()
        made()
    except ParenvsError:
        return ""
    finally:
        for one in training:
            one.training = True
    return (
        "call .eval() on the module first: then it is read, without dropout and with the "
        "statistics that it has; or "
    )
