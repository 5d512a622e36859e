"""A state that moves between eight processes, without the disk and through it: seconds and bytes.

    python benchmarks/live.py
    python benchmarks/live.py --widths 64 256

Needs the extra ``torch``. After a step under each plan the state goes to the next one in three
ways: ``minimal`` between the processes; ``tenplex``, a checkpoint of which every process reads its
own part; ``central``, a checkpoint that one process writes anew for the next plan. Files stay in
the system's cache. Building modules and groups is the same for all, and is not timed.
"""

from __future__ import annotations

import hashlib
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.framework import Case, Column, Row, columns, main, measurement, progress
from parenvs import Cluster, HybridPlan, HybridStage, from_torch
from parenvs.clock.members import run_members
from parenvs.exports.checkpoint import Files, predicted_bytes, reshard
from parenvs.exports.parallel import Parallel
from parenvs.exports.state import Holding, current_state, install, load, move, save
from parenvs.exports.torch import torch_plan
from parenvs.jobs.driver import PER_PARAMETER
from parenvs.tasks.elastic.movement import Degrees, Layout, State, atom_bytes, flows
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.uniform import even_bounds
from resharding import example

PROCESSES, LAYERS, BATCH = 8, 8, 32
WAYS = ("minimal", "tenplex", "central")
SCHEDULE = (Degrees(2, 2, 2), Degrees(1, 4, 2), Degrees(4, 1, 2), Degrees(2, 2, 1))
"""Plans one after the other; of the last one's processes four are left over."""
WIDTHS = (64, 256, 512)


def shaped(width: int) -> None:
    """Let the example be of a width."""
    example.LAYERS, example.WIDTH, example.BATCH = LAYERS, width, BATCH


def plan_of(graph: Any, degrees: Degrees) -> HybridPlan:
    """The plan of degrees, on devices that are processes."""
    own = degrees.tensor * degrees.data
    bounds = even_bounds(LAYERS, degrees.pipeline).tolist()
    return HybridPlan(
        graph.name, graph.fingerprint, Cluster.parse(f"1x{degrees.ranks}:v100"), "roofline", "fp32",
        batch=example.BATCH, micro_batch=example.BATCH // (4 * degrees.data),
        stages=tuple(HybridStage((x,), own, tp=degrees.tensor) for x in pairwise(bounds)),
    )  # fmt: skip


def priced(state: State, old: Degrees, new: Degrees, process: list[int]) -> list[float]:
    """Bytes that each process sends, by the formula's layers; ``process`` is that of each rank."""
    grid = int(np.lcm(old.tensor, new.tensor))
    before, after = (Layout.of(state, x, grid, 1) for x in (old, new))
    size = atom_bytes(state, grid)
    on = np.zeros((PROCESSES, 1, len(size)), dtype=bool)
    on[process] = before.contents(PROCESSES)[: len(process)]
    _, rows = flows(size, on, after.held, exact=False)
    shares = [(row.end - row.begin) * size[row.atom] for row in rows]
    return np.bincount([row.source for row in rows], shares, PROCESSES).tolist()


def of_ranks(by_file: np.ndarray, files: Files) -> list[float]:
    """What each rank reads, of what each file's replicas read."""
    number = [files.number(place) for place in files.ranks()]
    return by_file[number].tolist()


def member(rank: int, port: int, job: dict[str, Any]) -> list[Row]:
    """Be one of the processes: seconds and bytes of each way, of each change."""
    torch.set_num_threads(1)
    shaped(job["width"])
    store = dist.TCPStore("127.0.0.1", port, None, rank == 0, wait_for_workers=False)
    words, targets = example.batch()
    folder, found = Path(job["folder"]), []
    holding: Holding | None = None
    saved: Row = {}

    def form(name: str, number: int, size: int) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        own = dist.PrefixStore(name, store)
        dist.init_process_group("gloo", store=own, rank=number, world_size=size)

    @contextmanager
    def timed(row: Row, key: str) -> Iterator[None]:
        dist.barrier()
        start = time.perf_counter()
        yield
        row[key] = time.perf_counter() - start

    for number, (plan, exported) in enumerate(job["plans"]):
        own, moved, mine = saved, None, rank
        if number:
            form(f"all {number}", rank, PROCESSES)
            with timed(own, "minimal"):
                moved = move(holding, plan, job["graph"], exact=False, exported=exported)
            own["sent"] = int(moved.sent_here.sum())
            with timed(own, "central"):
                if rank == 0:
                    read = reshard(folder / "old", plan, None, folder / "new", job["graph"]).read
                    own["anew"] = int(read.sum())
                dist.barrier()
            found.append(own)
            if moved.rank is None:
                continue
            mine, holding = moved.rank, None
        form(f"plan {number}", mine, exported.pipe * exported.data * exported.model)
        parallel = Parallel(example.make()[0], example.loss, exported, words)
        optimizer = torch.optim.Adam(parallel.parameters(), example.RATE)
        if moved is not None:
            old, new = folder / "old", folder / "new"
            ways: dict[str, Callable[[], Any]] = {
                "minimal": partial(install, moved, parallel, optimizer),
                "tenplex": partial(load, old, parallel, optimizer, plan),
                "central": partial(load, new, parallel, optimizer, plan),
            }
            digests = set()
            for way, put in ways.items():
                optimizer.state.clear()
                with timed(own, f"{way}_in"):
                    told = put()
                if way != "minimal":
                    own[f"{way}_read"] = sum(told[1].values())
                digests.add(digest(current_state(parallel, optimizer, plan)))
            own |= {"rank": mine, "same": len(digests) == 1}
        if number + 1 < len(job["plans"]):
            optimizer.zero_grad()
            parallel.step(words, targets)
            optimizer.step()
            saved = {}
            with timed(saved, "save"):
                save(folder / "old", parallel, optimizer, plan, number + 1)
            holding = current_state(parallel, optimizer, plan, number + 1)
    store.set(f"done {rank}", "1")
    if rank == 0:  # the store is this process's
        for other in range(PROCESSES):
            store.wait([f"done {other}"])
    return found


def digest(holding: Holding) -> str:
    """SHA-256 of what a process holds."""
    total = hashlib.sha256()
    for key, tensor in sorted(holding.tensors.items(), key=lambda x: x[0]):
        total.update(repr(key).encode() + tensor.contiguous().numpy().tobytes())
    return total.hexdigest()


def moved(width: int) -> list[Row]:
    """The changes of a size: what happened, and what was priced."""
    shaped(width)
    words, targets = example.batch()
    graph = from_torch(example.make()[0], words, loss=example.loss, targets=(targets,))
    plans = [plan_of(graph, degrees) for degrees in SCHEDULE]
    state = State.of(HybridModel.of_graph(graph), PER_PARAMETER)
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        job = {
            "folder": folder, "width": width, "graph": graph,
            "plans": [(plan, torch_plan(plan, graph)) for plan in plans],
        }  # fmt: skip
        given = [(rank, port, job) for rank in range(PROCESSES)]
        told = run_members(member, given, ("parenvs.exports.parallel", "torch._dynamo"))
    rows, process = [], list(range(SCHEDULE[0].ranks))
    for number, (old, new) in enumerate(pairwise(plans)):
        here = [own[number] for own in told]
        ranks = sorted((x for x in here if "rank" in x), key=itemgetter("rank"))
        files = [Files.of(x) for x in (old, new)]
        by_file = predicted_bytes(*files, graph, PER_PARAMETER)
        each = by_file.sum(axis=0)
        save, read = (max(x[key] for x in here) for key in ("save", "central"))
        into = {way: max(x[f"{way}_in"] for x in ranks) for way in WAYS}
        rows.append({
            "state": round(state.bytes),
            "seconds": {
                "minimal": max(x["minimal"] for x in here) + into["minimal"],
                "tenplex": save + into["tenplex"],
                "central": save + read + into["central"],
            },
            "bytes": {
                "minimal": [x["sent"] for x in here],
                "tenplex": [x["tenplex_read"] for x in ranks],
                "central": [here[0]["anew"], *(x["central_read"] for x in ranks)],
            },
            "priced": {
                "minimal": priced(state, files[0].degrees, files[1].degrees, process),
                "tenplex": of_ranks(each, files[1]),
                "central": [float(each.sum()), *of_ranks(each, files[1])],
            },
            "same": all(x["same"] for x in ranks),
        })  # fmt: skip
        process = [here.index(x) for x in ranks]
    return rows


def agrees(row: Row) -> bool:
    """Whether bytes of every process are those priced, and every way gives the same numbers."""
    return row["same"] and all(
        np.allclose(row["bytes"][way], row["priced"][way], rtol=0, atol=0.5) for way in WAYS
    )


@measurement(
    title="A state that moves between processes",
    key="width change",
    wrong=lambda rows: [row for row in rows if not agrees(row)],
    about={"widths": "of the model"},
)
def live(known: list[Row], widths: tuple[int, ...] = WIDTHS) -> Iterator[Case]:
    for width in widths:
        names = [f"{old} -> {new}" for old, new in pairwise(SCHEDULE)]
        if all((width, name) in {(x["width"], x["change"]) for x in known} for name in names):
            continue
        progress(f"width {width}")
        for name, row in zip(names, moved(width), strict=True):
            yield {"width": width, "change": name}, partial(dict, row)


COLUMNS: list[Column] = [
    ("MB of the state", lambda row: f"{row['state'] / 1e6:.1f}"),
    ("change", "{change}"),
    *((f"{way}, s", lambda row, way=way: f"{row['seconds'][way]:.2f}") for way in WAYS),
    *((f"{way}, MB", lambda row, way=way: f"{sum(row['bytes'][way]) / 1e6:.1f}") for way in WAYS),
    ("as priced", lambda row: "yes" if agrees(row) else "NO"),
]


@live.page
def page(rows: list[Row]) -> list[str]:
    return [
        f"A transformer of {LAYERS} layers with Adam, float32, on {PROCESSES} processes of one "
        "machine, after a step under each plan. `minimal` moves between the processes what each of "
        "them misses; `tenplex` writes a checkpoint, of which each reads its own part; `central` "
        "lets one process write that anew for the next plan. Seconds are of the slowest process. "
        f"Bytes of every process are those predicted, and all ways give the same numbers, bit by "
        f"bit: {sum(map(agrees, rows))} of {len(rows)}.",
        columns(rows, COLUMNS, left=2),
    ]


if __name__ == "__main__":
    main(live)
