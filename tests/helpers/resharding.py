"""The example's transformer, trained under one plan, moved to another and trained on.

``examples`` has to be on the path, also of the processes that are started.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch_transformer as example

from parenvs import Cluster, HybridPlan, HybridStage
from parenvs.exports.torch import TorchPlan, torch_plan
from parenvs.files import write_text

STEPS = 20
WHOLE, UNEVEN = ((0, 3),), ((0, 1), (1, 3))
FOUR = {
    "T2 P2": (UNEVEN, 2, 0), "P2 D2": (UNEVEN, 1, 0), "T2 D2": (WHOLE, 2, 0), "T4": (WHOLE, 4, 0),
    "P2 D2 ZeRO 1": (UNEVEN, 1, 1), "T2 D2 ZeRO 3": (WHOLE, 2, 3), "D4 ZeRO 2": (WHOLE, 1, 2),
}  # fmt: skip
"""Plans of 4 processes by name: stages, tp and ZeRO."""
TWO = {
    "T2": (WHOLE, 2, 0), "P2": (UNEVEN, 1, 0), "D2": (WHOLE, 1, 0), "D2 ZeRO 3": (WHOLE, 1, 3),
}  # fmt: skip
"""The same of 2."""


class Job(NamedTuple):
    """A training run: under which plan, from which checkpoint to which, and where losses go."""

    plan: HybridPlan
    exported: TorchPlan
    load: Path | None
    save: Path | None
    told: Path


def plan_of(graph, instance: str, processes: int, stages=WHOLE, tp=1, zero=0) -> HybridPlan:
    """A plan of two micro-batches."""
    own = processes // len(stages)
    return HybridPlan(
        instance, graph.fingerprint, Cluster.parse(f"1x{processes}:v100"), "roofline", "fp32",
        batch=example.BATCH, micro_batch=example.BATCH // 2 * tp // own,
        stages=tuple(HybridStage((part,), own, tp=tp, zero=zero) for part in stages),
    )  # fmt: skip


def job(plan, told, load=None, save=None) -> Job:
    """A run of the example's module."""
    return Job(plan, torch_plan(plan, example.read()), load, save, Path(told))


def alone(steps: int = 2 * STEPS) -> list[float]:
    """Losses on one device, without a break."""
    model, _ = example.make()
    optimiser = torch.optim.Adam(model.parameters(), example.RATE)
    words, targets = example.batch()
    curve = []
    for _ in range(steps):
        optimiser.zero_grad()
        value = example.loss(model(words), targets)
        value.backward()
        optimiser.step()
        curve.append(value.item())
    return curve


def train(rank: int, processes: int, port: int, jobs: dict[str, Job]) -> None:
    """Run all jobs in one of the processes; rank 0 writes the losses of each, and bytes read."""
    import torch.distributed as dist

    from parenvs.exports.parallel import Parallel
    from parenvs.exports.state import load, save

    example.join(rank, processes, port)
    words, targets = example.batch()
    for run in jobs.values():
        torch.manual_seed(1)
        model = example.Transformer() if run.load else example.make()[0]  # other numbers at first
        parallel = Parallel(model, example.loss, run.exported, words)
        optimiser = torch.optim.Adam(parallel.parameters(), example.RATE)
        steps, read = load(run.load, parallel, optimiser, run.plan) if run.load else (0, {})
        curve = []
        for _ in range(STEPS):
            optimiser.zero_grad()
            curve.append(parallel.step(words, targets))
            optimiser.step()
        if run.save:
            save(run.save, parallel, optimiser, run.plan, steps + STEPS)
        every: list[Any] = [None] * processes
        dist.all_gather_object(every, read)
        if rank == 0:
            told = {"steps": steps, "losses": curve, "read": [sorted(x.items()) for x in every]}
            write_text(run.told, json.dumps(told))  # whole or not at all
    dist.destroy_process_group()
