"""Effects of today's training, by hand: precisions, experts, shards, buckets, gathers."""

from dataclasses import replace

import numpy as np
import pytest
from cases import each
from hybrid_toys import toy

from parenvs.cluster import DEVICES, Cluster, Links
from parenvs.tasks.hybrid import formulas
from parenvs.tasks.hybrid.layers import Split, TransformerBlock
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import HybridStage
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.stack import FP8_SHARE, RECIPES, STACKS, Stack
from parenvs.tasks.hybrid.uniform import Uniform, uniform_stages

GPU = Cluster.parse("2x8:h100")
PLAIN = {"launch": 0.0, "tiles": False, "hop_in": 0.0, "hop_out": 0.0, "permute_passes": 0.0}


def mixture(**numbers):
    return TransformerShape(
        "mixture", 4, 256, 4, 128, 1024, gated=True, dropout=False, bias=False, tied=False,
        feed_forward=512, **{"experts": 8, "active": 2, **numbers},
    )  # fmt: skip


def machine(cluster=GPU, precision="bf16", **constants):
    return Stack.parse({"name": "llama-2024", **PLAIN, **constants}).machine(cluster, precision)


@each(
    ("stack", "device", "precision", "share"),
    [
        ("nemo-2025", "h100", "fp8", 0.45),
        ("nemo-2025", "gb200", "fp8", 0.455),
        ("nemo-2025", "b200", "fp8", 0.455 * 1000 / 1200 * 5000 / 4500),
        ("nemo-2025", "b300", "fp8", 0.455 * 1100 / 1200 * 5000 / 4500),
        ("nemo-2025", "gb300", "fp8", 0.455 * 1400 / 1200),
        ("nemo-2025", "b200", "bf16", 0.60 * 1000 / 1200 * 2500 / 2250),
        ("nemo-2025", "gb300", "bf16", 0.70),
        ("llama-2024", "h100", "fp8", FP8_SHARE * 0.60),
        ("torch-2024", "h100", "fp8", FP8_SHARE * 0.64),
        ("llama-2024", "b200", "fp8", FP8_SHARE * 0.60 * 1000 / 1200 * 2500 / 2250),
        ("titan-2025", "h100", "fp8", 0.45),
        ("roofline", "h100", "fp8", 0.5),
        ("roofline", "gb200", "nvfp4", 0.5),
        ("nemo-2025", "gb200", "mxfp8", 0.43),
        ("nemo-2026", "gb300", "mxfp8", 0.43 * 1400 / 1200),
        ("nemo-2025", "gb200", "nvfp4", RECIPES["nvfp4"] * 0.455 / 2),
        ("nemo-2025", "h100", "fp8-block", RECIPES["fp8-block"] * 0.45),
        ("titan-2025", "h100", "fp8-row", RECIPES["fp8-row"] * 0.45),
        ("llama-2024", "h100", "fp8-row", RECIPES["fp8-row"] * FP8_SHARE * 0.60),
        ("megatron-2022", "a100", "bf16", 0.78),
    ],
)
def test_shares__precision_before_device_and_watts(stack, device, precision, share):
    found = STACKS[stack].share_of(DEVICES[device], precision)
    assert found == pytest.approx(share, rel=1e-12)


def test_experts__folded_over_tp():
    """Four ranks of tp hold whole experts: each sends its own quarter of the tokens.

    Products of experts have as many FLOPs, whole matrices and a quarter of the rows; tokens are
    not gathered for them, in either pass; twice as many ranks hold parts of an expert.
    """
    block = TransformerBlock(mixture())
    given = {"sequence_parallel": True, "expert": 4}
    torn, whole = Split(4, 4, **given), Split(4, 4, expert_tp=1, **given)
    same = Split(4, 4, expert_tp=4, **given)
    here = machine(memory_share=1e6)
    times = [block.seconds(here, split) for split in (torn, whole, same)]
    assert times[0] == times[2]
    assert times[0].forward == pytest.approx(times[1].forward, rel=1e-6)
    gather = here.links.all_gather(2 * 4 * 128 * 256, 4, 1)
    dealt = [2 * here.links.dispatch(2 * 128 * 256, 2, 4, stride) for stride in (4, 1)]
    assert times[0].forward_exchange == pytest.approx(4 * gather + dealt[0])
    assert times[1].forward_exchange == pytest.approx(2 * gather + dealt[1])
    assert times[1].backward_exchange < times[0].backward_exchange
    assert block.parameters(torn)[1] == block.parameters(whole)[1] / 4
    assert block.parameters(torn)[0] == block.parameters(whole)[0]


def test_attention__windows_and_sinks():
    """A window costs as many products as its tokens; sinks slow the kernel down."""
    split, here = Split(1, 1), machine(memory_share=1e6, sink_share=0.25)
    plain = TransformerBlock(mixture()).seconds(here, split)
    core = 2 * 128 * 128 * 256 / here.attention_flops
    for numbers, times in (
        ({"window": 32}, 32 * (2 - 32 / 128) / 128), ({"sinks": True}, 4.0), ({"window": 500}, 1.0),
        ({"window": 32, "sinks": True}, 4 * 32 * (2 - 32 / 128) / 128),
    ):  # fmt: skip
        other = TransformerBlock(mixture(**numbers)).seconds(here, split)
        assert other.forward - plain.forward == pytest.approx(core * (times - 1))
        assert other.backward - plain.backward == pytest.approx(2.5 * core * (times - 1))


def test_dispatch__two_levels():
    """Copies that leave a server pass the card, others the links inside; tokens once at most."""
    links = Links(8, 100.0, 10.0)
    # 16 ranks on 2 servers, 4 copies: half of them leave.
    assert links.dispatch(5.0, 4, 16, 1) == pytest.approx(
        5.0 * max(2 / 10, 4 * (1 / 2 - 1 / 16) / 100)
    )
    out, inside = 1 - 0.5**4, 15 * (1 - (15 / 16) ** 4)
    assert links.dispatch(5.0, 4, 16, 1, True) == pytest.approx(5.0 * max(out / 10, inside / 100))
    assert links.dispatch(5.0, 2, 8, 1) == pytest.approx(links.all_to_all(10.0, 8, 1))
    assert links.dispatch(5.0, 2, 1, 1) == links.dispatch(5.0, 2, 1, 1, True) == 0.0
    # Drawn alike: the mean number of other servers that 4 of 32 experts on 4 servers reach.
    rng = np.random.default_rng(0)
    drawn = rng.integers(4, size=(20_000, 4))
    others = np.mean([len(set(row) - {0}) for row in drawn.tolist()])
    assert links.dispatch(1.0, 4, 32, 1, True) == pytest.approx(others / 10, rel=0.02)


LATENT = {"query_rank": 96, "key_rank": 64, "rope_width": 16}


def test_latent_attention__parameters_and_flops_by_hand():
    """h 256, 4 heads of 64, ranks 96 and 64, 16 rotated; one shared expert of eight."""
    plain, latent = mixture(), mixture(**LATENT, shared_experts=1)
    products = 256 * (96 + 64 + 16) + 4 * (64 + 16) * 96 + 2 * 4 * 64 * 64 + 256 * 256
    one = 3 * 256 * 512
    dense, experts = latent.block_parameters
    assert dense == products + 2 * 256 + 96 + 64 + 256 * 8 + one
    assert experts == plain.block_parameters[1] == 8 * one
    core = 4 * 128 * 128 * 4 * (64 + 16 / 2)
    assert latent.block_flops == 2 * 128 * (products + 3 * one) + core
    block, whole = TransformerBlock(latent), 256 * (96 + 64 + 16) + 2 * 256 + 96 + 64 + 256 * 8
    held, own = block.parameters(Split(4, 1, expert=2))
    assert held == pytest.approx((dense - whole) / 4 + whole)
    assert own == 8 * one / 4 / 2
    seconds = block.seconds(machine(memory_share=1e6), Split(1, 2))
    here = machine()
    assert seconds.forward == pytest.approx(
        2 * 2 * 128 * (products + 3 * one) / here.flops + core / 2 * 2 / here.attention_flops
    )


def reduction(zero, shard, **constants):
    """Seconds of the gradients' collectives of 16 replicas on two servers, and of the update."""
    model = HybridModel.of_shape(mixture(experts=1, active=1))
    here = machine(link_share=1.0, **constants)
    plans = Uniform(1, 1, 16, 1, 16, zero=zero, shard=shard, gradient_bytes=4.0)
    stages = uniform_stages(model, plans, 1)
    step = formulas.step(model, GPU, here, stages)
    held = formulas.memory(model, here, stages)
    return step, held, float(formulas.parameters(model, stages)[0][0, 0])


def test_shard__scatter_inside_sum_between_gather_inside():
    """ZeRO 1 among the 8 of a server: W 7/8 inside, 2 W / 8 between two servers, and back."""
    step, held, size = reduction(1, 8)
    inside, card = GPU.intra_bw, GPU.device_nic_bw
    seconds = (4 + 2) * size * 7 / 8 / inside + 2 * 4 * size / 8 / 2 / card
    assert step.reduction[0, 0] == pytest.approx(seconds)
    assert held.optimizer[0, 0] == pytest.approx(12 * size / 8)
    every, states, _ = reduction(1, 0)
    assert states.optimizer[0, 0] == pytest.approx(12 * size / 16)
    assert step.update[0, 0] == pytest.approx(2 * every.update[0, 0])
    assert reduction(1, 16)[0].length == every.length


def test_shard__legal_if_it_divides_the_replicas():
    problem = toy("2x8:h100", 32)
    n = len(problem.model)

    def reasons(shard, zero=1):
        plan = problem.plan([HybridStage(((0, n),), 16, zero=zero)], shard=shard)
        assert plan.from_json(plan.to_json(), "") == plan
        return problem.report(plan).reasons

    assert reasons(8) == reasons(0) == ()
    assert reasons(3) == ("shard: 3 does not divide the 16 replicas of stages[0]",)
    assert "needs zero of at least 1" in reasons(8, 0)[0]
    assert "needs zero of at least 1" in reasons(1)[0]
    rows = Uniform(1, 1, 16, 1, 32, zero=1, shard=8)
    plan = problem.uniform_plan(rows, 0)
    assert plan.shard == 8
    seconds = rows.judged(problem.model, problem.cluster, problem.machine)[0]
    assert problem.length(plan) == seconds["length"][0]


def test_effects__rows_and_plans_cost_the_same():
    """A row of arrays, one plan of it, and the plan among others, with every effect at once."""
    shape = mixture(**LATENT, shared_experts=2, capacity=1.25)
    problem = toy("2x8:h100", 64, "nemo-2025")
    problem = replace(
        problem, model=HybridModel.of_shape(shape),
        stack=replace(problem.stack, bucket=1e5, accumulate_bytes=20.0, expert_overlap=0.3),
    )  # fmt: skip
    plans = Uniform(
        tp=[1, 2, 1, 4], pp=[1, 1, 2, 1], dp=[16, 8, 8, 4], micro_batch=[1, 2, 1, 1], batch=64,
        expert=[8, 4, 2, 1], zero=[3, 2, 1, 1], shard=[8, 4, 0, 2], chunks=[1, 1, 2, 1],
        sequence_parallel=[False, True, False, True],
        recompute=["none", "full", "selective", "none"],
        gradient_bytes=2.0, gradient_overlap=True, blocking=False,
    )  # fmt: skip
    together = plans.judged(problem.model, problem.cluster, problem.machine)
    for k in range(plans.size):
        alone = plans.take(np.array([k])).judged(problem.model, problem.cluster, problem.machine)
        plan = problem.uniform_plan(plans, k)
        assert alone[0]["length"][0] == together[0]["length"][k]
        assert problem.length(plan) == pytest.approx(together[0]["length"][k], rel=1e-13)
        assert problem.memory(plan).total.max() == pytest.approx(together[1]["total"][k], rel=1e-13)


def test_memory__fsdp_copies_the_gradients_of_a_layer_to_scatter_them():
    model = HybridModel.of_shape(mixture(experts=1, active=1))
    stack = {"name": "titan-2025"}
    held = {}
    for copied in (0.0, 1.0, 2.0):
        machine = Stack.parse({**stack, "copied_layers": copied}).machine(GPU, "bf16")
        for dp in (1, 8):
            plan = Uniform(tp=1, pp=1, dp=dp, micro_batch=1, batch=8, zero=3)
            stages = uniform_stages(model, plan, 1)
            held[copied, dp] = float(formulas.memory(model, machine, stages).gradients[0, 0])
    layer = 4 * sum(model.kinds[0].parameters(Split(1, 1.0)))  # FSDP's gradients have 4 bytes
    # One layer's are whole until they are scattered, whatever is copied.
    assert held[1.0, 8] == held[0.0, 8]
    assert held[2.0, 8] - held[0.0, 8] == pytest.approx(layer)
    assert held[2.0, 1] == held[0.0, 1]  # nothing is scattered


def test_offload__copies_are_hidden_beside_passes_and_memory_holds_two_layers():
    model = HybridModel.of_shape(mixture(experts=1, active=1))
    kept = model.kinds[0].saved_bytes
    for hidden, rate in ((0.0, 1.0), (1.0, 1.0), (0.5, 1e-4)):
        machine = Stack.parse(
            {"name": "nemo-2025", "hidden": hidden, "host_share": rate}
        ).machine(GPU, "bf16")  # fmt: skip
        step, held = {}, {}
        for offload in (False, True):
            plan = Uniform(1, 2, 8, 1, 64, offload=offload)
            stages = uniform_stages(model, plan, 2)
            step[offload] = formulas.step(model, GPU, machine, stages)
            held[offload] = formulas.memory(model, machine, stages)
        copy = 2 * kept(machine, Split(1, 1.0), "none") / (rate * 64e9)  # of two layers a stage
        plain = step[False]
        exposed = sum(
            copy - hidden * min(copy, 2 * part)
            for seconds in [model.kinds[0].seconds(machine, Split(1, 1.0))]
            for part in (seconds.forward, seconds.backward)
        )
        assert step[True].exchange[0, 0] - plain.exchange[0, 0] == pytest.approx(exposed, abs=1e-12)
        assert step[True].length[0] >= plain.length[0]
        assert held[True].activations[0, 0] == 2 * kept(machine, Split(1, 1.0), "none")
        assert held[True].total[0, 0] < held[False].total[0, 0]
