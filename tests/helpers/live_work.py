"""The example's transformer moves from plan to plan between processes, without the disk.

``examples`` has to be on the path, also of the processes that are started.
"""

import json
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch_transformer as example

from parenvs.exports.parallel import Parallel
from parenvs.exports.state import current_state, install, move
from parenvs.files import write_text
from parenvs.instances import load_graph


def exchange(rank, processes, port, job):
    """Train under plans, through folders of PyTorch's; each time ranks are other processes'."""
    from parenvs.exports import distributed
    from parenvs.exports.stream import Stream

    torch.set_num_threads(1)
    words, targets = example.batch()
    folder, curve, last = Path(job["folder"]), [], len(job["plans"]) - 1
    store = dist.TCPStore("127.0.0.1", port, None, rank == 0, timedelta(seconds=60))
    for number, (_, exported) in enumerate(job["plans"]):
        if number:
            dist.destroy_process_group()
        given = {"store": dist.PrefixStore(str(number), store), "world_size": processes}
        dist.init_process_group("gloo", rank=(rank + number) % processes, **given)
        torch.manual_seed(number)
        model = example.Transformer() if number else example.make()[0]  # other numbers at first
        stream = Stream(100, example.BATCH, seed=number)
        parallel = Parallel(model, example.loss, exported, words)
        optimizer = torch.optim.Adam(parallel.parameters(), example.RATE)
        if number:
            steps = distributed.load(folder / "dcp", parallel, optimizer, stream)
            assert (steps, stream.position, stream.seed) == (2 * number, len(curve) * 8, 0)
        for _ in range(2):
            optimizer.zero_grad()
            curve.append(parallel.step(words, targets))
            optimizer.step()
            stream.advance()
        if number < last:
            distributed.export(folder / "dcp", parallel, optimizer, 2 * number + 2, stream)
    dist.barrier()
    write_text(folder / f"{rank}.json", json.dumps(curve))
    dist.destroy_process_group()


def train(rank, processes, port, job):
    """Train some steps under each plan of a job; rank 0 writes losses and bytes."""
    torch.set_num_threads(1)
    graph, steps = load_graph(job["graph"]), job["steps"]
    store = dist.TCPStore("127.0.0.1", port, None, rank == 0, timedelta(seconds=60))

    def group(name, size, number):
        if dist.is_initialized():
            dist.destroy_process_group()
        given = {"store": dist.PrefixStore(name, store), "world_size": size, "rank": number}
        dist.init_process_group("gloo", **given)

    words, targets = example.batch()
    holding, mine, curves, moves = None, rank, [], []
    for number, (plan, exported) in enumerate(job["plans"]):
        moved = None
        if number:
            group(f"all {number}", processes, rank)
            moved = move(holding, plan, graph)
            sent = [None] * processes
            dist.all_gather_object(sent, moved.sent_here.tolist())
            moves.append({"sent": sent, "planned": moved.sent.tolist()})
            mine, holding = moved.rank, None
        elif rank >= exported.pipe * exported.data * exported.model:
            mine = None
        if mine is None:
            continue
        group(f"plan {number}", exported.pipe * exported.data * exported.model, mine)
        torch.manual_seed(number)
        model = example.Transformer() if number else example.make()[0]  # other numbers at first
        parallel = Parallel(model, example.loss, exported, words)
        optimizer = torch.optim.Adam(parallel.parameters(), example.RATE)
        if moved is not None:
            assert install(moved, parallel, optimizer) == number * steps
        for _ in range(steps):
            optimizer.zero_grad()
            curves.append((number, parallel.step(words, targets)))
            optimizer.step()
        holding = current_state(parallel, optimizer, plan, (number + 1) * steps)
    write_text(Path(job["folder"]) / f"{rank}.json", json.dumps({"losses": curves, "moves": moves}))
    store.set(f"done {rank}", "1")
    if rank == 0:  # the store is this process's
        for other in range(processes):
            store.wait([f"done {other}"])
