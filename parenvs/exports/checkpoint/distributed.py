"""Folders of ``torch.distributed.checkpoint``, written and read under any plan (extra ``torch``).

Tensors have the names that ``torch.distributed.checkpoint.state_dict`` gives them: ``model.NAME``
and ``optimizer.state.NAME.KIND``. Of the folder's pickles nothing is run, see ``metadata`` and
``parenvs.tensors``.
"""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.futures import Future

from parenvs.errors import ParenvsError, one_line, shown
from parenvs.exports.checkpoint.metadata import metadata_of
from parenvs.exports.checkpoint.training import parameters_of, together
from parenvs.exports.parallel import Parallel
from parenvs.exports.stream import Stream
from parenvs.tensors import read_tensors

MODEL, STATE, OWN = "model", "optimizer.state", "parenvs"
"""Beginnings of names: parameters, what the optimiser keeps of them, and ours."""


def export(
    folder: str | os.PathLike[str],
    parallel: Parallel,
    optimiser: torch.optim.Optimizer,
    steps: int = 0,
    stream: Stream | None = None,
) -> None:
    """Write a folder of ``torch.distributed.checkpoint``; every process of the group calls it.

    Parameters and the optimiser's tensors are in it, and, as ``parenvs.steps`` and
    ``parenvs.stream.*``, what a job needs to go on; the options of groups are not.

    Args:
        folder: the folder.
        parallel: the module in training.
        optimiser: of its parameters.
        steps: that were trained.
        stream: the order of samples.
    """
    state = _named(parallel, optimiser)
    position = stream.state_dict() if stream else {}
    own = {"steps": steps, **{f"stream.{key}": value for key, value in position.items()}}
    state |= {f"{OWN}.{key}": torch.tensor(int(value)) for key, value in own.items()}
    dcp.save(state, checkpoint_id=folder)


def load(
    folder: str | os.PathLike[str],
    parallel: Parallel,
    optimiser: torch.optim.Optimizer,
    stream: Stream | None = None,
) -> int:
    """Read such a folder, also another program's; every process of the group calls it.

    Args:
        folder: the folder.
        parallel: the module.
        optimiser: of its parameters; if the folder has no state of it, it begins anew.
        stream: the order of samples, which goes on where the folder was written.

    Returns:
        Steps that were trained; 0 if the folder does not tell.

    Raises:
        ParenvsError: no such folder, or one with another model, or without the position of a stream
            that is wanted, or a damaged one, of which parameters may have been read by then; all
            processes raise.
    """

    class Reader(dcp.FileSystemReader):
        def read_metadata(self, *given: Any, **named: Any) -> Metadata:
            return replace(metadata, storage_meta=StorageMeta(load_id=self.load_id))

        def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
            for item in plan.items:
                target = planner.resolve_tensor(item).detach()
                target.copy_(_piece(Path(folder), metadata, item))
                planner.commit_tensor(item, target)
            over: Future[None] = Future()
            over.set_result(None)
            return over

    def wanted(metadata: Metadata) -> tuple[Metadata, dict[str, Any], dict[str, torch.Tensor]]:
        known = metadata.state_dict_metadata
        state: dict[str, torch.Tensor] = {}
        for name, parameter in parameters_of(parallel):
            key = f"{MODEL}.{name}" if f"{MODEL}.{name}" in known else name
            entry = known.get(key)
            if not isinstance(entry, TensorStorageMetadata) or entry.size != parameter.shape:
                found = entry.size if isinstance(entry, TensorStorageMetadata) else "not there"
                raise ParenvsError(
                    f"{folder}: {shown(name)} is {found}, and the module has "
                    f"{tuple(parameter.shape)}"
                )
            state[key] = parameter.detach()
            begin = f"{STATE}.{name}."
            kinds: dict[str, torch.Tensor] = {}
            for full in (x for x in known if x.startswith(begin)):
                kind, entry = full.removeprefix(begin), known[full]
                if isinstance(entry, TensorStorageMetadata) and "." not in kind:
                    like = entry.properties.dtype
                    scalar = entry.size != parameter.shape
                    state[full] = kinds[kind] = (
                        torch.zeros(entry.size, dtype=like)
                        if scalar
                        else torch.zeros_like(parameter.detach(), dtype=like)
                    )
            if kinds:
                kept[parameter] = kinds
        numbers = {key: torch.tensor(0) for key in known if key.startswith(f"{OWN}.")}
        for key in numbers:
            if not isinstance(x := known[key], TensorStorageMetadata) or x.size != ():
                raise ParenvsError(f"{folder}: {shown(key)} is no number")
        if stream is not None and not any(x.startswith(f"{OWN}.stream.") for x in numbers):
            raise ParenvsError(f"{folder}: has no position in a stream of samples")
        return metadata, state, numbers

    kept: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
    mine: list[tuple[Metadata, dict[str, Any], dict[str, torch.Tensor]]] = []
    together(lambda: mine.append(wanted(metadata_of(folder))))
    metadata, state, numbers = mine[0]
    try:
        with torch.no_grad():
            load_state({**state, **numbers}, storage_reader=Reader(folder))
    except CheckpointException as error:  # raised in all processes
        rank, (cause, _) = next(iter(error.failures.items()))
        raise ParenvsError(
            f"{folder}: damaged (process {rank}: {one_line(Exception(cause))})"
        ) from None
    if stream is not None:
        position: dict[str, Any] = {
            key.removeprefix(f"{OWN}.stream."): int(value)
            for key, value in numbers.items() if key.startswith(f"{OWN}.stream.")
        }  # fmt: skip
        if "shuffle" in position:
            position["shuffle"] = bool(position["shuffle"])
        stream.load_state_dict(position)
    optimiser.state.update(kept)
    return int(numbers.get(f"{OWN}.steps", torch.tensor(0)))


def _piece(folder: Path, metadata: Metadata, item: ReadItem) -> torch.Tensor:
    """A box of a tensor, read from the piece that metadata says it is in.

    Raises:
        ValueError: that is no such piece.
    """
    place = metadata.storage_data[item.storage_index]
    with (folder / place.relative_path).open("rb") as stream:
        stream.seek(place.offset)
        found = read_tensors(io.BytesIO(stream.read(place.length)))
    entry = metadata.state_dict_metadata[item.storage_index.fqn]
    chunks = entry.chunks if isinstance(entry, TensorStorageMetadata) else []
    extent = next(x.sizes for x in chunks if x.offsets == item.storage_index.offset)
    if not isinstance(found, torch.Tensor) or found.shape != extent:
        raise ValueError(f"{shown(item.storage_index.fqn)}: a piece is not of {tuple(extent)}")
    corner = zip(item.storage_offsets, item.lengths, strict=True)
    return found[tuple(slice(a, a + n) for a, n in corner)]


def _named(parallel: Parallel, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Parameters and the optimiser's tensors of this process, as they lie, by name."""
    state = {f"{MODEL}.{name}": x.detach() for name, x in parameters_of(parallel)}
    for name, parameter in parameters_of(parallel):
        for kind, value in optimiser.state.get(parameter, {}).items():
            if value is not None:
                state[f"{STATE}.{name}.{kind}"] = torch.as_tensor(value)
    return state
