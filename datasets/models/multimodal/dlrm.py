"""DLRM, a recommender of embedding tables and dense layers (arXiv 1906.00091)."""

from collections.abc import Sequence
from itertools import pairwise

import jax
import jax.numpy as jnp
from jax import named_scope

from parenvs.datasets.models.layers import dense, dense_shapes, embed
from parenvs.datasets.models.model import Array, Model, Tree, floats, integers
from parenvs.datasets.models.optimisers import descent

CRITEO = (
    39_884_406, 39_043, 17_289, 7_420, 20_263, 3, 7_120, 1_543, 63, 38_532_951, 2_953_546,
    403_346, 10, 2_208, 11_938, 155, 4, 976, 14, 39_979_771, 25_641_295, 39_664_984, 585_935,
    12_972, 108, 36,
)  # fmt: skip
"""Rows of the tables for Criteo's click logs of 1 TB, ids taken modulo 40 million."""


def dlrm(
    rows: Sequence[int] = CRITEO,
    width: int = 128,
    numbers: int = 13,
    bottom: Sequence[int] = (512, 256, 128),
    top: Sequence[int] = (1024, 1024, 512, 256, 1),
    batch_size: int = 65536,
    name: str = "dlrm",
) -> Model:
    """Return DLRM; the defaults are the model of MLPerf's recommendation task.

    The rows that categories select, and the numbers after dense layers, are multiplied with each
    other; the products go through more dense layers to one logit. The tables stay float32, and
    their gradients are as large as they are, where trainers update the rows alone.

    Args:
        rows: Rows of each embedding table.
        width: Width of the tables.
        numbers: Number of continuous features.
        bottom: Widths of the dense layers that the numbers go through; the last is ``width``.
        top: Widths of the dense layers after the products.
        batch_size: Examples in a batch.
        name: Instance name.
    """
    vectors = len(rows) + 1
    pairs = vectors * (vectors - 1) // 2

    def chain(inputs: int, widths: Sequence[int]) -> Tree:
        return {f"dense_{i}": dense_shapes(*w) for i, w in enumerate(pairwise((inputs, *widths)))}

    def init() -> Tree:
        return {
            "tables": {f"table_{i}": floats(n, width) for i, n in enumerate(rows)},
            "bottom": chain(numbers, bottom),
            "top": chain(width + pairs, top),
        }

    def run(weights: Tree, x: Array, last: bool) -> Array:
        for i in range(len(weights)):
            with named_scope(f"dense_{i}"):
                x = dense(weights[f"dense_{i}"], x)
                x = jax.nn.relu(x) if last or i + 1 < len(weights) else x
        return x

    def loss(params: Tree, batch: Tree) -> Array:
        with named_scope("bottom"):
            x = run(params["bottom"], batch["numbers"].astype(jnp.bfloat16), True)
        with named_scope("tables"):
            features = [x]
            for i in range(len(rows)):
                with named_scope(f"table_{i}"):
                    taken = embed(params["tables"][f"table_{i}"], batch[f"category_{i}"])
                    features.append(taken.astype(x.dtype))
        with named_scope("products"):
            both = jnp.stack(features, 1)
            products = jnp.einsum("bid,bjd->bij", both, both)
            below = [products[:, i, :i] for i in range(1, vectors)]
            x = jnp.concatenate([x, *below], 1)
        with named_scope("top"):
            logit = run(params["top"], x, False)[:, 0].astype(jnp.float32)
        with named_scope("loss"):
            clicked = batch["clicked"].astype(jnp.float32)
            return (jax.nn.softplus(logit) - clicked * logit).mean()

    return Model(
        name,
        f"DLRM, {len(rows)} tables of width {width}, {sum(rows):,} rows",
        "arXiv 1906.00091; MLPerf Training v0.7",
        init,
        loss,
        {
            "numbers": floats(batch_size, numbers),
            **{f"category_{i}": integers(batch_size) for i in range(len(rows))},
            "clicked": integers(batch_size),
        },
        batch_size,
        family="dlrm",
        trained_as="SparseOperationKit, DLRM benchmark: 65,536 examples on 8 A100",
        mixed=True,
        kept=("tables",),
        optimiser=descent(),
    )
