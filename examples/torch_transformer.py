"""A PyTorch transformer: planned, exported and trained on local processes, beside a single one.

    python examples/torch_transformer.py
    python examples/torch_transformer.py --processes 4

Two processes train under plans that split operators, split the batch, share the states (ZeRO) and
run a pipeline of uneven stages; four under hybrid ones of 2 stages with 2 replicas or 2 ranks. The
losses of 20 steps are those of one device.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

LAYERS, WIDTH, HEADS, TOKENS, WORDS, BATCH = 3, 32, 4, 8, 64, 8
STEPS, RATE = 20, 3e-3


class Block(nn.Module):
    """Attention and a feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform the residual stream, (batch, tokens, width)."""
        y = self.norm_1(x)
        q, k, v = (
            part(y).view(len(x), TOKENS, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        scores = q @ k.transpose(2, 3) * (WIDTH // HEADS) ** -0.5
        later = torch.ones(TOKENS, TOKENS, dtype=torch.bool, device=x.device).triu(1)
        chances = scores.masked_fill(later, -1e9).softmax(-1)
        context = (chances @ v).transpose(1, 2).reshape(len(x), TOKENS, WIDTH)
        x = x + self.out(context)
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Transformer(nn.Module):
    """A decoder without positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, tokens, words)."""
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make() -> tuple[Transformer, Any]:
    """Return the model and its loss, as ``parenvs plan FILE.py:make`` takes them."""
    torch.manual_seed(0)
    return Transformer(), loss


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return words and targets."""
    words = torch.randint(0, WORDS, (BATCH, TOKENS), generator=torch.Generator().manual_seed(1))
    return words, (3 * words + 1) % WORDS


@functools.cache
def read() -> Any:
    """Return the graph of the training step."""
    import parenvs

    words, targets = batch()
    return parenvs.from_torch(make()[0], words, loss=loss, targets=(targets,))


def plans(processes: int) -> dict[str, Any]:
    """Return exported plans by name; planning needs the extra ``torch``."""
    import parenvs
    from parenvs.exports.torch import torch_plan

    graph, cluster = read(), f"1x{processes}:v100"

    def partition(scope: str, **options: str) -> Any:
        options |= {"scope": scope, "uneven": "forbid"}
        problem = parenvs.problem(graph, cluster, task="partition", **options)
        return torch_plan(parenvs.plan(problem, "exact").plan, graph)

    def hybrid(stages: tuple[tuple[int, int], ...], tp: int, zero: int = 0) -> Any:
        own = processes // len(stages)
        plan = parenvs.HybridPlan(
            graph.name, graph.fingerprint, parenvs.Cluster.parse(cluster), "roofline", "fp32",
            batch=BATCH, micro_batch=BATCH // 2 * tp // own,  # two micro-batches
            stages=tuple(parenvs.HybridStage((part,), own, tp=tp, zero=zero) for part in stages),
        )  # fmt: skip
        return torch_plan(plan, graph)

    whole, uneven = ((0, LAYERS),), ((0, 1), (1, LAYERS))
    if processes == 2:
        return {
            "operator": partition("variables", rules="automap"),
            "operator, Shardy's rules": partition("variables"),
            "data": partition("inputs", reward="step_time"),
            "tensor": hybrid(whole, 2),
            "ZeRO 3": hybrid(whole, 1, zero=3),
            "pipeline": hybrid(uneven, 1),
            "GPipe": replace(hybrid(uneven, 1), schedule="GPipe"),
        }
    return {
        "pipeline x data": hybrid(uneven, 1),
        "pipeline x tensor": hybrid(uneven, 2),
        "pipeline x ZeRO 1": hybrid(uneven, 1, zero=1),
    }


def losses(plan: Any = None) -> list[float]:
    """Train, on one device or as a plan says, and return the loss of each step."""
    from parenvs.exports.parallel import Parallel

    model, _ = make()
    words, targets = batch()
    if plan is None:
        parameters: Any = model.parameters()
    else:
        parallel = Parallel(model, loss, plan, words)
        parameters = parallel.parameters()
    optimizer = torch.optim.Adam(parameters, RATE)
    curve = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        if plan is None:
            value = loss(model(words), targets)
            value.backward()
            curve.append(value.item())
        else:
            curve.append(parallel.step(words, targets))
        optimizer.step()
    return curve


def join(rank: int, processes: int, port: int) -> None:
    """Make this process one of a group."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        f"tcp://127.0.0.1:{port}",
        timedelta(seconds=120),
        world_size=processes,
        rank=rank,
    )


def train(rank: int, processes: int, port: int, found: dict[str, Any]) -> None:
    """Train under every plan in one of the processes, and compare with one device."""
    join(rank, processes, port)
    single = losses()
    if rank == 0:
        print(f"one device: loss {single[0]:.4f} -> {single[-1]:.4f}", flush=True)
    for name, plan in found.items():
        curve = losses(plan)
        worst = max(abs(a / b - 1) for a, b in zip(curve, single, strict=True))
        if rank == 0:
            words = f"loss -> {curve[-1]:.4f}, relative difference at most {worst:.1e}"
            print(f"{name}: {plan.words}; {words}", flush=True)
        assert worst < 1e-4, name
    torch.distributed.destroy_process_group()


def start(processes: int, found: dict[str, Any], work: Callable[..., None] = train) -> None:
    """Train under plans on local processes; if one of them ends with an error, all of them do."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # The server imports once, and every process is a copy of it.
    multiprocessing.set_forkserver_preload(["parenvs.exports.parallel", "torch._dynamo"])
    torch.multiprocessing.start_processes(
        work, (processes, port, found), processes, start_method="forkserver"
    )


def main() -> None:
    """Plan and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, choices=(2, 4), default=2)
    processes = parser.parse_args().processes
    start(processes, plans(processes))


if __name__ == "__main__":
    main()
