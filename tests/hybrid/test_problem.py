"""Hybrid problems: hand-computed plans, uniform plans, legality by name, verdicts."""

import json
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from cases import each
from hybrid_toys import EXACT, toy

import parenvs
from parenvs.cluster import Cluster
from parenvs.errors import (
    ClusterError,
    InfeasibleError,
    ParenvsError,
    PlanError,
    UnknownInstanceError,
)
from parenvs.tasks.hybrid.model import load_model, load_shape, shapes
from parenvs.tasks.hybrid.plan import HybridStage
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.stack import Stack
from parenvs.tasks.hybrid.uniform import Uniform

PEAK = 312e12
PARAMETERS = {  # billions, by the papers' names or the published totals
    "gpt-1.7b": 1.7, "gpt-3.6b": 3.6, "gpt-7.5b": 7.5, "gpt-18.4b": 18.4, "gpt-39.1b": 39.1,
    "gpt-76.1b": 76.1, "gpt-145.6b": 145.6, "gpt-310.1b": 310.1, "gpt-529.6b": 529.6,
    "gpt-1t": 1008, "gpt3-175b": 174.6, "gpt-1.5b": 1.558, "bert-large": 0.334,
    "llama2-7b": 6.738, "llama2-13b": 13.016, "llama2-70b": 68.977, "llama3-8b": 8.030,
    "llama3-70b": 70.554, "llama3-405b": 405.85, "mixtral-8x7b": 46.70,
    "deepseek-v3": 671, "kimi-k2": 1040, "qwen3-30b-a3b": 30.5, "qwen3-235b-a22b": 235,
    "gpt-oss-20b": 20.9, "gpt-oss-120b": 116.8, "llama4-scout": 109, "llama4-maverick": 400,
    "nemotron4-15b": 15.6, "nemotron4-340b": 341, "mixtral-8x22b": 140.6,
    "moonlight-16b-a3b": 16, "minitron-4b": 4.19, "minitron-8b": 8.27,
}  # fmt: skip


def split(count, stages, **kwargs):
    """Stages of equal size with equal settings."""
    size = count // stages
    return [HybridStage(((i * size, (i + 1) * size),), **kwargs) for i in range(stages)]


def test_problem__by_hand():
    """Two stages of one device: matrix products at the peak, sends and the head, on paper."""
    problem = toy("2x1:a100,80Gbps", 4, EXACT, layers=2, heads=8, kv_heads=8, tied=False,
                  dropout=False, bias=False)  # fmt: skip
    n, h, s, words = 128, 64, 128, 512
    block = (2 * n * 12 * h * h + 4 * s * s * h) / PEAK
    head = 2 * n * h * words / PEAK
    send = 2 * n * h / 10e9
    stages = split(2, 2, devices=1)
    plan = problem.plan(stages, gradient_bytes=4)
    report = problem.report(plan)
    assert report.legal
    # Both stages send and wait for one send each way; M = 4 passes the last after the first.
    first, last = 3 * block + 2 * send, 3 * (block + head) + 2 * send
    assert report.length_seconds == pytest.approx(first + 4 * last, rel=1e-9)
    assert report.pivot == 1
    assert report.seconds["forward"] == pytest.approx(4 * (block + head), rel=1e-9)
    assert report.seconds["backward"] == pytest.approx(8 * (block + head), rel=1e-9)
    assert report.seconds["sends"] == pytest.approx(8 * send, rel=1e-9)
    assert report.seconds["bubble"] == pytest.approx(first, rel=1e-9)
    # All devices at the peak: two blocks and the head, three times, of four samples.
    assert report.bound_seconds == pytest.approx(3 * 4 * (2 * block + head) / 2, rel=1e-12)
    assert report.value == report.bound_seconds / report.length_seconds
    assert report.flops["model"] == pytest.approx(3 * 4 * (2 * block + head) * PEAK, rel=1e-12)
    assert report.mfu == pytest.approx(report.value, rel=1e-12)
    assert report.tokens_per_second == 128 * 4 / report.length_seconds
    # Recomputation in full runs both forward passes again, the head's not.
    full = [replace(stage, recompute={"full": 1}) for stage in stages]
    again = problem.report(problem.plan(full))
    assert again.length_seconds == pytest.approx(first + 4 * last + 5 * block, rel=1e-9)
    counted = 4 * (8 * block + 3 * head) * PEAK
    assert again.flops["recomputed"] == pytest.approx(counted, rel=1e-12)
    assert again.mfu < report.mfu
    # Overlapped, the link is a resource of its own, here with more to do than any stage.
    hidden = problem.report(problem.plan(stages, p2p="overlapped"))
    x0, x1 = 3 * block, 3 * (block + head)
    core = max(x0 + 4 * 2 * send, x0 + 2 * send + 4 * x1)
    assert hidden.length_seconds == pytest.approx(core, rel=1e-9)


def test_problem__collectives_by_hand():
    """One stage of tp 2 x dp 2: four all-reduces a layer and pass, one of the gradients.

    Two more are of the embedding's results and of the gradients of the head's input.
    """
    problem = toy("1x4:a100", 2, EXACT, layers=1, heads=8, kv_heads=8, tied=False, dropout=False,
                  bias=False)  # fmt: skip
    n, h, s, words, bw = 128, 64, 128, 512, 300e9
    compute = 3 * (2 * n * 12 * h * h + 4 * s * s * h + 2 * n * h * words) / PEAK / 2
    exchange = 2 * 2 * 2 * (2 * n * h) / 2 / bw  # all-reduces: 2 S (R-1) / R bytes
    parameters = (12 * h * h + 2 * h * words) / 2 + 3 * h
    plan = problem.plan([HybridStage(((0, 1),), 4, tp=2)], gradient_bytes=4)
    report = problem.report(plan)
    assert report.seconds["exchange"] == pytest.approx(exchange, rel=1e-12)
    assert report.seconds["gradients"] == pytest.approx(2 * 4 * parameters / 2 / bw, rel=1e-12)
    total = compute + exchange * (1 + 2 / 4) + 4 * parameters / bw
    assert report.length_seconds == pytest.approx(total, rel=1e-9)
    sharded = problem.report(problem.plan([HybridStage(((0, 1),), 4, tp=2, zero=1)]))
    # Gradients of 4 bytes are scattered, weights of 2 gathered.
    assert sharded.seconds["gradients"] == pytest.approx(6 * parameters / 2 / bw, rel=1e-12)
    assert report.held.optimizer[0] == 12 * parameters == 2 * sharded.held.optimizer[0]


def test_problem__unequal_stages():
    """More layers, other tp, fewer replicas: what each costs shows on its stage alone."""
    problem = toy("2x8:a100", 32)
    stages = [
        HybridStage(((0, 3),), 8, tp=2, recompute={"full": 1, "selective": 1}),
        HybridStage(((3, 8),), 8, tp=8, recompute=("none", "full", "none", "full", "none")),
    ]
    plan = problem.plan(stages, micro_batch=2)
    report = problem.report(plan)
    assert report.legal
    assert [stage.dp for stage in report.stages] == [4, 1]
    assert [stage.device_first for stage in report.stages] == [0, 8]
    assert report.micro_batches == 4
    alone = problem.report(problem.plan([stages[0], replace(stages[1], recompute=())], 2))
    assert alone.stages[0] == report.stages[0]
    assert alone.stages[1].recomputed == 0 < report.stages[1].recomputed


def test_problem__slow_servers():
    """A stage is as slow as its slowest server; the order of servers decides which that is."""
    cluster = replace(Cluster.parse("3x8:a100"), speeds=(1.0, 0.5, 1.0))
    problem = toy(cluster, 16)
    stages = [HybridStage(((0, 4),), 8), HybridStage(((4, 8),), 16, tp=2)]
    slow_last = problem.report(problem.plan(stages))
    slow_first = problem.report(problem.plan(stages, servers=(1, 0, 2)))
    assert [stage.speed for stage in slow_last.stages] == [1, 0.5]
    assert [stage.speed for stage in slow_first.stages] == [0.5, 1]
    assert slow_first.stages[0].forward == 2 * slow_last.stages[0].forward
    equal = toy("3x8:a100", 16)
    assert problem.bound_seconds == pytest.approx(equal.bound_seconds * 3 / 2.5, rel=1e-12)


STAGES = split(8, 2, devices=8)
CHUNKED = [HybridStage(((0, 2), (4, 6)), 8), HybridStage(((2, 4), (6, 8)), 8)]
ILLEGAL = {  # stages, settings, beginning of the reason, a part of it
    "overlap": ([STAGES[0], HybridStage(((3, 8),), 8)], {}, "stages[1].layers", "overlaps"),
    "gap": ([STAGES[0], HybridStage(((6, 8),), 8)], {}, "stages[1].layers",
            "leaves out layers 4 to 5"),
    "end": ([STAGES[0], HybridStage(((4, 6),), 8)], {}, "stages", "6 to 7 of toy are left out"),
    "beyond": ([STAGES[0], HybridStage(((4, 9),), 8)], {}, "stages", "end at 9, but toy has 8"),
    "reversed": ([HybridStage(((0, 5),), 8), HybridStage(((5, 3),), 8)], {}, "stages[1].layers",
                 "holds no layer"),
    "empty": ([STAGES[0], HybridStage(((4, 4),), 4), HybridStage(((4, 8),), 4)], {},
              "stages[1].layers", "holds no layer"),
    "ranges": (STAGES, {"chunks": 2, "schedule": "interleaved"}, "stages[0].layers",
               "1 range for 2 chunks"),
    "schedule": (CHUNKED, {"chunks": 2}, "schedule", "need schedule interleaved, not 1f1b"),
    "one chunk": (STAGES, {"schedule": "interleaved"}, "schedule", "at least 2 chunks"),
    "one stage": ([HybridStage(((0, 4), (4, 8)), 8)], {"chunks": 2, "schedule": "interleaved"},
                  "chunks", "nothing to interleave"),
    "multiple": (CHUNKED, {"chunks": 2, "schedule": "interleaved", "micro_batch": 4}, "schedule",
                 "multiples of 2 stages; batch 32 gives 1"),
    "zero": ([replace(stage, zero=2) for stage in STAGES], {}, "stages[0].zero", "at most 1"),
    "too many": (split(8, 2, devices=16), {}, "stages", "32 devices are planned"),
    "replicas": (split(8, 2, devices=6, tp=4), {}, "stages[0].devices", "multiple of tp 4"),
    "context replicas": (split(8, 2, devices=6, tp=2), {"context": 2}, "stages[0].devices",
                         "multiple of tp 2 x context 2"),
    "wide": ([HybridStage(((0, 8),), 16, tp=16)], {}, "stages[0].tp", "more than a server's 8"),
    "torn": ([HybridStage(((0, 4),), 4), HybridStage(((4, 8),), 8, tp=8)], {}, "stages[1].tp",
             "devices 4 to 11 lie in two servers"),
    "heads": (split(8, 2, devices=3, tp=3), {}, "stages[0].tp", "does not divide heads 8"),
    "servers": (STAGES, {"servers": (1, 1)}, "servers", "each of 0 to 1 once"),
    "batch": (split(8, 2, devices=6), {}, "batch", "32 is not a multiple of 6"),
    "uneven replicas": ([HybridStage(((0, 4),), 8), HybridStage(((4, 8),), 3)], {},
                        "stages[1].devices", "3 replicas cannot share the 8 samples"),
    "sequence parallel": (STAGES, {"sequence_parallel": True}, "sequence_parallel", "at least 2"),
    "gradient bytes": (STAGES, {"gradient_bytes": 3}, "gradient_bytes", "neither 2 nor 4"),
    "expert": (STAGES, {"expert": 2}, "expert", "does not divide the model's 1 expert"),
    "recompute": ([replace(STAGES[0], recompute={"full": 3, "selective": 2}), STAGES[1]], {},
                  "stages[0].recompute", "5 layers named, the stage has 4"),
    "modes": ([replace(STAGES[0], recompute=("full",)), STAGES[1]], {}, "stages[0].recompute",
              "1 layer named, the stage has 4"),
}  # fmt: skip


@each("name", ILLEGAL)
def test_problem__illegal(name):
    """Each rule is broken alone, and named by its field; nothing is computed."""
    problem = toy("2x8:a100", 32)
    stages, settings, field, words = ILLEGAL[name]
    plan = replace(problem.plan(stages), **settings)
    report = problem.report(plan)
    assert not report.legal
    assert report.value == -1
    assert report.length_seconds == math.inf
    assert report.stages == ()
    assert any(r.startswith(f"{field}: ") and words in r for r in report.reasons), report.reasons
    assert "illegal: malformed plan" in str(report)
    assert report.simulated_seconds is None
    assert report.mfu is None
    assert json.loads(json.dumps(report.to_json()))["length_seconds"] is None


def test_problem__illegal_for_the_model():
    """Tokens, words and experts that ranks cannot share."""
    odd = toy("2x8:a100", 32, sequence=126, vocabulary=511)
    (reason,) = odd.report(odd.plan(split(8, 2, devices=8), context=2)).reasons
    assert reason == "sequence: 126 tokens are not a multiple of 2 x context = 4"
    reasons = odd.report(odd.plan(split(8, 2, devices=8, tp=4), sequence_parallel=True)).reasons
    assert "stages[0].tp: tp 4 does not divide vocabulary 511" in reasons
    assert "sequence: 126 tokens are not a multiple of tp = 4" in reasons
    mixture = toy("2x8:a100", 32, experts=6, active=2)
    reasons = mixture.report(mixture.plan(split(8, 2, devices=8), expert=4)).reasons
    assert reasons == ("expert: 4 does not divide the model's 6 experts",)
    (reason,) = mixture.report(mixture.plan(split(8, 2, devices=8, tp=8), expert=2)).reasons[:1]
    assert reason == "expert: 2 does not divide the 1 replica of stages[0]"


def test_problem__mismatches():
    """A plan for something else is computed, but illegal; each difference is named."""
    problem = toy("2x8:a100", 32)
    plan = problem.plan(STAGES)
    assert problem.report(plan).legal
    for change, words in (
        ({"fingerprint": "sha256:1"}, "fingerprint: the plan is for sha256:1"),
        ({"cluster": Cluster.parse("4x8:a100")}, "cluster: the plan is for 4x8 a100"),
        ({"stack": "torch-2024"}, "stack: the plan is for torch-2024, not llama-2024"),
        ({"stack": {"name": "llama-2024", "launch": 0}}, "with other constants"),
        ({"stack": "megatron"}, "stack: unknown stack 'megatron'"),
        ({"precision": "fp32"}, "precision: the plan is for fp32, not bf16"),
        ({"precision": "fp8"}, "precision: a a100 has no fp8"),
        ({"batch": 64}, "batch: the plan is for 64, not 32"),
    ):
        report = problem.report(replace(plan, **change))
        assert report.value == -1
        assert math.isfinite(report.length_seconds)
        assert any(words in reason for reason in report.reasons), report.reasons


def test_problem__over_memory_says_by_how_much_and_of_what():
    problem = parenvs.problem("gpt3-175b", "1x8:a100", task="hybrid", batch=8)
    report = problem.report(problem.plan([HybridStage(((0, 96),), 8, tp=8)]))
    (reason,) = report.reasons
    total, limit = report.held.total[0], 0.9 * 79.15 * 2**30
    assert reason.startswith(f"stage 0: {total:,.0f} bytes on each device, {total - limit:,.0f}")
    assert reason.endswith(f"the largest part is optimizer, {report.held.optimizer[0]:,.0f}")
    assert report.value == -1
    assert "illegal  ·  L" in str(report)
    assert math.isfinite(report.length_seconds)


def test_problem__settings():
    """Defaults by device, and what no problem can have."""
    for cluster, stack, precision in (
        ("1x8:h100", "llama-2024", "bf16"),
        ("1x8:a100", "llama-2024", "bf16"),
        ("1x8:v100", "megatron-2021", "fp16"),
    ):
        problem = toy(cluster, 8)
        assert (problem.stack.name, problem.precision) == (stack, precision)
        # No row with fused attention and tensor parallelism on A100 is at hand.
        assert problem.stack.is_guess(problem.cluster.device.name, precision) == ("a100" in cluster)
    own = Cluster.parse(
        {"servers": 1, "devices_per_server": 8, "intra_bw": 1e11, "inter_bw": 1e10,
         "device": {"name": "own", "peak_flops": 1e14, "memory_bw": 1e12, "memory_bytes": 1e11}}
    )  # fmt: skip
    problem = toy(own, 8)
    assert problem.precision == "bf16"
    report = problem.report(problem.plan([HybridStage(((0, 8),), 8)]))
    assert report.is_guess
    assert report.legal
    assert "guess: what llama-2024 reaches" in str(report)
    assert report.to_json()["guess"] is True
    with pytest.raises(ClusterError, match="a v100 has no bf16; it has fp16, fp32"):
        toy("1x8:v100", 8, precision="bf16")
    with pytest.raises(ClusterError, match=r"unknown precision 'bf15' .did you mean 'bf16'"):
        toy("1x8:v100", 8, precision="bf15")
    with pytest.raises(PlanError, match=r"unknown stack 'nemo-2027' .did you mean 'nemo-2026'"):
        toy("1x8:v100", 8, "nemo-2027")
    for batch in (0, -1, 2.0, True, None, 2**40):
        with pytest.raises(InfeasibleError, match="batch must be a whole number"):
            toy("1x8:v100", batch)


@each(
    ("constants", "words"),
    [
        ({"link_shar": 1}, "unknown field 'link_shar' (did you mean 'link_share'?)"),
        ({"link_share": 0}, "field 'link_share' must be a positive number, not 0"),
        ({"launch": -1}, "field 'launch' must be a number from 0, not -1"),
        ({"tensor_overlap": 1.5}, "field 'tensor_overlap' must be a number from 0 to 1"),
        ({"backward_overlap": 1}, "field 'backward_overlap' must be true or false"),
        ({"link_rule": "ring"}, "field 'link_rule' must be one of rank, node"),
        (
            {"matmul_share": {}},
            "'matmul_share' must be a positive number or an object of them by device, not {}",
        ),
        ({"attention_share": math.nan}, "field 'attention_share' must be a positive number"),
        ({"matmul_share": {"a100": 1e-9}}, "'matmul_share.a100' must be a positive number, not "),
        ({"launch": 10**400}, "field 'launch' must be a number from 0"),
    ],
)
def test_stack__wrong_constants(constants, words):
    with pytest.raises(PlanError) as error:
        Stack.parse({"name": "nemo-2024", **constants})
    assert words in str(error.value)


def test_instances__shapes():
    """Names, parameters, sources; a shape of a file is the same problem."""
    assert set(shapes()) == set(PARAMETERS)
    for name, shape in shapes().items():
        assert shape.parameters / 1e9 == pytest.approx(PARAMETERS[name], rel=0.03)
        assert shape.source
        assert shape.name == name
        assert load_model(name).fingerprint == shape.fingerprint
    assert shapes()["llama3-8b"].parameters == 8_030_261_248  # as of the released model
    assert shapes()["llama2-70b"].parameters == 68_976_648_192
    assert load_shape("vgg-19") is None


def test_instances__shape_files(tmp_path):
    path = tmp_path / "own.json"
    numbers = {"name": "own", "layers": 4, "hidden": 64, "heads": 4, "sequence": 32,
               "vocabulary": 100}  # fmt: skip
    path.write_text(json.dumps(numbers))
    problem = parenvs.problem(path, "1x8:a100", task="hybrid", batch=8)
    assert problem.instance == str(path)
    plan = problem.plan([HybridStage(((0, 4),), 8)])
    plan.save(tmp_path / "plan.json")
    assert parenvs.judge(tmp_path / "plan.json").legal
    path.write_text(json.dumps({**numbers, "layers": 5}))
    report = parenvs.judge(str(tmp_path / "plan.json"))
    assert any(reason.startswith("fingerprint: ") for reason in report.reasons)
    for change, words in (
        ({"heads": 5}, "5 heads do not divide hidden 64; give head_width"),
        ({"layers": 10**6}, "field 'layers' must be a whole number from 1 to 10,000, not 1000000"),
        ({"gated": 1}, "field 'gated' must be true or false"),
        ({"width": 3}, "unknown field 'width'"),
        ({"kv_heads": 3}, "kv_heads must divide heads"),
    ):
        path.write_text(json.dumps({**numbers, **change}))
        with pytest.raises(UnknownInstanceError) as error:
            load_model(path)
        assert str(error.value).startswith(str(path))
        assert words in str(error.value)
    for text in ("[]", "{", '{"name": 1, "name": 2}', "[" * 100_000, '{"layers": 3}'):
        path.write_text(text)
        with pytest.raises(UnknownInstanceError) as error:
            load_model(path)
        assert str(error.value).startswith(f"{path}: ")
        assert "\n" not in str(error.value)
    with pytest.raises(UnknownInstanceError, match="No such file"):
        load_model(tmp_path / "none.json")


def test_instances__hybrid_problems():
    with pytest.raises(ParenvsError, match="needs batch, the number of samples of a step"):
        parenvs.problem("llama3-8b", "1x8:h100", task="hybrid")
    with pytest.raises(ParenvsError, match="task hybrid has no option 'stages'"):
        parenvs.problem("llama3-8b", "1x8:h100", task="hybrid", batch=8, stages=2)
    with pytest.raises(ParenvsError, match="a shape is no graph; leave out 'variables'"):
        parenvs.problem("llama3-8b", "1x8:h100", task="hybrid", batch=8, variables="*")
    with pytest.raises(UnknownInstanceError, match="did you mean 'llama3-70b'"):
        parenvs.problem("llama3-7b0", "1x8:h100", task="hybrid", batch=8)
    with pytest.raises(UnknownInstanceError, match="has no graph: task hybrid alone plans it"):
        parenvs.problem("gpt-1.7b", "A")
    problem = parenvs.problem(
        "llama3-8b", "1x8:h100", task="hybrid", batch=8, stack="torch-2024", precision="fp16"
    )
    assert (problem.stack.name, problem.precision, problem.batch) == ("torch-2024", "fp16", 8)
    again = pickle.loads(pickle.dumps(problem))
    assert again == problem
    plan = problem.plan([HybridStage(((0, 32),), 8, tp=8)])
    report = problem.report(plan)
    assert pickle.loads(pickle.dumps(report)).simulated_seconds == report.simulated_seconds


def test_judge__targets(tmp_path):
    """A plan is judged on its own instance, on a shape, on a model, on a problem."""
    problem = parenvs.problem("llama3-8b", "2x8:h100", task="hybrid", batch=64)
    plan = problem.plan(split(32, 2, devices=8, tp=8), sequence_parallel=True)
    length = problem.length(plan)
    plan.save(tmp_path / "plan.json")
    for target in (None, shapes()["llama3-8b"], problem.model, problem):
        for judged in (plan, tmp_path / "plan.json"):
            assert parenvs.judge(judged, target).length_seconds == length
    other = parenvs.judge(plan, cluster="4x8:h100")
    assert other.reasons == ("cluster: the plan is for 2x8 h100, not 4x8 h100",)
    with pytest.raises(ParenvsError, match="a hybrid plan is judged on a Hybrid"):
        parenvs.judge(plan, 3)
    with pytest.raises(PlanError, match="field 'stack': unknown stack 'nemo-2031'"):
        parenvs.judge(replace(plan, stack="nemo-2031"))
    with pytest.raises(PlanError, match="field 'precision': a h100"):
        cluster = Cluster.parse("2x8:h100")
        device = replace(cluster.device, peaks=(("fp32", 1e12),))
        parenvs.judge(replace(plan, cluster=replace(cluster, device=device)))
    with pytest.raises(UnknownInstanceError, match="llama3-8c"):
        parenvs.judge(replace(plan, instance="llama3-8c"))


def test_report__gap_and_parts():
    problem = toy("2x8:a100", 32)
    report = problem.report(problem.plan(STAGES))

    class Answer:
        bound = report.length_seconds / 1.25

    assert report.gap(Answer()) == pytest.approx(0.25, rel=1e-12)
    content = json.loads(json.dumps(report.to_json()))
    assert content["stages"][1]["layers"] == [[4, 8]]
    assert sum(content["seconds"].values()) == pytest.approx(content["length_seconds"])
    held = content["stages"][0]["memory"]
    assert held.pop("total") == pytest.approx(sum(held.values()), rel=1e-12)


def test_flops__published_counts():
    """arXiv 2104.04473, equation 3, its section 5.1, and equations 4 and 5.1's days of training."""
    shape = TransformerShape("gpt", 24, 1920, 20, 1024, 51200)
    counted = shape.flops(8, recompute=True)
    tokens, h, s, words = 8 * 1024, 1920, 1024, 51200
    equation = 96 * 8 * s * 24 * h * h * (1 + s / (6 * h) + words / (16 * 24 * h))
    assert counted == pytest.approx(equation, rel=1e-12)
    assert counted == pytest.approx(8.06e13, rel=1e-3)
    assert counted / 1.121 / 1e12 == pytest.approx(71.9, abs=0.05)
    for name, billions, devices, tflops, days in (
        ("gpt3-175b", 300, 1024, 140, 34), ("gpt-1t", 450, 3072, 163, 84),
    ):  # fmt: skip
        model = shapes()[name]
        samples = billions * 1e9 / model.sequence
        seconds = model.flops(samples, recompute=True) / (devices * tflops * 1e12)
        assert seconds / 86400 == pytest.approx(days, abs=1)
    assert tokens * 6 * shape.parameters < shape.flops(8) < counted


def test_uniform__layers_that_do_not_divide():
    """Of 8 layers on 5 stages, embedding and head take the place of one each."""
    problem = toy("2x8:a100", 32)
    uneven = problem.uniform_plan(Uniform(1, 5, 1, 1, 32), 0)
    assert [stage.layers for stage in uneven.stages] == [
        ((0, 1),), ((1, 3),), ((3, 5),), ((5, 7),), ((7, 8),),
    ]  # fmt: skip
    assert problem.report(uneven).legal
    assert np.isfinite(problem.length(uneven))
