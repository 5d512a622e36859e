"""Small hybrid problems and random uniform plans of them."""

import numpy as np

from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.uniform import Uniform

SHAPE = TransformerShape("toy", 8, 64, 8, 128, 512, kv_heads=4)
EXACT = {
    "name": "megatron-2021", "matmul_share": 1.0, "memory_share": 1e18, "link_share": 1.0,
    "send_share": 1.0, "send_wait": 0.0, "hop_in": 0.0, "hop_out": 0.0, "launch": 0.0,
    "optimizer_bytes": 0.0, "scatter_gather": False, "tiles": False, "hidden": 1.0,
}  # fmt: skip
"""Constants with which seconds are matrix products at the peak and bytes over bandwidths."""


def toy(cluster="2x8:a100", batch=32, stack=None, precision="", **shape):
    """Return a problem of a small model; ``shape`` are other numbers of it."""
    numbers = {**vars(SHAPE), **shape}
    return Hybrid(
        HybridModel.of_shape(TransformerShape(**numbers)), cluster, batch, stack, precision
    )


def uniform_rows(problem, count, seed):
    """Return random uniform plans that break no rule; they may not fit the memory."""
    rng, rows = np.random.default_rng(seed), []
    shape, devices = problem.model.shape, problem.cluster.devices
    while len(rows) < count:
        tp, pp, context, micro_batch, chunks = (
            int(rng.choice(x))
            for x in ((1, 2, 4, 8), (1, 2, 4, 8), (1, 1, 2), (1, 2), (1, 1, 2, 4))
        )
        if tp * pp * context > devices or shape.heads % tp:
            continue
        dp = int(2 ** rng.integers(0, int(np.log2(devices // (tp * pp * context))) + 1))
        micro_batches, rest = divmod(problem.batch, dp * micro_batch)
        if rest or not micro_batches or tp > problem.cluster.devices_per_server:
            continue
        if pp == 1 or len(problem.model) < pp * chunks or micro_batches % pp:
            chunks = 1
        rows.append(
            {
                "tp": tp,
                "pp": pp,
                "dp": dp,
                "micro_batch": micro_batch,
                "batch": problem.batch,
                "chunks": chunks,
                "context": context,
                "expert": int(rng.choice([1, 2])) if shape.experts > 1 and dp % 2 == 0 else 1,
                "sequence_parallel": tp > 1 and bool(rng.integers(2)),
                "recompute": str(rng.choice(["none", "selective", "full"])),
                "zero": int(rng.integers(2 if pp > 1 else 4)),
                "blocking": bool(rng.integers(2)),
                "gradient_bytes": float(rng.choice([2, 4])),
                "gradient_overlap": bool(rng.integers(2)),
            }
        )
    return Uniform(**{key: np.array([row[key] for row in rows]) for key in rows[0]})
