import json
from dataclasses import replace

import numpy as np
import pytest
from cases import each
from drawn_orders import drawn, every_order

import parenvs
from parenvs import judge, load_plan
from parenvs.cluster import Cluster
from parenvs.errors import InfeasibleError, ParenvsError, PlanError, UnknownInstanceError
from parenvs.tasks.hybrid.shipped import shapes
from parenvs.tasks.order.files import save_set
from parenvs.tasks.order.load import load_ordering, ordering_steps
from parenvs.tasks.order.packing import PackedStep, squares_of
from parenvs.tasks.order.plan import OrderPlan
from parenvs.tasks.order.problem import Order

NAME = "order-test/p4-m8-000"


@pytest.fixture(scope="module")
def step():
    shape = replace(shapes()["llama3-8b"], sequence=65536)
    cluster = replace(Cluster.parse("4x8:h100"), speeds=(0.9, 1.0, 0.95, 1.0))
    return PackedStep(shape, cluster, (8, 8, 8, 8), (65536**2, 65536**2 // 4, 10**8))


def test_squares_of__documents_are_cut_at_the_ends():
    assert squares_of(np.array([3, 4, 5, 8]), 10, 2).tolist() == [9 + 16 + 9, 4 + 64]
    assert squares_of(np.array([30]), 10, 3).tolist() == [100, 100, 100]
    assert squares_of(np.array([10, 10]), 10, 2).tolist() == [100, 100]


def test_packed_step__one_document_takes_what_hybrid_plans_take(step):
    """All formulas are those of hybrid plans; a sample that is one document is their case."""
    forward, backward = step.seconds()
    hybrid = step.hybrid
    whole = hybrid.chunk_seconds(step.plan(hybrid))
    assert (forward[:, 0] == whole.forward[:, 0]).all()
    assert (backward[:, 0] == whole.backward[:, 0]).all()


def test_packed_step__attention_takes_time_with_the_squares(step):
    forward, backward = step.seconds()
    per_square = np.diff(forward, axis=1) / np.diff(step.squares)
    assert np.allclose(per_square[:, 0], per_square[:, 1])
    # 2 FLOPs a causal pair and head width, of 8 layers and 32 / 8 heads of 128 on each device.
    machine, speeds = step.hybrid.machine, np.array(step.cluster.speeds)
    assert np.allclose(per_square[:, 0], 8 * 2 * 4 * 128 / machine.attention_flops / speeds)
    # The forward pass again, and 2.5 times as much.
    assert np.allclose(np.diff(backward, axis=1), 3.5 * np.diff(forward, axis=1))


def test_packed_step__attention_that_is_not_fused_is_refused(step):
    slow = replace(step, cluster=Cluster.parse("4x8:a100"))
    with pytest.raises(ParenvsError, match="does not fuse attention"):
        slow.seconds()


def test_packed_step__stages_that_do_not_fit_are_refused(step):
    large = replace(step, shape=replace(step.shape, sequence=1 << 22))
    with pytest.raises(ParenvsError, match="the stages cannot be"):
        large.seconds()


def test_ordering__seconds_that_no_passes_have():
    for forward in (np.zeros((2, 3)), np.full((2, 3), np.nan), np.full((2, 3), 1e9)):
        with pytest.raises(InfeasibleError, match="forward: seconds"):
            Order(forward, np.ones((2, 3)))
    with pytest.raises(InfeasibleError, match="S stages by M"):
        Order(np.ones((2, 3)), np.ones((3, 2)))


def test_ordering__fingerprint_is_of_the_seconds():
    problem = drawn(np.random.default_rng(0), 3, 4)
    same = Order(problem.forward + 1e-11, problem.backward, "another name")
    assert same.fingerprint == problem.fingerprint
    other = Order(problem.forward + 1e-9, problem.backward)
    assert other.fingerprint != problem.fingerprint


def test_report__value_is_the_bound_over_the_length():
    problem = drawn(np.random.default_rng(1), 3, 5)
    orders = every_order(5)
    report = problem.report(problem.plan(orders[7]))
    assert report.legal
    assert report.value == problem.bound_seconds / float(problem.length(orders[7]))
    assert report.value == float(problem.values(orders)[7])
    assert (report.busy <= 1).all()
    assert "order: " in str(report)
    assert json.loads(json.dumps(report.to_json()))["length_seconds"] == report.length_seconds


@each(
    ("order", "reason"),
    [
        ((0, 1, 2), "order: has 3 positions, the step has 4"),
        ((0, 1, 2, 4), "order: names micro-batch 4, there are 0 to 3"),
        ((0, 1, 1, 2), "order: names micro-batch 1 more than once"),
        ((0, 1, 2, -1), "order: names micro-batch -1"),
    ],
)
def test_report__what_is_no_order(order, reason):
    problem = drawn(np.random.default_rng(2), 2, 4)
    report = problem.report(problem.plan(order))
    assert not report.legal
    assert report.value == -1
    assert any(words.startswith(reason) for words in report.reasons)
    assert report.to_json()["length_seconds"] is None
    assert "malformed" in str(report)


def test_report__another_problems_order():
    problem, other = (drawn(np.random.default_rng(k), 2, 4) for k in (3, 4))
    report = problem.report(other.plan(range(4)))
    assert report.value == -1
    assert report.reasons[0].startswith("fingerprint: ")
    assert np.isfinite(report.length_seconds)


def test_plan__file_and_judge(tmp_path):
    problem = parenvs.problem(NAME, task="order")
    plan = problem.plan(range(8))
    plan.save(tmp_path / "order.json")
    assert load_plan(tmp_path / "order.json") == plan
    assert list(plan.to_json()) == ["schema", "task", "instance", "fingerprint", "order"]
    assert judge(tmp_path / "order.json").value == problem.report(plan).value
    assert judge(plan, problem).legal
    with pytest.raises(ParenvsError, match="judged on an Order"):
        judge(plan, 3)
    with pytest.raises(ParenvsError, match="cluster of its problem"):
        judge(plan, problem, "C")


@each(
    ("change", "words"),
    [
        ({"order": "abc"}, "field 'order'"),
        ({"order": [0.5]}, "field 'order[0]' must be a whole number, not 0.5"),
        ({"order": None}, "field 'order'"),
        ({"oder": []}, "unknown field 'oder' (did you mean 'order'?)"),
        ({"instance": ""}, "field 'instance'"),
    ],
)
def test_plan__what_no_file_may_hold(tmp_path, change, words):
    content = {**OrderPlan("x", "sha256:0", (0, 1)).to_json(), **change}
    path = tmp_path / "order.json"
    path.write_text(json.dumps(content))
    with pytest.raises(PlanError) as error:
        load_plan(path)
    assert words in str(error.value)
    assert str(error.value).startswith(str(path))


def test_files__a_problem_of_ones_own(tmp_path, step):
    problem = drawn(np.random.default_rng(5), 2, 3)
    arrays = {"forward": problem.forward.tolist(), "backward": problem.backward.tolist()}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"schema": 1, **arrays}))
    assert load_ordering(path).fingerprint == problem.fingerprint
    path.write_text(json.dumps({"schema": 1, **step.to_json()}))
    assert load_ordering(path).fingerprint == Order.of_step(step, "").fingerprint
    save_set(tmp_path / "set.json", {"one": step, "two": step})
    assert load_ordering(f"{tmp_path}/set.json/two").step == step


@each(
    ("change", "words"),
    [
        ({"model": "llama3-8c"}, "field 'model': unknown shape 'llama3-8c' (did you mean"),
        ({"tokens": 0}, "field 'tokens'"),
        ({"tokens": True}, "field 'tokens'"),
        ({"cluster": "4x8:nothing"}, "field 'cluster'"),
        ({"layers": [8, 8, 8]}, "field 'layers' must share 32 layers among 4 servers"),
        ({"layers": [8, 8, 8, -8]}, "field 'layers[3]'"),
        ({"squares": []}, "field 'squares'"),
        ({"squares": [1]}, "field 'squares'"),
        ({"square": []}, "unknown field 'square' (did you mean 'squares'?)"),
        ({"schema": 2}, "field 'schema' is 2"),
    ],
)
def test_files__what_no_packed_step_is(tmp_path, step, change, words):
    path = tmp_path / "step.json"
    path.write_text(json.dumps({"schema": 1, **step.to_json(), **change}))
    with pytest.raises(ParenvsError) as error:
        load_ordering(path)
    assert str(error.value).startswith(f"{path}: {words}")
    assert "\n" not in str(error.value)


@each(
    ("text", "words"),
    [
        ("{", "not a JSON file"),
        ("[]", "expected one JSON object"),
        ('{"schema": 1}', "field "),
        ('{"schema": 1, "forward": [[1]], "backward": [[1, 2]]}', "forward and backward must"),
        ('{"schema": 1, "forward": [[1], []], "backward": [[1]]}', "field 'forward[1]'"),
        ('{"schema": 1, "forward": [["1"]], "backward": [[1]]}', "field 'forward[0][0]'"),
        ('{"schema": 1, "forward": [[NaN]], "backward": [[1]]}', "field 'forward[0][0]'"),
        ('{"schema": 1, "schema": 1}', "field 'schema'"),
    ],
)
def test_files__what_no_problem_is(tmp_path, text, words):
    path = tmp_path / "problem.json"
    path.write_text(text)
    with pytest.raises(ParenvsError) as error:
        load_ordering(path)
    assert str(error.value).startswith(f"{path}: {words}")
    assert "\n" not in str(error.value)


@each(
    "instance", ["order-test", "order-tset/p4-m8-000", "order-test/p4-m8-999", "t5-3b", "no.json"]
)
def test_load_ordering__unknown_names(instance):
    with pytest.raises(UnknownInstanceError) as error:
        load_ordering(instance)
    assert "\n" not in str(error.value)


def test_load_ordering__the_task_has_no_options():
    with pytest.raises(ParenvsError, match=r"cluster: order-test.* has settings of its own"):
        parenvs.problem(NAME, "C", task="order")
    assert len(ordering_steps("order-test")) == 100
