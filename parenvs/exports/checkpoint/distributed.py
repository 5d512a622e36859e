"""Folders of ``torch.distributed.checkpoint``, written and read under any plan (extra ``torch``).

Tensors have the names that ``torch.distributed.checkpoint.state_dict`` gives them: ``model.NAME``
and ``optimizer.state.NAME.KIND``. Of the folder's pickle, metadata alone is read, and nothing in it
but sizes, types and places: any other class or function is refused.
"""

from __future__ import annotations

import io
import os
import pickle
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_state

from parenvs.errors import ParenvsError, shown
from parenvs.exports.checkpoint.training import parameters_of, together
from parenvs.exports.parallel import Parallel
from parenvs.exports.stream import Stream

MODEL, STATE, OWN = "model", "optimizer.state", "parenvs"
"""Beginnings of names: parameters, what the optimiser keeps of them, and ours."""
_KNOWN = {
    ("torch", "Size"), ("torch.serialization", "_get_layout"), ("collections", "OrderedDict"),
    ("builtins", "set"),
}  # fmt: skip
"""What may be in metadata besides its own classes."""


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
            that is wanted; all processes raise.
    """

    class Reader(dcp.FileSystemReader):
        def read_metadata(self, *given: Any, **named: Any) -> Metadata:
            metadata = _metadata(folder)
            meta = getattr(metadata, "storage_meta", None) or StorageMeta()
            meta.load_id, metadata.storage_meta = self.load_id, meta
            return metadata

    def wanted() -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        known = _metadata(folder).state_dict_metadata
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
                optimiser.state[parameter] = kinds
        numbers = {key: torch.tensor(0) for key in known if key.startswith(f"{OWN}.")}
        if stream is not None and not any(x.startswith(f"{OWN}.stream.") for x in numbers):
            raise ParenvsError(f"{folder}: has no position in a stream of samples")
        return state, numbers

    mine: list[tuple[dict[str, Any], dict[str, torch.Tensor]]] = []
    together(lambda: mine.append(wanted()))
    state, numbers = mine[0]
    with torch.no_grad():
        load_state({**state, **numbers}, storage_reader=Reader(folder))
    if stream is not None:
        position = {
            key.removeprefix(f"{OWN}.stream."): int(value)
            for key, value in numbers.items() if key.startswith(f"{OWN}.stream.")
        }  # fmt: skip
        stream.load_state_dict({**position, "shuffle": bool(position["shuffle"])})
    return int(numbers.get(f"{OWN}.steps", torch.tensor(0)))


def _named(parallel: Parallel, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Parameters and the optimiser's tensors of this process, as they lie, by name."""
    state = {f"{MODEL}.{name}": x.detach() for name, x in parameters_of(parallel)}
    for name, parameter in parameters_of(parallel):
        for kind, value in optimiser.state.get(parameter, {}).items():
            if value is not None:
                state[f"{STATE}.{name}.{kind}"] = torch.as_tensor(value)
    return state


def _metadata(folder: str | os.PathLike[str]) -> Metadata:
    """The metadata of a folder, in which no code runs."""
    path = Path(folder) / ".metadata"
    try:
        found = _Plain(io.BytesIO(path.read_bytes())).load()
    except OSError as error:
        raise ParenvsError(
            f"{folder}: no folder of torch.distributed.checkpoint ({path}: {error.strerror})"
        ) from None
    except (pickle.UnpicklingError, EOFError, AttributeError, ValueError, TypeError, IndexError,
            KeyError, ImportError) as error:  # fmt: skip
        raise ParenvsError(
            f"{path}: no metadata of torch.distributed.checkpoint ({error})"
        ) from None
    if not isinstance(found, Metadata):
        raise ParenvsError(f"{path}: no metadata of torch.distributed.checkpoint")
    return found


class _Plain(pickle.Unpickler):
    """Reads a pickle of sizes, types and places."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class that may be in metadata; refuse all else."""
        if (module, name) in _KNOWN:
            return super().find_class(module, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        if module.partition(".")[0] == "pathlib" and name.endswith("Path") and name.isalpha():
            return super().find_class(module, name)
        if module.startswith("torch.distributed.checkpoint.") and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and (is_dataclass(found) or issubclass(found, Enum)):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is not read")
