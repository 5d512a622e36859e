"""Steps in micro-batches: sizes against lowered graphs, counts by hand, memory by simulation."""

from dataclasses import replace

import numpy as np
import partition_toys as toys
import pytest
from cases import each

from parenvs.cluster import Cluster
from parenvs.core.plan import judge, load_plan
from parenvs.core.registry import problem
from parenvs.errors import ParenvsError
from parenvs.graph.graph import Phase
from parenvs.tasks.partition.classes import at_micro_batch, batch_classes, synchronized_once
from parenvs.tasks.partition.formulas import Footprint
from parenvs.tasks.partition.problem import Partitioning, load_partitioning


def mlp(devices=2, **step):
    """The training step of two layers at a batch of 8."""
    whole = toys.problem_of(toys.MLP, devices, batch_size=8)
    return Partitioning.build(whole.graph, whole.cluster, reward="step_time", **step)


def none(of):
    return np.zeros(len(of.classes), dtype=bool)


def opcodes(of):
    return [name for name, _, _ in toys.instructions(of.graph)]


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["resnet"])
def test_micro_batch__sizes_are_those_of_a_lowered_graph(family):
    """Dimensions, bytes and FLOPs of every instruction, as JAX makes them for another batch."""
    pytest.importorskip("jax")
    from small_models import small

    from parenvs import from_jax
    from parenvs.datasets.models.model import train_step

    def graph(batch):
        function, args = train_step(small(family, batch_size=batch))
        return from_jax(function, *args)

    large, wanted = graph(12), graph(4)
    whole = Partitioning.build(large, "1x2:v100")
    found = at_micro_batch(whole.classes, 4).graph
    assert (found.opcode == wanted.opcode).all() and found.batch_size == 4
    used = ~np.isin(np.arange(len(found.element_type)), _unread(found))
    assert (found.tensor_bytes == wanted.tensor_bytes)[used].all()
    sums = np.isin(found.opcode, [found.opcodes.index("reduce")])  # n - 1 additions of n numbers
    np.testing.assert_allclose(found.flops[~sums], wanted.flops[~sums], rtol=1e-3, atol=8)
    assert found.flops.sum() == pytest.approx(wanted.flops.sum(), rel=5e-3)
    assert found.bytes_accessed.sum() == pytest.approx(wanted.bytes_accessed.sum(), rel=1e-3)
    back = at_micro_batch(whole.classes, 12)
    assert back is whole.classes


def _unread(graph):
    """Tensors that only free instructions make and read: nobody pays for them."""
    from parenvs.tasks.partition.classes import free_tensors

    return np.flatnonzero(free_tensors(graph))


def test_micro_batch__sizes_by_hand():
    small, whole = mlp(micro_batch=4), mlp()
    assert small.graph is not small.classes.graph and whole.graph is whole.classes.graph
    shapes = {
        path: small.classes.graph.shape(tensor) for path, tensor in small.classes.tensor.items()
    }
    assert shapes == {"w1": (4, 6), "w2": (6, 2), "x": (4, 4), "y": (4, 2)}
    ((batch,),) = (np.flatnonzero(batch_classes(whole.classes)),)
    assert batch == whole.classes.label[whole.graph.dim_offset[whole.classes.tensor["x"]]]
    assert mlp(4, micro_batch=2).device_share[batch] == 0.5  # two of four devices idle
    assert mlp(4).device_share[batch] == 0.25
    same = mlp(micro_batch=8)
    assert same.step.micro_batch is None and same.plan(none(same)) == whole.plan(none(whole))


@each(
    ("step", "words"),
    [
        ({"micro_batch": 1}, "micro_batch must be a whole number from 2, not 1"),
        ({"micro_batch": 4.0}, "micro_batch must be a whole number from 2, not 4.0"),
        ({"micro_batch": True}, "micro_batch must be a whole number"),
        ({"micro_batches": 0}, "micro_batches must be a whole number from 1, not 0"),
        ({"micro_batches": None}, "micro_batches must be a whole number from 1, not None"),
        ({"recompute": "all"}, "unknown recompute 'all'; known: none, full"),
        ({"memory_limit": 0}, "memory_limit must be a positive number of bytes, or 'device' for"),
        ({"memory_limit": "devise"}, "or 'device' for 900,000, not 'devise'"),
        ({"memory_limit": float("nan")}, "memory_limit must be"),
        ({"memory_limit": 10**400}, "memory_limit must be"),
    ],
)
def test_step__settings_that_cannot_be(step, words):
    with pytest.raises(ParenvsError, match=words):
        mlp(**step)


def test_step__instructions_run_once_a_micro_batch_and_the_update_once():
    whole, step = mlp(micro_batch=4), mlp(micro_batch=4, micro_batches=3)
    update = whole.graph.phase == Phase.UPDATE
    np.testing.assert_array_equal(step.seconds[~update], 3 * whole.seconds[~update])
    np.testing.assert_array_equal(step.seconds[update], whole.seconds[update])
    assert update.any() and not update.all()
    report, once = step.report(step.plan(none(step))), whole.report(whole.plan(none(whole)))
    assert report.utilization < 3 * once.utilization * once.step_seconds / report.step_seconds


def test_step__gradients_are_summed_over_the_devices_once():
    """The batch class: two gradients at the end; the hidden width: a product in each pass."""
    whole, step = mlp(), mlp(micro_batches=3)
    waits = synchronized_once(step.classes)
    assert {opcodes(step)[i] for i in np.flatnonzero(waits)} == {"dot"} and waits.sum() == 2
    batch = step.chosen({"x": 0})
    hidden = step.chosen({"w1": 1})
    for chosen, times in ((batch, 1), (hidden, 3)):
        one, three = (p.all_reduce_seconds[chosen].sum() for p in (whole, step))
        assert three == pytest.approx(times * one) and one > 0
    counts = [step.report(step.plan(x)).all_reduces for x in (batch, hidden)]
    assert counts == [2, 3 * whole.report(whole.plan(hidden)).all_reduces]


def test_footprint__sums_of_gradients_stay():
    """Both sums, 24 and 12 numbers, at every moment, and each gradient while it is made."""
    whole, step = mlp(), mlp(micro_batches=2)
    before, after = (p.footprint.alive(none(p)) for p in (whole, step))
    w2, w1 = np.flatnonzero(synchronized_once(step.classes)).tolist()  # 12 and 24 numbers
    extra = after - before
    assert extra[0] == 4 * (24 + 12)
    assert extra[w2] == 4 * (24 + 12)  # its own was there before, now beside the sums
    assert extra[w2 + 1] == 4 * 24  # the gradient of w2 is in its sum
    assert extra[w1] == 4 * 24  # so is it here, and that of w1 is being made
    assert (extra[w1 + 1 :] == 0).all()
    memory = step.footprint.memory(none(step))
    assert memory.gradients >= 4 * (24 + 12)
    linear = step.footprint.saved_at(memory.at)
    assert linear.replicated_bytes == memory.peak


@pytest.fixture(scope="module")
def remade():
    return load_partitioning("bert-48", "1x8:v100", reward="step_time", recompute="full")


def test_footprint__recomputation_holds_less_and_takes_longer(remade):
    whole = load_partitioning("bert-48", "1x8:v100", reward="step_time")
    batch = whole.chosen({whole.graph.paths[i]: 0 for i in whole.inputs})
    for chosen in (none(whole), batch):
        more, less = (p.footprint.memory(chosen) for p in (whole, remade))
        assert less.activations < 0.1 * more.activations
        assert less.parameters == more.parameters
    again = remade.footprint.reruns
    assert remade.replicate_seconds - whole.replicate_seconds == pytest.approx(
        whole.seconds[again].sum()
    )
    assert 0.25 < remade.replicate_seconds / whole.replicate_seconds - 1 < 0.4
    one, other = (p.report(p.plan(batch)) for p in (whole, remade))
    assert other.utilization == pytest.approx(
        one.utilization * one.step_seconds / other.step_seconds
    )
    memory = remade.footprint.memory(batch)
    linear = remade.footprint.saved_at(memory.at)
    assert linear.replicated_bytes - linear.saved_bytes[batch].sum() == pytest.approx(
        memory.peak, rel=1e-12
    )


@each("seed", range(6))
def test_footprint__recomputation_of_random_programs(seed):
    of = toys.random_problem(seed, steps=30)
    try:
        again = Footprint(of.graph, of.classes.label, of.device_share, 2, recompute=True)
    except ParenvsError as error:
        assert "no backward pass" in str(error)
        return
    tensor, first, last = again.lifetimes
    assert (last >= first).all() and last.max(initial=0) < len(again.order)
    rng = np.random.default_rng(seed)
    for _ in range(3):
        chosen = toys.random_choice(of, rng)
        alive = again.alive(chosen)
        at = int(rng.integers(len(alive)))
        linear = again.saved_at(at)
        held = again.bytes * again.scale(chosen)
        own = held[tensor[(first <= at) & (at <= last)]].sum()
        assert alive[at] == pytest.approx(own, abs=1e-6)
        assert linear.replicated_bytes - linear.saved_bytes[chosen].sum() == pytest.approx(
            own + held[again.parameters].sum()
        )


@pytest.mark.parametrize(
    ("name", "words"),
    [("llama3-8b-scanned", "runs in a loop"), ("t5-base-forward", "has no backward pass")],
)
def test_footprint__graphs_that_cannot_be_recomputed(name, words):
    from parenvs.instances import load_graph

    graph = load_graph(name.removesuffix("-forward"), "forward" if "forward" in name else "train")
    of = Partitioning.build(graph, "1x8:v100", reward="step_time", recompute="full")
    with pytest.raises(ParenvsError, match=words):
        _ = of.replicate_seconds


def test_plan__keeps_the_step(tmp_path):
    """A saved plan is judged on the step that it is for, its limit among the rest."""
    settings = {"micro_batch": 16, "micro_batches": 4, "recompute": "full"}
    of = problem("vgg-19", task="partition", reward="step_time", memory_limit=3.3e9, **settings)
    assert of is problem(
        "vgg-19", task="partition", reward="step_time", memory_limit=3.3e9, **settings
    )
    plan = of.plan(none(of))
    plan.save(tmp_path / "plan.json")
    read = load_plan(tmp_path / "plan.json")
    assert read == plan and read.memory_limit == 3.3e9
    report = judge(read)
    assert not report.legal and report.value == -1
    assert report.reasons == (
        f"memory: {report.memory.peak:,.0f} bytes on each device, "
        f"{report.memory.peak - 3.3e9:,.0f} more than the 3,300,000,000 allowed",
    )
    assert report.step_seconds == pytest.approx(of.replicate_seconds)
    free = replace(of, step=replace(of.step, limit=None))
    assert free.report(read).legal and free.report(read).fits  # 0.9 of the device
    other = problem("vgg-19", task="partition", reward="step_time", memory_limit=True)
    assert other.step.limit == Cluster.parse("1x8:v100").memory_limit
    assert other.report(read).reasons == (
        "micro_batch: the plan is for 16, not the default",
        "micro_batches: the plan is for 4, not 1",
        "recompute: the plan is for full, not none",
    )
