"""What costs must hold, by hand and over all uniform plans; devices; baselines."""

from dataclasses import replace

import numpy as np
import pytest
from cases import each, slow
from hybrid_toys import EXACT, toy

import parenvs
from parenvs.agents.hybrid.baseline import rule_of_thumb
from parenvs.cluster import DEVICES, GIB, Cluster
from parenvs.errors import ParenvsError
from parenvs.tasks.hybrid import formulas
from parenvs.tasks.hybrid.layers import TransformerBlock
from parenvs.tasks.hybrid.model import HybridModel, shapes
from parenvs.tasks.hybrid.space import Constraints, UniformSpace
from parenvs.tasks.hybrid.stack import STACKS, Stack
from parenvs.tasks.hybrid.uniform import Uniform, uniform_stages

LLAMA = HybridModel.of_shape(shapes()["llama2-70b"])


def machine_of(stack, cluster, precision="bf16", **constants):
    return Stack.parse({"name": stack, **constants}).machine(Cluster.parse(cluster), precision)


@each(
    ("micro_batches", "seconds"),
    [
        (4, (73.7, 78.3, 83.1)), (8, (73.7, 84.5, 92.7)), (16, (73.8, 96.8, 111.7)),
        (32, (75.4, 125.9, 154.4)),
    ],
)  # fmt: skip
def test_zero__scatters_and_gathers_by_hand(micro_batches, seconds):
    """Llama 2 70B on 256 A100, tp 4, one stage: levels 1, 2 and 3, by hand within 0.1 s."""
    cluster, levels = Cluster.parse("32x8:a100"), np.array([1, 2, 3])
    plans = Uniform(
        tp=4, pp=1, dp=64, micro_batch=2048 // 64 // micro_batches, batch=2048, zero=levels,
        sequence_parallel=True, gradient_bytes=4.0, gradient_overlap=True,
    )  # fmt: skip
    length, held = plans.judged(LLAMA, cluster, machine_of("megatron-2022", "32x8:a100"))
    assert length["length"] == pytest.approx(seconds, abs=0.06)
    assert held["gradients"] / 1e9 == pytest.approx((69.0, 1.93, 1.93), abs=0.03)


def test_zero_2__with_one_micro_batch_takes_what_zero_1_does():
    for overlap in (False, True):
        plans = Uniform(
            tp=4, pp=1, dp=64, micro_batch=1, batch=64, zero=np.array([1, 2]),
            gradient_overlap=overlap,
        )  # fmt: skip
        machine = machine_of("megatron-2022", "32x8:a100")
        seconds = plans.seconds(LLAMA, Cluster.parse("32x8:a100"), machine)["length"]
        assert seconds[0] == seconds[1]


@pytest.mark.parametrize("expert", [8, 128])
def test_zero_3__experts_are_gathered_among_those_that_hold_them(expert):
    """A layer of Qwen3-235B on 128 H100; experts of which each rank has its own are at home."""
    dense, experts = 71_835_904, 2_415_919_104 / expert
    # Dense weights pass eight cards of a server, those of an expert one.
    seconds = 2 * dense * 127 / 128 / (0.7 * 400e9) + 112 * 2e-6 + 16 * 12e-6
    if expert == 8:
        seconds += 2 * experts * 15 / 16 / (0.7 * 50e9) + 16 * 12e-6
    model = HybridModel.of_shape(shapes()["qwen3-235b-a22b"])
    cluster, machine = Cluster.parse("16x8:h100"), machine_of("llama-2024", "16x8:h100")
    plans = Uniform(tp=1, pp=1, dp=128, micro_batch=1, batch=128, zero=3, expert=expert)
    step = formulas.step(model, cluster, machine, uniform_stages(model, plans, 1))
    # ``start`` has two gathers and a scatter of one layer.
    assert step.start[0, 0] / 3 == pytest.approx(seconds)


def test_constants__bytes_by_hand():
    shape = replace(shapes()["llama3-8b"], layers=2)
    model, plans = HybridModel.of_shape(shape), Uniform(1, 1, 8, 1, 8)

    def held(**constants):
        machine = machine_of("llama-2024", "1x8:h100", **constants)
        return plans.memory(model, machine)

    plain, tokens, h = held(), 8192, 4096
    parameters = plain["weights"][0] / 2
    assert held(moment_bytes=4.0)["optimizer"][0] == pytest.approx(4 * parameters)
    slow_norms = held(fused_norms=False)["activations"][0] - plain["activations"][0]
    assert slow_norms == pytest.approx(2 * 2 * 6 * tokens * h)
    # Queries, keys and values, the output, gate and network, the second product.
    different = h * (4096 + 2 * 1024) + 4096 * h + 2 * h * 14336 + 14336 * h
    dummies = held(dummy_gradients=True)["gradients"][0] - plain["gradients"][0]
    assert dummies == pytest.approx(2 * different)
    fused = plain["working"][0] - held(logit_bytes=0.0)["working"][0]
    assert fused == pytest.approx(6 * tokens * 128256)


def test_mixtures__keep_tokens_in_the_order_of_experts():
    shape = replace(shapes()["qwen3-30b-a3b"], layers=1)
    machine = machine_of("llama-2024", "1x8:h100")
    block = TransformerBlock(shape)
    without = TransformerBlock(replace(shape, experts=1, active=1, feed_forward=8 * 768))
    plans = Uniform(1, 1, 8, 1, 8)
    split = uniform_stages(HybridModel.of_shape(shape), plans, 1).split
    kept = [float(x.saved_bytes(machine, split, "none")[0, 0]) for x in (block, without)]
    assert kept[0] - kept[1] == pytest.approx(2 * shape.sequence * 8 * 2048)


CHANGES = (
    {"hop_in": 9e-6}, {"link_share": 0.35}, {"launch": 2e-5}, {"hidden": 0.1, "gather_hidden": 0.1},
    {"regather": True}, {"fused_norms": False}, {"layer_seconds": 0.01}, {"accumulate_bytes": 20.0},
)  # fmt: skip
SEVERAL = ("llama3-8b", "llama2-70b", "qwen3-30b-a3b", "gpt-3.6b", "gpt3-175b", "qwen3-235b-a22b")


@pytest.mark.parametrize(
    ("name", "stack"),
    [
        ("llama3-8b", "megatron-2021"),
        *slow(*((name, stack) for name in SEVERAL for stack in
                ("megatron-2022", "llama-2024", "nemo-2025", "titan-2025", "megatron-2025"))),
    ],
)  # fmt: skip
def test_all_uniform_plans__no_slower_machine_makes_a_plan_faster(name, stack):
    cluster = Cluster.parse("8x8:h100")
    problem = parenvs.problem(name, cluster, task="hybrid", batch=256, stack=stack)
    space = UniformSpace.build(problem, Constraints(most_micro_batch=4))
    plans, length = space.plans, space.seconds["length"]
    for change in CHANGES:
        machine = replace(problem, stack=replace(problem.stack, **change)).machine
        slower = plans.seconds(problem.model, cluster, machine)["length"]
        if "accumulate_bytes" not in change:  # products that add write more then
            assert (slower >= length * (1 - 1e-12)).all(), change
    half = replace(cluster, inter_bw=cluster.inter_bw / 2)
    slower = plans.seconds(problem.model, half, replace(problem, cluster=half).machine)["length"]
    assert (slower >= length * (1 - 1e-4)).all()  # slower sends hide a little more of gradients
    host = replace(problem, stack=replace(problem.stack, step_seconds=0.5)).machine
    added = plans.seconds(problem.model, cluster, host)["length"] - length
    assert added == pytest.approx(0.5)
    # Of plans that differ by ZeRO alone.
    names = [x for x in vars(plans) if x != "zero"]
    codes = np.stack([np.unique(getattr(plans, x), return_inverse=True)[1] for x in names])
    alike = np.unique(codes, axis=1, return_inverse=True)[1].reshape(-1)
    by_level = np.full((2, 4, alike.max() + 1), np.nan)
    by_level[0, plans.zero, alike] = length
    by_level[1, plans.zero, alike] = space.memory["total"]
    both = ~np.isnan(by_level[0, 1]) & ~np.isnan(by_level[0, 2])
    assert both.any()
    assert (by_level[0, 2, both] >= by_level[0, 1, both] * (1 - 1e-12)).all()
    for level in (1, 2, 3):
        less, more = by_level[1, level], by_level[1, level - 1]
        pairs = ~np.isnan(less) & ~np.isnan(more)
        assert (less[pairs] <= more[pairs] * 1.004).all()  # whole layers are held besides


def test_devices__capacities_and_generations():
    for name, gib in (("a100", 79.15), ("h100", 79.11), ("a100-40gb", 39.5), ("h200", 139.8)):
        assert DEVICES[name].memory_bytes == gib * GIB
    stack = STACKS["llama-2024"]
    for name in ("a800", "a100-40gb", "a100-pcie"):
        assert stack.share_of(DEVICES[name], "bf16") <= stack.share_of(DEVICES["a100"], "bf16")
        problem = toy(f"2x8:{name}")
        assert problem.stack.name == "llama-2024" and problem.machine.multiprocessors == 108
    assert toy("1x8:mi325x").stack.name == toy("1x8:h200").stack.name == "llama-2024"
    with pytest.raises(ParenvsError, match=r"unknown device 'mi350x' \(did you mean"):
        Cluster.parse("1x8:mi350x")


def test_links__shared_switches_and_latency_once():
    near = machine_of("llama-2024", "1x8:a100-pcie", hop_in=0.0).links
    four, eight = (float(near.all_gather(1e9, group, 1)) for group in (4, 8))
    assert four == pytest.approx(1e9 * 3 / 4 / (0.7 * 32e9))
    assert eight == pytest.approx(1e9 * 7 / 8 / (0.7 * 21e9))
    measured = machine_of("llama-2024", "1x8:b200").links
    assert float(measured.all_gather(0.0, 8, 1)) == pytest.approx(7 * 8.6e-6 + 24.3e-6)
    assert float(measured.all_gather(1e9, 1, 1)) == 0.0


def test_exact__plans_what_a_framework_runs_unless_it_is_free():
    problem = toy("1x8:h100", 32, layers=7, tied=False)
    runs = parenvs.plan(problem)
    free = parenvs.plan(problem, constraints={"framework": "free"})
    assert "that a framework runs as they are" in runs.among
    assert "free stages" in free.among and free.cost <= runs.cost * (1 + 1e-12)
    assert len({(x.tp, x.devices, x.zero) for x in runs.plan.stages}) == 1
    pinned = parenvs.plan(problem, constraints={"pinned": ((0, 2, 4),)})
    assert pinned.plan.stages[0].layers == ((0, 2),)
    # The least of what Megatron and torchtitan run.
    each_of_them = []
    for name in ("megatron", "torchtitan", "deepspeed"):
        limits = Constraints(framework=name, uneven=True)
        each_of_them.append(parenvs.plan(problem, "uniform", constraints=limits).cost)
    assert runs.bound <= min(each_of_them) * (1 + 1e-12)


def test_exact__says_what_stages_that_differ_would_gain():
    stack = {**EXACT, "name": "llama-2024"}
    problem = toy("1x4:h100", 64, stack, layers=7, vocabulary=65_536, tied=False)
    answer = parenvs.plan(problem, constraints={"pp": 2, "micro_batch": 1, "dp": 1})
    words = [note for note in answer.notes if "--for free plans them" in note]
    free = parenvs.plan(problem, constraints={"pp": 2, "micro_batch": 1, "framework": "free"})
    assert words and free.report.simulated_seconds < answer.report.simulated_seconds * 0.999


def test_experts__may_be_whole_on_ranks_of_tp():
    problem = toy("1x8:h100", 32, experts=8, active=2, dropout=False, bias=False)
    limits = Constraints(tp=4, expert_tp=1, sequence_parallel=True)
    plans = UniformSpace.build(problem, limits).plans
    assert set(plans.expert_tp.tolist()) == {1} and plans.expert.max() == 8
    answer = parenvs.plan(problem, constraints=limits)
    assert answer.plan.expert_tp == 1 and answer.report.legal
    with pytest.raises(ParenvsError, match="no uniform plan keeps to expert_tp 1"):
        parenvs.plan(toy("1x8:h100", 32), "uniform", constraints={"expert_tp": 1})


@each(
    ("name", "cluster", "batch", "words"),
    [
        ("llama3-405b", "128x8:h100", 2048, "as llama3 ran 405B"),
        ("gpt3-175b", "64x8:a100", 1536, "as megatron-sc21 ran"),
        ("llama3-8b", "2x8:v100", 64, "Megatron's takeaways"),
    ],
)
def test_rule_of_thumb__is_a_published_run_or_a_rule(name, cluster, batch, words):
    problem = parenvs.problem(name, cluster, task="hybrid", batch=batch)
    answer = rule_of_thumb(problem)
    assert answer.report.legal and not answer.proven
    assert answer.notes[0].startswith(words)
    best = parenvs.plan(problem, "uniform").cost
    assert best <= answer.cost * (1 + 1e-12)
