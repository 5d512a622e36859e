"""Reports: legality, cost and value of plans as the text of the design has them."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import toys
from cases import each
from hypothesis import given, settings
from hypothesis import strategies as st
from second_writing import slow_length, slow_memory, slow_times

import parenvs
from parenvs import load_graph
from parenvs.cluster import PRESETS, Cluster
from parenvs.core.plan import judge
from parenvs.errors import ParenvsError, ProfileError, UnknownInstanceError
from parenvs.tasks.pipeline.formulas import simulate
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.profile import StageProfile

DENSE, BALANCED = toys.dense(), toys.balanced()


def plan_of(toy, cuts=None, device_cuts=None, **changes):
    """The toy's best plan, or another one; ``changes`` alter its fields."""
    cuts = toy.cuts if cuts is None else cuts
    device_cuts = toy.device_cuts if device_cuts is None else device_cuts
    legal = toy.pipeline.plan(toy.cuts, toy.device_cuts)
    return replace(
        legal, cuts=tuple(cuts), device_cuts=tuple(device_cuts), **{"cut_after": (), **changes}
    )


def strict(report):
    """The report's JSON, read back."""
    return json.loads(json.dumps(report.to_json(), allow_nan=False))


@each("toy", [DENSE, BALANCED, toys.balanced(2, 2, 1)])
def test_judge__known_optimum(toy):
    plan = toy.pipeline.plan(toy.cuts, toy.device_cuts)
    for target in (toy.pipeline, toy.profile):
        report = judge(plan, target)
        assert report.legal
        assert report.reasons == ()
        assert report.length_seconds == pytest.approx(float(toy.length), rel=1e-14)
        assert report.value == pytest.approx(float(toy.value), rel=1e-14)


def test_judge__stages_by_hand():
    report = judge(plan_of(DENSE), DENSE.pipeline)
    first, last = report.stages
    assert (first.first, first.end, first.last_name) == (0, 5, "p4")
    assert (last.first, last.end, last.last_name) == (5, 6, "p5")
    assert (first.device_first, first.device_end) == (0, 3)
    assert (last.device_first, last.device_end) == (3, 4)
    assert first.forward_seconds == pytest.approx(5 / 3)
    assert first.backward_seconds == pytest.approx(5 / 3)
    assert (first.transfer_seconds, last.transfer_seconds) == (3, 0)
    assert first.all_reduce_seconds == pytest.approx(20 / 3)
    assert last.all_reduce_seconds == 0
    assert (first.parameter_bytes, last.parameter_bytes) == (5, 64)
    assert first.memory_bytes == pytest.approx(2 * 5 + 9 / 3)  # copies; largest cut over 3 devices
    assert last.memory_bytes == 2 * 64 + 3  # K = min(1, 2) micro-batches of 3 bytes enter
    assert first.efficiency == pytest.approx(2 * (10 / 3) / report.simulated_seconds)
    assert last.efficiency == pytest.approx(2 * 2 / report.simulated_seconds)
    assert report.memory_limit_bytes == 900_000
    assert report.bubble_free_seconds == 6


@pytest.mark.thorough
@given(st.data())
@settings(max_examples=150)
def test_judge__against_the_design(data):
    """Legality, cost and value of any well-formed plan, as the text of the design has them."""
    pipeline = data.draw(toys.pipelines())
    cuts, device_cuts = data.draw(toys.plans(pipeline))
    pipeline = pipeline.with_stages(len(cuts) + 1)
    plan = pipeline.plan(cuts, device_cuts)
    report = judge(plan, pipeline)
    length = slow_length(pipeline, cuts, device_cuts)
    memory = slow_memory(pipeline, cuts, device_cuts)
    bounds = [0, *cuts, len(pipeline.profile)]
    empty = [
        s
        for s in range(len(bounds) - 1)
        if not (pipeline.profile.parameter_bytes[bounds[s] : bounds[s + 1]] > 0).any()
    ]
    full = [s for s, x in enumerate(memory) if x > 0.9 * pipeline.cluster.device.memory_bytes]
    assert report.length_seconds == pytest.approx(length, rel=1e-12)
    assert len(report.reasons) == len(empty) + len(full)
    for s in empty:
        assert any(x.startswith(f"stage {s}: no variable") for x in report.reasons)
    for s in full:
        assert any(x.startswith(f"stage {s}: ") and "allowed" in x for x in report.reasons)
    assert report.legal == (not empty and not full)
    share = pipeline.bubble_free / length
    assert report.value == pytest.approx(share if report.legal else -1, rel=1e-12)
    assert report.simulated_seconds == simulate(report.times, pipeline.micro_batches).length
    assert report.timetable.length == report.simulated_seconds
    forward, backward, reduce = slow_times(pipeline, cuts, device_cuts)
    assert report.times.forward.tolist() == pytest.approx(forward)
    assert report.times.backward.tolist() == pytest.approx(backward)
    assert report.times.all_reduce.tolist() == pytest.approx(reduce)
    assert [stage.memory_bytes for stage in report.stages] == pytest.approx(memory)
    for s, stage in enumerate(report.stages):
        busy = pipeline.micro_batches * (forward[2 * s] + backward[2 * s])
        assert stage.efficiency == pytest.approx(busy / report.simulated_seconds)
    assert strict(report)["value"] == report.value


def test_judge__memory_limit_may_be_met_exactly():
    for memory, legal in ((131.0, True), (np.nextafter(131.0, 0), False)):
        cluster = Cluster.parse(toys.shape(2, 2, 4.0, 1.0, memory_bytes=1e6))
        pipeline = replace(DENSE.pipeline, cluster=cluster)
        object.__setattr__(
            pipeline.cluster, "device", replace(cluster.device, memory_bytes=memory / 0.9)
        )
        assert pipeline.memory_limit == memory
        report = judge(plan_of(DENSE, cluster=pipeline.cluster), pipeline)
        assert report.legal == legal
        assert (report.value > 0) == legal


def test_judge__one_stage_is_data_parallelism():
    """All pivots on all devices: M micro-batches without a bubble, then the whole all-reduce."""
    pipeline = DENSE.pipeline.with_stages(1)
    report = judge(pipeline.plan([], []), pipeline)
    cluster, size = pipeline.cluster, pipeline.profile.parameter_bytes.sum()
    all_reduce = 2 * size * (cluster.devices - 1) / cluster.devices / cluster.inter_bw
    assert report.legal
    assert report.length_seconds == pytest.approx(pipeline.bubble_free + all_reduce)
    assert report.simulated_seconds == pytest.approx(report.length_seconds)
    assert [(s.first, s.end, s.device_first, s.device_end) for s in report.stages] == [
        (0, len(pipeline.profile), 0, cluster.devices)
    ]
    assert judge(report.plan, pipeline.profile).length_seconds == report.length_seconds
    assert "1 stage  ·" in str(report)
    asked = judge(replace(report.plan), DENSE.pipeline)
    assert asked.reasons == ("stages: the plan has 1, the problem asks for 2",)


MALFORMED = [
    ((3,), (), ["1 cuts but 0 device cuts"]),
    ((), (1,), ["0 cuts but 1 device cuts"]),
    ((2, 4), (1,), ["2 cuts but 1 device cuts"]),
    ((0,), (2,), ["cuts: 0 is outside 1..5 (6 pivots)"]),
    ((6,), (2,), ["cuts: 6 is outside 1..5 (6 pivots)"]),
    ((-1,), (2,), ["cuts: -1 is outside 1..5 (6 pivots)"]),
    ((2**31 - 1,), (2,), ["cuts: 2147483647 is outside 1..5 (6 pivots)"]),
    ((3,), (0,), ["device_cuts: 0 is outside 1..3 (4 devices)"]),
    ((3,), (4,), ["device_cuts: 4 is outside 1..3 (4 devices)"]),
    ((3,), (-2,), ["device_cuts: -2 is outside 1..3 (4 devices)"]),
    ((4, 2), (1, 2), ["cuts: [4, 2] do not increase"]),
    ((2, 2), (1, 2), ["cuts: [2, 2] do not increase"]),
    ((2, 4), (2, 1), ["device_cuts: [2, 1] do not increase"]),
    ((2, 4), (2, 2), ["device_cuts: [2, 2] do not increase"]),
    ((4, 2), (9, 2, 1), ["2 cuts but 3 device cuts", "cuts: [4, 2]", "device_cuts: 9 is outside"]),
]


@each(("cuts", "device_cuts", "words"), MALFORMED)
def test_judge__malformed_plans_have_no_cost(cuts, device_cuts, words):
    report = judge(plan_of(DENSE, cuts, device_cuts), DENSE.pipeline)
    assert len(report.reasons) == len(words)
    for reason, start in zip(report.reasons, words, strict=True):
        assert reason.startswith(start)
    assert report.value == -1
    assert not report.legal
    assert report.length_seconds == report.simulated_seconds == math.inf
    assert report.stages == ()
    content = strict(report)
    assert content["length_seconds"] is None
    assert content["simulated_seconds"] is None
    assert content["value"] == -1
    assert content["reasons"] == list(report.reasons)


OTHER = "sha256:" + "0" * 64


def test_judge__all_reasons_together():
    profile = toys.chain([1] * 6, [1] * 6, [9] * 6, [1, 0, 0, 0, 0, 500])
    cluster = Cluster.parse(toys.shape(2, 2, 4.0, 1.0, memory_bytes=100.0))
    pipeline = Pipeline(profile, cluster, 4, micro_batches=2)
    plan = replace(
        pipeline.plan([2, 4], [1, 2]),
        fingerprint=OTHER,
        cluster=PRESETS["C"],
        micro_batch=3,
        micro_batches=5,
        copies=3,
        recompute="none",
        sync="parameter-server",
        cut_after=("p0", "p3", "p9"),
    )
    reasons = judge(plan, pipeline).reasons
    for start in (
        "fingerprint: ",
        "cluster: ",
        "micro_batch: ",
        "micro_batches: ",
        "copies: the plan is for 3, not 2",
        "recompute: the plan is for none, not full",
        "sync: the plan is for parameter-server, not allreduce",
        "stages: the plan has 3, the problem asks for 4",
        "cut_after: 3 names",
        "cut_after: the pivot before cut 2 is 'p1', not 'p0'",
        "stage 1: no variable in pivots 2..3",
        "stage 2: 1,0",
    ):
        assert sum(reason.startswith(start) for reason in reasons) == 1
    assert len(reasons) == 12


def test_judge__plan_alone():
    """The plan names what it is for: a shipped instance or a file."""
    problem = parenvs.problem("vgg-19", "B", micro_batch=8, micro_batches=4)
    plan = problem.plan([40, 120], [6, 20])
    assert judge(plan).reasons == problem.report(plan).reasons == ()
    assert judge(plan).value == problem.report(plan).value > 0
    with pytest.raises(UnknownInstanceError, match="'nothing'"):
        judge(replace(plan, instance="nothing"))


def test_judge__options_travel_with_the_plan(tmp_path):
    settings = {"copies": 4, "recompute": "none", "sync": "parameter-server"}
    problem = parenvs.problem("vgg-19", "A", **settings)
    plain = parenvs.problem("vgg-19", "A").plan([40], [8])
    plan = problem.plan([40], [8])
    plan.save(tmp_path / "plan.json")
    content = json.loads((tmp_path / "plan.json").read_text())
    assert {key: content[key] for key in settings} == settings
    assert not settings.keys() & plain.to_json().keys()
    again = judge(parenvs.load_plan(tmp_path / "plan.json"))
    assert again.length_seconds == float(problem.length([40], [8])) != judge(plain).length_seconds


def test_judge__shipped_training_step_stands_for_its_forward_pass():
    """``load_graph`` gives the training step by default; chains are made of the forward pass."""
    problem = parenvs.problem("vgg-19", "B")
    plan = problem.plan([40, 120], [6, 20])
    assert judge(plan, load_graph("vgg-19")).reasons == ()
    assert parenvs.problem(load_graph("vgg-19"), "B").plan([40, 120], [6, 20]) == plan
    other = judge(plan, load_graph("t5-base")).reasons
    assert any(reason.startswith("fingerprint: ") for reason in other)


def test_judge__chain_of_another_device():
    profile = StageProfile.from_graph(load_graph("vgg-19", "forward"), PRESETS["B"].device)
    with pytest.raises(ProfileError, match=r"seconds are those of a v100, but .* has a100"):
        judge(Pipeline(profile, PRESETS["B"]).plan([40, 120], [6, 20]), profile, "a100-2")
    with pytest.raises(ProfileError, match="make the chain anew"):
        Pipeline(profile, "a100-2")


def test_judge__refuses_a_target_that_cannot_be_judged():
    with pytest.raises(ParenvsError, match="two devices"):
        judge(plan_of(DENSE, cluster=Cluster.parse("1x1:v100")), DENSE.profile)
    with pytest.raises(ParenvsError, match="micro_batches"):  # the simulation would never end
        judge(plan_of(DENSE, micro_batches=2**31 - 1), DENSE.profile)


def test_judge__a_training_step_that_the_plan_is_for():
    """A plan made for the chain of the whole step is judged on that, not on the forward pass."""
    graph = load_graph("vgg-19")
    pipeline = Pipeline(StageProfile.from_graph(graph, PRESETS["B"].device), PRESETS["B"], 3)
    plan = pipeline.plan([40, 120], [6, 20])
    assert plan.fingerprint == graph.fingerprint
    assert judge(plan, graph).length_seconds == judge(plan, pipeline).length_seconds
    assert not any("fingerprint" in reason for reason in judge(plan, graph).reasons)
