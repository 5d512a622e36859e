"""Effects of today's training, by hand: precisions, experts, shards, buckets, gathers."""

from dataclasses import replace

import numpy as np
import pytest
from cases import each
from hybrid_toys import toy

from parenvs.cluster import DEVICES, Cluster, Device, Links
from parenvs.errors import ClusterError, PlanError
from parenvs.tasks.hybrid import formulas
from parenvs.tasks.hybrid.layers import Head, Split, TransformerBlock
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import HybridStage
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.stack import FP8_SHARE, RECIPES, STACKS, VERSIONS, Stack
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
        ("llama-2024", "h100", "fp8", FP8_SHARE * 0.577),
        ("torch-2024", "h100", "fp8", FP8_SHARE * 0.64),
        ("llama-2024", "b200", "fp8", FP8_SHARE * 0.577 * 1000 / 1200 * 2500 / 2250),
        ("titan-2025", "h100", "fp8", 0.45),
        ("roofline", "h100", "fp8", 0.5),
        ("roofline", "gb200", "nvfp4", 0.5),
        ("nemo-2025", "gb200", "mxfp8", 0.43),
        ("nemo-2026", "gb300", "mxfp8", 0.43 * 1400 / 1200),
        ("nemo-2025", "gb200", "nvfp4", RECIPES["nvfp4"] * 0.455 / 2),
        ("nemo-2025", "h100", "fp8-block", RECIPES["fp8-block"] * 0.45),
        ("titan-2025", "h100", "fp8-row", RECIPES["fp8-row"] * 0.45),
        ("llama-2024", "h100", "fp8-row", RECIPES["fp8-row"] * FP8_SHARE * 0.577),
        ("megatron-2022", "a100", "bf16", 0.78),
    ],
)
def test_shares__precision_before_device_and_watts(stack, device, precision, share):
    found = STACKS[stack].share_of(DEVICES[device], precision)
    assert found == pytest.approx(share, rel=1e-12)


def test_precisions__recipes_run_where_the_device_has_them():
    assert DEVICES["h100"].peak("fp8-row") == DEVICES["h100"].peak("fp8-block") == 1978.9e12
    assert DEVICES["gb200"].peak("mxfp8") == 5000e12
    assert [DEVICES[name].peak("nvfp4") for name in ("gb200", "gb300")] == [10000e12, 15000e12]
    for device, precision in (("h100", "mxfp8"), ("h100", "nvfp4"), ("a100", "fp8-row")):
        with pytest.raises(ClusterError, match=f"a {device} has no {precision}; it has"):
            DEVICES[device].peak(precision)
        assert Device.find(f"{device}-{precision}") is None
    assert Device.find("h100-fp8-row").peak_flops == 1978.9e12


def test_versions__files_mean_the_first_and_people_the_newest():
    assert Stack.parse("nemo-2024", stored=True) == VERSIONS["nemo-2024@1"]
    assert Stack.parse("nemo-2024") == VERSIONS["nemo-2024@2"] == STACKS["nemo-2024"]
    assert STACKS["nemo-2024"].to_json() == "nemo-2024@2"
    for name, newest in (
        ("nemo", "nemo-2026"), ("megatron-bridge", "nemo-2026"), ("torchtitan", "titan-2025"),
        ("megatron", "megatron-2022"), ("torch", "torch-2024"),
    ):  # fmt: skip
        assert Stack.parse(name) == Stack.parse({"name": name}) == STACKS[newest]
        with pytest.raises(PlanError, match="unknown stack"):  # files say which
            Stack.parse(name, stored=True)
    assert VERSIONS["nemo-2024@1"].to_json() == "nemo-2024"
    first = VERSIONS["llama-2024"]
    assert (first.permute_passes, first.gather_hidden, first.two_levels) == (0.0, None, False)
    for stack in VERSIONS.values():
        assert Stack.parse(stack.to_json(), stored=True) == stack
        assert len(stack.date.split("-")) == 2
    for key in ("version", "date", "source"):
        with pytest.raises(PlanError, match=f"{key} is no constant"):
            Stack.parse({"name": "nemo-2024", key: 3})


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


def test_experts__folded_plans_are_legal_if_ranks_divide():
    problem = replace(toy("2x8:h100", 32, "nemo-2025"), model=HybridModel.of_shape(mixture()))

    def reasons(expert, ranks, shared=True, context=1, tp=4):
        plan = problem.plan(
            [HybridStage(((0, 4),), 16, tp=tp)], sequence_parallel=shared, expert=expert,
            expert_tp=ranks, context=context,
        )  # fmt: skip
        assert plan.from_json(plan.to_json(), "") == plan
        return problem.report(plan).reasons

    assert reasons(8, 1) == reasons(4, 0) == reasons(8, 2, context=2) == ()
    assert reasons(4, 0, context=2) == ()  # dealt out over ranks of context, too
    assert reasons(8, 0) == ("expert: 8 does not divide the 4 replicas of stages[0]",)
    assert reasons(8, 4)[0] == "expert: 8 does not divide the 4 groups of 4 devices of stages[0]"
    assert "expert_tp: 3 does not divide tp 4" in reasons(4, 3)[0]
    assert "needs sequence_parallel" in reasons(4, 1, shared=False)[0]
    rows = Uniform(4, 1, 2, 1, 32, context=2, expert=8, expert_tp=2, sequence_parallel=True)
    seconds, held = rows.judged(problem.model, problem.cluster, problem.machine)
    plan = problem.uniform_plan(rows, 0)
    assert plan.expert_tp == 2
    assert problem.length(plan) == seconds["length"][0]
    assert problem.memory(plan).total[0] == held["total"][0]
    assert problem.report(plan).simulated_seconds == pytest.approx(seconds["length"][0])


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


def test_modules__for_more_tokens_stand_beside_the_head():
    """A module costs a block with its exchange, a product of twice the width, and a head."""
    shape = mixture(next_tokens=2)
    here, split = machine(), Split(2, 2, expert=2)
    head = Head(replace(shape, next_tokens=0)).seconds(here, split)
    block = TransformerBlock(shape.module).seconds(here, split)
    joined = 2 * 256 * 256 * 2 * 256 / 2 / here.flops
    both = Head(shape).seconds(here, split)
    small = 1 + 1e-3
    assert 3 * head.forward + 2 * (block.forward + joined) <= both.forward * small
    assert both.forward_exchange == 2 * block.forward_exchange > 0
    assert both.backward > 3 * head.backward + 2 * (block.backward + 2 * joined)
    problem = replace(toy("2x8:h100", 32), model=HybridModel.of_shape(shape))
    plain = replace(problem, model=HybridModel.of_shape(replace(shape, next_tokens=0)))
    rows = Uniform(1, 2, 8, 1, 32, expert=2)
    more, less = (x.step(x.uniform_plan(rows, 0)) for x in (problem, plain))
    assert more.busy[0] == less.busy[0]
    assert more.busy[1] > less.busy[1]
    sizes = [x.memory(x.uniform_plan(rows, 0)) for x in (problem, plain)]
    own = sum(Head(shape).parameters(Split(1, 1, expert=2))) - 256 * (1024 + 1)
    assert sizes[0].weights - sizes[1].weights == pytest.approx([0, 2 * own])
    assert sizes[0].activations[1] > sizes[1].activations[1]


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


def test_shard__zero_3_gathers_inside_and_sums_between():
    step, held, size = reduction(3, 8)
    every, states, _ = reduction(3, 0)
    assert step.reduction[0, 0] == pytest.approx(2 * 4 * size / 8 / 2 / GPU.device_nic_bw)
    assert every.reduction[0, 0] == 0
    assert step.exposed[0, 0] < step.reduction[0, 0]  # beside the last backward pass
    assert step.gathers[0, 0] < every.gathers[0, 0]
    assert held.total[0, 0] > states.total[0, 0]


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


def test_accumulation__every_micro_batch_adds_gradients():
    problem = toy("2x8:a100", 32)
    adding = replace(problem, stack=replace(problem.stack, accumulate_bytes=20.0))
    for count, chunks in ((1, 1), (2, 1), (2, 2)):
        plans = Uniform(1, count, 16 // count, 1, 32, chunks=chunks)
        stages = uniform_stages(problem.model, plans, count)
        own = formulas.parameters(problem.model, stages)[0]
        base, step = (
            formulas.step(problem.model, problem.cluster, x.machine, stages)
            for x in (problem, adding)
        )
        bytes_ = 20 * own / problem.machine.memory_bw
        assert step.busy - base.busy == pytest.approx(bytes_)
        assert step.hiding - base.hiding == pytest.approx(bytes_)
        plan = adding.uniform_plan(plans, 0)
        assert adding.length(plan) == step.length[0]
        simulated = adding.report(plan).simulated_seconds
        assert simulated == pytest.approx(adding.length(plan), rel=0.05)


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
    assert held[1.0, 8] - held[0.0, 8] == pytest.approx(layer)
    assert held[2.0, 8] - held[0.0, 8] == pytest.approx(2 * layer)
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


def test_offload__plans_say_it_where_software_and_device_can():
    problem = replace(toy("2x8:h100", 64, "nemo-2025"), model=HybridModel.of_shape(mixture()))
    plans = Uniform(1, 2, 8, 1, 64, offload=[False, True])
    plain, moved = (problem.uniform_plan(plans, k) for k in (0, 1))
    assert not plain.offload and "offload" not in plain.to_json()
    assert type(moved).from_json(moved.to_json()) == moved
    assert problem.report(moved).reasons == problem.report(plain).reasons == ()
    assert problem.report(moved).simulated_seconds >= problem.report(plain).simulated_seconds
    columns, _ = plans.judged(problem.model, problem.cluster, problem.machine)
    assert columns["length"][1] == pytest.approx(problem.report(moved).length_seconds, rel=1e-12)
    split = replace(moved, schedule="zb-h1", p2p="overlapped")
    unknown = replace(GPU, device=replace(GPU.device, name="own", host_bw=0.0))
    for given, plan, words in (
        (problem, split, "offload: is not counted for schedule zb-h1"),
        (replace(problem, stack=STACKS["titan-2025"]), moved, "offload: titan-2025 moves no"),
        (replace(problem, cluster=unknown), moved, "offload: the link of a own to the memory"),
    ):
        assert any(reason.startswith(words) for reason in given.report(plan).reasons), words
