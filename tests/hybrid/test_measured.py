"""What was measured of a server: rates of shapes by hand, prices by them, a machine's own steps."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.hybrid_predictions import predictions
from parenvs.cluster import Cluster, Measured
from parenvs.tasks.hybrid.layers import Split, TransformerBlock, kernels_of
from parenvs.tasks.hybrid.model import HybridModel, load_shape
from parenvs.tasks.hybrid.plan import HybridStage
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.rows import read_rows
from parenvs.tasks.hybrid.stack import STACKS
from parenvs.tasks.hybrid.tune.prior import priced, stacks_on

SERVER = Cluster.parse("b200-server.json")
SHAPE = load_shape("llama3-8b")
MACHINE = STACKS["megatron-2025"].machine


def planned(cluster):
    """The report of one stage of four tensor-parallel ranks, two replicas."""
    problem = Hybrid(HybridModel.of_shape(SHAPE), cluster, 8, "megatron-2025")
    return problem.report(
        problem.plan([HybridStage(((0, len(problem.model)),), 8, 4)], micro_batch=2)
    )


def test_share__is_that_of_the_shape_or_of_its_neighbors_and_unknown_far_away():
    rows = [("bf16", "forward", 1, m, 64, 64, share) for m, share in ((64, 0.2), (256, 0.6))]
    rows.append(("bf16", "weight", 8, 64, 64, 64, 0.9))
    known = Measured("by hand", tuple(rows))
    found = known.product_share("bf16", "forward", 1, np.array([64, 256, 128, 100, 1025]), 64, 64)
    # Twice as far counts a quarter; 1025 is over four times as many rows as any.
    near, far = 1 / np.log(100 / 64) ** 2, 1 / np.log(256 / 100) ** 2
    between = (0.2 * near + 0.6 * far) / (near + far)
    assert found == pytest.approx([0.2, 0.6, 0.4, between, np.nan], nan_ok=True)
    assert known.product_share("bf16", "", 8, 64, 64, 64) == pytest.approx(0.9)
    for key in (("fp8", "forward", 1), ("bf16", "input", 1), ("bf16", "forward", 8)):
        assert np.isnan(known.product_share(*key, 64, 64, 64))
    assert known.rate("bf16") == pytest.approx(13 / (1 / 0.2 + 4 / 0.6 + 8 / 0.9))
    assert known.rate("fp8") is None


def test_layer__takes_the_seconds_of_its_kernels():
    split = Split(2, 1.0)
    products, attention = kernels_of(SHAPE, split)
    known = Measured(
        "by hand",
        tuple(("bf16", *product, 0.5) for product in products),
        tuple(("bf16", which, *attention, 0.25) for which in ("forward", "backward")),
        {"other": (1.0, 0.0)},
    )
    cluster = replace(Cluster.parse("1x8:h100"), measured=known)
    found = TransformerBlock(SHAPE).seconds(MACHINE(cluster, "bf16"), split)
    peak, bandwidth = cluster.device.peak("bf16"), cluster.device.memory_bw
    head = 3 * 2.0 * SHAPE.sequence * SHAPE.vocabulary / 2 * SHAPE.hidden
    flops = sum(2.0 * np.prod(product[1:]) for product in products) - head
    scores = 2 * 2.0 * SHAPE.sequence**2 * SHAPE.heads / 2 * SHAPE.head_width
    kernels = flops / 0.5 / peak + 3.5 * scores / 0.25 / peak
    # Norms, sums and the gate; queries and keys are rotated in both passes.
    widths = 2 * (4 + 6 + 6 + 4) * SHAPE.hidden + 16 * SHAPE.feed_forward / 2
    turned = (SHAPE.heads + SHAPE.kv_heads) / 2 * SHAPE.head_width
    moved = SHAPE.sequence * (widths + 2 * 4 * turned)
    seconds = kernels + moved / bandwidth
    assert found.forward + found.backward == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize(
    "change",
    [
        {"products": tuple((*x[:-1], x[-1] / 2) for x in SERVER.measured.products)},
        {"attention": tuple((*x[:-1], x[-1] / 2) for x in SERVER.measured.attention)},
        {"traffic": {**SERVER.measured.traffic, "other": (0.3, 3e-5)}},
        {"traffic": {**SERVER.measured.traffic, "fused-loss": (0.1, 3e-5)}},
        {"collectives": {"all-gather": (0.3, 8.61e-6, 2.433e-5)}},
        {"collectives": {"all-gather": (0.723, 1e-3, 2.433e-5)}},
        {"layer_seconds": 1.0},
    ],
)
def test_price__every_figure_counts(change):
    slower = replace(SERVER, measured=replace(SERVER.measured, **change))
    assert planned(slower).length_seconds > 1.001 * planned(SERVER).length_seconds


def test_steps_of_the_measured_machine__within_seven_per_cent():
    published = read_rows("rows-peers-2026-11.json")
    rows = tuple(row for row in published.rows if row.get("device") == "b200")
    found, _ = predictions(replace(published, rows=rows, server=SERVER))
    seconds, held = ([abs(x.error) for x in found if x.unit == unit] for unit in ("ms", "GiB"))
    assert len(found) == 44 and np.mean(seconds) < 0.07 and np.mean(held) < 0.015


def test_report__says_what_was_measured():
    report = planned(SERVER)
    assert report.as_measured == "with 17 of 17 kernels as measured" and not report.is_guess
    few = replace(SERVER.measured, attention=())
    bare = planned(replace(SERVER, measured=few))
    assert bare.as_measured.startswith("with 15 of 17 kernels")
    assert Cluster.parse(bare.plan.cluster.to_json()) == bare.plan.cluster


def test_tune__is_surer_where_the_machine_was_measured():
    widths = []
    for cluster in (SERVER, replace(SERVER, measured=None)):
        plan, problem = planned(cluster).plan, Hybrid(HybridModel.of_shape(SHAPE), cluster, 8)
        stacks = stacks_on(problem)[:1]
        widths.append(np.std(priced(problem, stacks, plan).particles(stacks)))
    assert widths[0] < 0.6 * widths[1]
