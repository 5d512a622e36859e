"""Plans of the example's transformer for two and four processes, and its losses on one device.

``examples`` has to be on the path, also of the processes that are started.
"""

import torch
import torch_transformer as example

from parenvs import Cluster, HybridPlan, HybridStage

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


def plan_of(graph, instance: str, processes: int, stages=WHOLE, tp=1, zero=0) -> HybridPlan:
    """A plan of two micro-batches."""
    own = processes // len(stages)
    return HybridPlan(
        instance, graph.fingerprint, Cluster.parse(f"1x{processes}:v100"), "roofline", "fp32",
        batch=example.BATCH, micro_batch=example.BATCH // 2 * tp // own,
        stages=tuple(HybridStage((part,), own, tp=tp, zero=zero) for part in stages),
    )  # fmt: skip


def alone(steps: int = 2 * STEPS) -> list[float]:
    """Losses on one device, without a break."""
    model, _ = example.make()
    optimizer = torch.optim.Adam(model.parameters(), example.RATE)
    words, targets = example.batch()
    curve = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = example.loss(model(words), targets)
        value.backward()
        optimizer.step()
        curve.append(value.item())
    return curve
