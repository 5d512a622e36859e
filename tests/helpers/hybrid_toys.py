"""Small hybrid problems and random uniform plans of them."""

from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shape import TransformerShape

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
