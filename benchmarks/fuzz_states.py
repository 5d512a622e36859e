"""Readers of states for ``fuzz.py``: checkpoints, journals of jobs, banks, measured machines."""

from __future__ import annotations

import io
import json
import math
import multiprocessing
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.framework import ROOT
from killed_commands import prepare
from parenvs.clock.calibration import Calibration
from parenvs.cluster import COLLECTIVES, Cluster, Measurement
from parenvs.datasets.banks import Bank
from parenvs.exports.checkpoint import INDEX, Checkpoint
from parenvs.jobs.journal import INTERVALS, JOB, STEPS, Interval, Journal, Step
from parenvs.tasks.elastic.problems import bank

JOB_FIELDS = {"trace": "four-nodes", "batch": 8, "interval": 60.0, "cluster": None}


class WrongAcceptanceError(AssertionError):
    """Something was read that must not be."""


def must(holds: object, what: str) -> None:
    """Raise an error with the words ``what`` unless something holds."""
    if not holds:
        raise WrongAcceptanceError(what)


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def _folder(path: Path, files: dict[str, bytes], name: str) -> Path:
    """Make a folder beside a file, with that in place of the folder's own of a name."""
    folder = path.parent / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for own, data in files.items():
        (folder / own).write_bytes(data)
    shutil.copy(path, folder / name)
    return folder


def apart(make: Callable[..., dict[str, bytes]]) -> Callable[..., dict[str, bytes]]:
    """Let a process of its own make files, once.

    JAX and PyTorch start threads, and a fork of a process that has some may wait for them for ever.
    """

    @cache
    @wraps(make)
    def made(*given: str) -> dict[str, bytes]:
        if multiprocessing.current_process().daemon:  # one that reads files, and forks no more
            return make(*given)
        fork = multiprocessing.get_context("fork")
        ours, theirs = fork.Pipe()
        process = fork.Process(target=lambda: theirs.send(make(*given)))
        process.start()
        theirs.close()
        found: dict[str, bytes] = ours.recv()
        process.join()
        return found

    return made


# Folders of torch.distributed.checkpoint.


@apart
def distributed() -> dict[str, bytes]:
    """Return the files of a folder that PyTorch writes, with a state of an optimiser."""
    import torch
    import torch.distributed.checkpoint as dcp

    _, _, state = _module()
    state["optimizer.state.weight.exp_avg"] = torch.full((3, 4), 2.0, dtype=torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        state["parenvs.steps"] = torch.tensor(7)
        dcp.save(state, checkpoint_id=folder, no_dist=True)  # a group does not outlive a fork
        return _files(Path(folder))


def _module() -> tuple[Any, Any, dict[str, Any]]:
    import torch

    module = torch.nn.Linear(4, 3)
    named = dict(module.named_parameters())
    part = SimpleNamespace(named_parameters=named.items, name_of=lambda name: name)
    state = {"model": {name: x.detach() for name, x in named.items()}}
    return module, SimpleNamespace(parts=[part]), state


@cache
def _group() -> None:
    """Make a group of this process alone."""
    import torch

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)


def _loaded(folder: Path) -> tuple[Any, Any, int]:
    import torch

    from parenvs.exports.distributed import load

    _group()
    module, parallel, _ = _module()
    optimiser = torch.optim.Adam(module.parameters())
    return module, optimiser, load(folder, parallel, optimiser)


def read_metadata(path: Path) -> Any:
    """Load a folder with other metadata."""
    return _loaded(_folder(path, distributed(), ".metadata"))


def pieces() -> list[bytes]:
    """Return the piece of a tensor as PyTorch writes it."""
    import torch

    stream = io.BytesIO()
    torch.save(torch.ones(3, 4), stream)
    return [stream.getvalue()]


def read_piece(path: Path) -> Any:
    """Load a folder one of whose pieces is another, whose length its metadata knows."""
    files, data = dict(distributed()), path.read_bytes()
    own = pickle.loads(files[".metadata"])
    place = next(x for key, x in own.storage_data.items() if key.fqn == "model.weight")
    name, place.relative_path = place.relative_path, "other.distcp"
    place.offset, place.length = 0, len(data)
    files[".metadata"] = pickle.dumps(own)
    assert name in files
    return _loaded(_folder(path, files, "other.distcp"))


def check_loaded(loaded: tuple[Any, Any, int]) -> None:
    """Check that weights are of their shapes."""
    module, optimiser, steps = loaded
    must(tuple(module.weight.shape) == (3, 4), "weights of another shape")
    must(isinstance(steps, int), "steps that are no number")
    for kinds in optimiser.state.values():
        must(all(x.element_size() for x in kinds.values()), "a state without numbers")


# Our own checkpoints.


@apart
def checkpoint() -> dict[str, bytes]:
    """Return the files of a checkpoint of two processes."""
    sys.path.append(str(ROOT / "examples"))
    with tempfile.TemporaryDirectory() as folder:
        prepare("reshard", Path(folder))
        graph = {"net.npz": Path(folder, "net.npz").read_bytes()}
        return {**_files(Path(folder, "state")), **graph}


def read_index(path: Path) -> Checkpoint:
    """Read a checkpoint with another index."""
    found = Checkpoint(_folder(path, checkpoint(), INDEX))
    found.verify()
    return found


def check_checkpoint(found: Checkpoint) -> None:
    """Check that every tensor can be read whole."""
    place = next(iter(found.files.places()))
    for name, tensor in found.head.tensors.items():
        box = tuple((0, size) for size in tensor.shape)
        for kind in tensor.kinds:
            must(found.box(name, kind, box, place, 1).shape == tensor.shape, "another shape")


# Journals of jobs.


@cache
def journal() -> dict[str, bytes]:
    """Return the files of a journal of two intervals."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = Journal.opened(folder, {**JOB_FIELDS, "measured": 0.5, "tracing": 2})
        for k in range(4):
            made.add(Step(k, k // 2, 2.0 - k / 4, [2 * k, 2 * k + 1], 0.25))
        for t in range(2):
            made.add(Interval(t, 2, plan=t, way="start", seconds=1.0, steps=2 * t + 2, trained=2))
        return _files(folder)


def read_journal(name: str) -> Callable[[Path], Journal]:
    """Return what reads a journal with another file of a name."""
    return lambda path: Journal.opened(_folder(path, journal(), name), JOB_FIELDS)


def check_journal(found: Journal) -> None:
    """Check what a driver goes on from."""
    numbers = [row.interval for row in found.intervals]
    must(numbers == [*range(len(numbers))], "intervals out of order")
    must(all(math.isfinite(step.loss) for step in found.trained), "a loss is not finite")
    must(0 < found.measured < math.inf, f"a step of {found.measured} s")


# Banks, and machines that were measured.


def banks() -> list[bytes]:
    """Return a bank of three problems."""
    rows = [bank("gone")[k] for k in range(3)]
    stream = io.BytesIO()
    np.savez(stream, **{name: np.stack([row[name] for row in rows]) for name in rows[0]})
    return [stream.getvalue()]


def read_bank(path: Path) -> Bank:
    """Read a bank of the cache."""
    folder = path.parent / "banks"
    folder.mkdir(exist_ok=True)
    shutil.copy(path, folder / "fuzzed.npz")
    os.environ["PARENVS_CACHE"] = str(path.parent)
    found = Bank("fuzzed", 3, lambda number: bank("gone")[number])
    assert found.arrays
    return found


def check_bank(found: Bank) -> None:
    """Check that its rows are of the form of problems."""
    for number in range(len(found)):
        row, like = found[number], bank("gone")[number]
        must(row.keys() == like.keys(), "other arrays")
        must(all(row[key].shape == like[key].shape for key in row), "arrays of other shapes")


def machines() -> list[bytes]:
    """Return a file as ``parenvs calibrate`` writes it."""
    rows = [
        Measurement(kind, *(1e-5 + size / x for x in (1e9, 2e9, 5e8)), 3, size, 2)
        for kind in COLLECTIVES for size in (1024, 2**20)
    ]  # fmt: skip
    product = {"shape": (64, 64, 64), "precision": "fp32", "share": 1.0}
    rows.append(Measurement("matmul", 1e-5, 1e-5, 2e-5, 3, **product))
    made = Calibration(Cluster.parse("1x2:v100"), tuple(rows), {"by": "hand", "missing": ["fp8"]})
    with tempfile.TemporaryDirectory() as folder:
        made.save(Path(folder) / "machine.json")
        return [Path(folder, "machine.json").read_bytes()]


def check_machine(found: Calibration) -> None:
    """Check what a machine's collectives are predicted to take."""
    must(isinstance(found.missing, list), "what is missing is no list")
    for kind in COLLECTIVES:
        groups = {row.group for row in found.rows if row.kind == kind}
        for group in groups:
            for size in (1.0, 1e6, 1e12):
                must(0 <= found.seconds(kind, size, group) < math.inf, "impossible seconds")
    json.dumps(found.cluster.to_json(), allow_nan=False)


STATES: tuple[tuple[Any, ...], ...] = (
    ("metadata", ".metadata", 3, lambda: [distributed()[".metadata"]], read_metadata, check_loaded),
    ("piece", ".pt", 3, pieces, read_piece, check_loaded),
    ("index", ".json", 3, lambda: [checkpoint()[INDEX]], read_index, check_checkpoint),
    ("job", ".json", 1, lambda: [journal()[JOB]], read_journal(JOB), check_journal),
    (
        "intervals", ".jsonl", 1, lambda: [journal()[INTERVALS]], read_journal(INTERVALS),
        check_journal,
    ),
    ("losses", ".jsonl", 1, lambda: [journal()[STEPS]], read_journal(STEPS), check_journal),
    ("bank", ".npz", 2, banks, read_bank, check_bank),
    ("machine", ".json", 2, machines, Calibration.load, check_machine),
)  # fmt: skip
"""Name, ending, weight, seeds, reader, check; see ``benchmarks.fuzz_readers.Reader``."""
