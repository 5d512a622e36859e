"""The judge of partition plans: every rule in words, every figure computed again."""

import json
import re
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import partition_toys as toys
import pytest
from cases import each

from parenvs import ParenvsError, PartitionPlan, judge
from parenvs.agents.partition.exact import exact_partition
from parenvs.cluster import Cluster


class Bound(NamedTuple):
    """A planner's answer, as far as a report looks at it."""

    bound: float | None


@pytest.fixture(scope="module")
def mlp():
    return toys.problem_of(toys.MLP)


def plan_of(problem, partition, **changes):
    """A plan for a problem; ``changes`` alter its fields."""
    plan = PartitionPlan(
        instance=problem.graph.name,
        fingerprint=problem.graph.fingerprint,
        cluster=problem.cluster,
        partition=partition,
        rules=problem.rules,
        uneven=problem.uneven,
    )
    return replace(plan, **changes)


def reasons(problem, partition, **changes):
    """What is wrong with a plan, which must then be worth -1."""
    report = judge(plan_of(problem, partition, **changes), problem)
    assert not report.legal
    assert report.value_of("paper") == report.value_of("step_time") == -1
    assert report.gap(Bound(1.0)) is None
    assert all("\n" not in reason for reason in report.reasons)
    return report.reasons


def only(problem, partition, **changes):
    found = reasons(problem, partition, **changes)
    assert len(found) == 1, found
    return found[0]


HIDDEN = {"w1": 1, "w2": 0}


def test_report__legal(mlp):
    for partition in ({}, HIDDEN, {"w1": 0}, {"w2": 1}, {"w1": 0, "w2": 1}):
        for report in (judge(plan_of(mlp, partition), x) for x in (mlp, mlp.graph)):
            assert report.legal
            assert report.reasons == ()
            assert report.variables == len(partition)
            assert report.dimensions == 4
            assert report.partitioned_dimensions == len(partition)
            assert report.value == pytest.approx(0.4 + 0.3 * len(partition))
            assert report.value_of("step_time") == pytest.approx(
                1 - report.step_seconds / report.replicate_seconds
            )
            assert report.fits


def test_report__unknown_path(mlp):
    words = only(mlp, {"w3": 0})
    assert re.fullmatch(
        r"partition: no variable or batch input 'w3' \(did you mean 'w[12]'\?\)", words
    )
    assert "m1" not in only(mlp, {"zzzzzz": 0})
    # Optimizer state follows its variable, and is not for plans to name.
    assert "no variable or batch input 'm1'" in only(mlp, {"m1": 0})
    assert "no variable or batch input 'rate'" in only(mlp, {"rate": 0})
    problem = toys.shipped("t5-base")
    words = only(problem, {"encoder/layer_0/self/Q": 1})
    assert "did you mean 'encoder/layer_0/self/q'" in words


def test_report__dimension_out_of_range(mlp):
    assert only(mlp, {"w1": 2}) == "partition: w1 is f32[4,6] and has no dimension 2"
    assert "has no dimension 2147483647" in only(mlp, {"w1": 2**31 - 1})


def test_report__dimension_of_size_one():
    text = toys.module(
        {"params__w__": "f32[1,6]{1,0}", "batch__x__": "f32[1,6]{1,0}"},
        [],
        "op.1 = f32[1,6]{1,0} add(batch__x__.1, params__w__.1)",
    )
    problem = toys.problem_of(text)
    assert only(problem, {"w": 0}) == "partition: dimension 0 of w has size 1"
    assert judge(plan_of(problem, {"w": 1}), problem).legal


def test_report__fingerprint(mlp):
    words = only(mlp, HIDDEN, fingerprint="sha256:0123456789abcdef0123")
    assert "fingerprint: the plan is for sha256:0123456789ab..., but toy is sha256:" in words
    assert "make the plan anew" in words
    other = toys.read(toys.MLP.replace("tanh(", "sine("))
    assert "fingerprint" in judge(plan_of(mlp, HIDDEN), other).reasons[0]


def test_report__made_for_something_else(mlp):
    other = Cluster.parse("1x2:v100")
    found = reasons(mlp, HIDDEN, cluster=other, rules="automap", uneven="forbid", fingerprint="x")
    assert found[0].startswith("fingerprint: ")
    assert found[1:] == (
        f"cluster: the plan is for {other}, not {mlp.cluster}",
        "rules: the plan is for automap, not shardy",
        "uneven: the plan is for forbid, not pad",
    )


def test_report__a_graph_is_judged_with_the_plans_own_settings(mlp):
    for changes in (
        {"cluster": Cluster.parse("A")},
        {"rules": "automap"},
        {"cluster": Cluster.parse("1x3:v100"), "uneven": "forbid"},
    ):
        plan = plan_of(mlp, HIDDEN, **changes)
        report = judge(plan, mlp.graph)
        assert report.legal, report.reasons
        assert report.problem.cluster == plan.cluster
        assert (report.problem.rules, report.problem.uneven) == (plan.rules, plan.uneven)
    asked = judge(plan_of(mlp, HIDDEN), mlp.graph, Cluster.parse("A"))
    assert [reason.split(":")[0] for reason in asked.reasons] == ["cluster"]
    with pytest.raises(ParenvsError, match="at least 2"):
        judge(plan_of(mlp, HIDDEN, cluster=Cluster.parse("1x1:v100")), mlp.graph)


SLICED = toys.module(
    {"params__w__": "f32[8,6]{1,0}", "batch__x__": "f32[4,6]{1,0}"},
    [
        "op.1 = f32[4,6]{1,0} slice(params__w__.1), slice={[0:4], [0:6]}, "
        'metadata={op_name="jit(f)/first_half"}'
    ],
    'op.2 = f32[4,6]{1,0} add(op.1, batch__x__.1), metadata={op_name="jit(f)/join"}',
)


def test_report__blocked():
    """The instruction, its opcode and name, and the dimension that it cannot split."""
    problem = toys.problem_of(SLICED)
    words = only(problem, {"w": 0})
    assert words == (
        "dimension 0 of w cannot be partitioned: instruction 2, slice (jit(f)/first_half) cannot "
        "split dimension 0 of w"
    )
    assert toys.instructions(problem.graph)[2][0] == "slice"
    assert judge(plan_of(problem, {"w": 1}), problem).legal
    words = only(problem, {"x": 0})
    assert words.startswith("dimension 0 of x cannot be partitioned: instruction 2, slice")


def test_report__uneven_forbid():
    for devices in (4, 5, 12):  # remainders 2 and 1, and fewer rows than devices
        problem = toys.problem_of(toys.MLP, devices=devices, uneven="forbid")
        words = only(problem, HIDDEN)
        assert words.startswith("dimension 1 of w1 cannot be partitioned: dimension ")
        assert words.endswith(f", of size 6, is no multiple of {devices} devices (uneven=forbid)")
    for devices, uneven in ((2, "forbid"), (3, "forbid"), (6, "forbid"), (4, "pad")):
        problem = toys.problem_of(toys.MLP, devices=devices, uneven=uneven)
        assert judge(plan_of(problem, HIDDEN), problem).legal


def test_report__conflict(mlp):
    """Both classes by the dimensions that the plan names, the instruction, its two dimensions."""
    words = only(mlp, {**HIDDEN, "x": 0})
    match = re.fullmatch(
        r"(dimension . of \w+) and (dimension . of \w+) cannot both be partitioned: "
        r"instruction (\d+), (\S+) \((jit\(step\)/\S+)\) would split both (dimension . of \S+) "
        r"and (dimension . of \S+)",
        words,
    )
    assert {match[1], match[2]} == {"dimension 1 of w1", "dimension 0 of x"}
    index = int(match[3])
    opcode, operands, results = toys.instructions(mlp.graph)[index]
    assert (opcode, match[4]) == ("dot", "dot")
    assert mlp.graph.strings[mlp.graph.op_name[index]] == match[5] == "jit(step)/jvp()/up"
    assert match[6] != match[7]
    assert (len(operands), len(results)) == (2, 1)


def test_report__missing_linked_variable(mlp):
    """Named, with what it is linked to and the instruction that links them."""
    words = only(mlp, {"w1": 1})
    match = re.fullmatch(
        r"dimension 0 of w2 must be partitioned with dimension 1 of w1: linked by (.*)", words
    )
    steps = re.findall(r"instruction (\d+), (\S+)", match[1])
    assert steps
    for index, opcode in steps:
        assert toys.instructions(mlp.graph)[int(index)][0] == opcode
    # The chain starts at an instruction that reads w1 and ends at one that reads w2.
    tensors = [mlp.tensor[path] for path in ("w1", "w2")]
    ends = [toys.instructions(mlp.graph)[int(steps[k][0])][1] for k in (0, -1)]
    assert tensors[0] in ends[0]
    assert tensors[1] in ends[1]


def test_report__batch_plans(mlp):
    """Inputs only; what is tied to a named one must be named; variables follow."""
    report = judge(plan_of(mlp, {"x": 0, "y": 0}, scope="inputs"), mlp)
    assert report.legal
    assert report.dimensions == 4
    assert report.partitioned_dimensions == 2
    assert report.variables == 0
    assert report.value == pytest.approx(0.4 + 0.6)
    words = only(mlp, {"x": 0}, scope="inputs")
    assert words.startswith("dimension 0 of y must be partitioned with dimension 0 of x: linked by")
    assert only(mlp, {"w1": 0}, scope="inputs").startswith("partition: no batch input 'w1'")
    widths = judge(plan_of(mlp, {"x": 1, "y": 1}, scope="inputs"), mlp)
    assert widths.legal
    assert widths.variables == 2  # w1 0 and w2 1 get it by the way
    assert widths.value == pytest.approx(1.0)
    assert "cannot both be partitioned" in only(mlp, {"x": 0, "y": 1}, scope="inputs")


def figures(report):
    """Everything that the report says of time, computed one by one."""
    problem = report.problem
    compute, communication, count = toys.slow_step(problem, report.chosen)
    assert report.compute_seconds == pytest.approx(compute, rel=1e-9)
    assert report.communication_seconds == pytest.approx(communication, rel=1e-9)
    assert report.all_reduces == count
    assert report.step_seconds == pytest.approx(compute + communication, rel=1e-9)
    whole = float(toys.slow_seconds(problem.graph, problem.cluster.device).sum())
    assert report.replicate_seconds == pytest.approx(whole, rel=1e-9)
    peak = problem.cluster.devices * problem.cluster.device.peak_flops
    flops = sum(problem.graph.flops[problem.graph.parent < 0])
    assert report.utilization == pytest.approx(flops / peak / (compute + communication))
    assert 0 < report.utilization <= 1
    value = 1 - (compute + communication) / whole
    assert report.value_of("step_time") == pytest.approx(value, abs=1e-9)


@pytest.mark.thorough
@each("seed", range(20))
def test_report__figures_on_random_programs(seed):
    problem, rng = toys.random_problem(seed, steps=12), np.random.default_rng(seed)
    simulation = toys.Simulation(problem)
    for _ in range(4):
        chosen = toys.random_choice(problem, rng)
        for scope, reward in (("variables", "step_time"), ("inputs", "paper")):
            asked = toys.asked(problem, scope, reward)
            report = asked.report(asked.plan(chosen))
            assert report.legal, report.reasons
            peak = simulation.peaks(report.chosen[None])[0]
            assert report.memory.peak == pytest.approx(peak)
            if problem.graph.total_flops:
                figures(report)
            closure = toys.Closure(problem, scope)
            split = [
                bool(report.chosen[c]) and not stuck
                for c, stuck in zip(closure.label, closure.stuck, strict=True)
            ]
            assert report.dimensions == len(split)
            assert report.partitioned_dimensions == sum(split)
            assert report.value_of("paper") == pytest.approx(0.1 * len(split) + 0.3 * sum(split))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(12))
def test_report__illegal_exactly_where_the_rules_say_so(seed):
    """Any entries for the variables: legal if and only if the closure of them is what they say."""
    rng = np.random.default_rng(seed)
    problem = toys.random_problem(seed, steps=10)
    closure = toys.Closure(problem, "variables")
    rivals, seen = toys.rivals_of(problem), set()
    for _ in range(40):
        partition, where = {}, {}
        for k, (path, d) in enumerate(closure.names):
            wide = problem.graph.dims[closure.positions[k]] > 1
            if wide and rng.random() < 0.4 and path not in partition:
                partition[path], where[path] = d, k
        classes = {closure.label[k] for k in where.values()}
        stuck = any(closure.stuck[k] for k in where.values())
        clash = any(rivals[c] & classes for c in classes)
        missing = any(
            c in classes and path not in partition
            for (path, _), c in zip(closure.names, closure.label, strict=True)
        )
        report = judge(plan_of(problem, partition), problem)
        assert report.legal == (not stuck and not clash and not missing), report.reasons
        assert (report.value == -1) == (not report.legal)
        seen.add(report.legal)
    assert False in seen or len(closure.names) < 4


@each("partition", [{}, HIDDEN, {"w1": 1}, {"zzz": 0}])
def test_report__to_json(mlp, partition):
    report = judge(plan_of(mlp, partition), mlp)
    content = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert content["legal"] == report.legal
    assert content["reasons"] == list(report.reasons)
    assert content["values"] == {r: report.value_of(r) for r in ("paper", "step_time")}
    assert (content["reward"], content["bound"], content["gap"]) == (None, None, None)
    assert content["step_seconds"] == report.step_seconds
    assert content["memory_bytes"]["peak"] == report.memory.peak
    assert content["memory_limit_bytes"] == pytest.approx(0.9e6)


def test_report__certified(mlp):
    """The gap of a plan to a proven bound."""
    answer = exact_partition(mlp)
    best = mlp.report(answer.plan)
    assert best.gap(answer) == pytest.approx(0, abs=1e-12)
    assert (best.reward, best.bound) == ("", None)
    report = best.certified(answer)
    assert (report.reward, report.bound) == ("paper", answer.bound)
    assert report.gap(report) == best.gap(answer)
    worse = judge(plan_of(mlp, {"w1": 0}), mlp)
    assert worse.gap(Bound(None)) is None
    assert worse.gap(answer) == pytest.approx((1.0 - 0.7) / 1.0)
    content = json.loads(json.dumps(worse.certified(answer).to_json(), allow_nan=False))
    assert (content["reward"], content["bound"]) == ("paper", answer.bound)
    assert content["gap"] == worse.gap(answer)
    illegal = judge(plan_of(mlp, {"w1": 1}), mlp)
    assert illegal.gap(answer) is None
    assert illegal.certified(answer).to_json()["gap"] is None
