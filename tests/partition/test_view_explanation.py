"""Why dimensions are partitioned or not: reasons against the classes of small and real graphs."""

import dataclasses
import re
from collections import deque

import numpy as np
import partition_toys as toys
import pytest

from parenvs import ParenvsError, from_jax
from parenvs.agents.partition.exact import exact_partition
from parenvs.cluster import choose_cluster
from parenvs.tasks.partition.explain import explain, explanation_text
from parenvs.tasks.partition.problem import Partitioning, load_partitioning
from parenvs.tasks.partition.words import Explainer


def mlp(rules="shardy"):
    """``softmax(tanh(x @ w1) @ w2)`` with x (16, 24), w1 (24, 40), w2 (40, 56)."""
    jax = pytest.importorskip("jax")
    shapes = {"w1": (24, 40), "w2": (40, 56)}
    args = {k: jax.ShapeDtypeStruct(s, np.float32) for k, s in shapes.items()}
    graph = from_jax(
        lambda p, x: jax.nn.softmax(jax.numpy.tanh(x @ p["w1"]) @ p["w2"]),
        args,
        jax.ShapeDtypeStruct((16, 24), np.float32),
        name="mlp",
    )
    return Partitioning.build(graph, choose_cluster(devices=8), rules)


def judged(problem, partition, scope="variables"):
    problem = dataclasses.replace(problem, scope=scope)
    plan = problem.plan(np.zeros(len(problem.classes), bool))
    return problem.report(dataclasses.replace(plan, partition=partition))


def by_path(explanations):
    """``{(path, dimension): reason}``."""
    return {(e.paths[0], d.dimension): d for e in explanations for d in e.dimensions}


@pytest.fixture(scope="module")
def vgg():
    problem = load_partitioning("vgg-19", choose_cluster(devices=8))
    answer = exact_partition(problem)
    return answer.report


def test_explain__small_graph_by_hand():
    report = judged(mlp(), {"w1": 1, "w2": 0})
    assert report.legal
    found = by_path(explain(report))
    split = {key for key, d in found.items() if d.state == "partitioned"}
    assert split == {("w1", 1), ("w2", 0)} and len(found) == 6
    assert {d.state for d in found.values()} == {"partitioned", "replicated"}
    assert {key: d.members for key, d in found.items()} == {
        ("w1", 0): 1, ("w1", 1): 2, ("w2", 0): 2, ("w2", 1): 1, ("x", 0): 0, ("x", 1): 1,
    }  # fmt: skip
    # The hidden width excludes the input width, the output width and the batch.
    decided = found["w1", 1].reason
    assert decided.startswith("decided; it excludes class ") and decided.count("; class ") == 2
    assert re.search(r"dimension 0 of w1, at instruction \d+, dot \(.*dot_general\)", decided)
    tied = found["w2", 0].reason
    assert tied.startswith("tied to dimension 1 of w1 by instruction ")
    assert re.findall(r"instruction \d+, (\w+)", tied) == ["dot", "tanh", "dot"]
    for key in (("w1", 0), ("w2", 1), ("x", 0)):
        label = found["w1", 1].label
        assert found[key].reason.startswith(f"excluded by class {label}, dimension 1 of w1, which")
    # f32[16,40] @ w2: both the hidden width and the output width would be split.
    assert re.search(r"\d+, dot .* both dimension 1 of w2 and", found["w2", 1].reason)
    assert found["x", 1].label == found["w1", 0].label


def test_explain__blocked_names_the_instruction():
    """Automap's rules forbid to split what the softmax reduces."""
    found = by_path(explain(judged(mlp("automap"), {"w1": 1, "w2": 0})))
    blocked = found["w2", 1]
    assert blocked.state == "blocked"
    assert re.match(r"instruction \d+, reduce \(.*\) cannot split dimension 1 of f32\[16,56\]$",
                    blocked.reason)  # fmt: skip


def test_explain__what_nothing_forbids_says_what_it_would_change():
    problem = mlp()
    found = by_path(explain(judged(problem, {})))
    for (path, dimension), one in found.items():
        assert one.state == "replicated"
        assert one.reason.startswith("nothing forbids it")
        weight = float(re.search(r"would add ([\d.]+) to", one.reason)[1])
        assert weight == pytest.approx(0.3 * one.members), (path, dimension)
        gain = problem.gain_seconds[one.label]
        verb, digits, unit = re.search(
            r"and (\w+) the step by ([\d.]+) (\w+)$", one.reason
        ).groups()
        assert verb == ("shorten" if gain > 0 else "lengthen")
        scale = {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
        assert float(digits) * scale == pytest.approx(abs(gain), rel=1e-3)
    assert {problem.gain_seconds[one.label] > 0 for one in found.values()} == {True, False}


@pytest.mark.parametrize("name", ["vgg-19", "t5-base"])
def test_explain__every_state_follows_from_the_classes(name):
    problem = load_partitioning(name, choose_cluster(devices=8), rules="automap")
    answer = exact_partition(problem)
    plan = answer.plan
    report = problem.report(plan)
    merged, single = explain(report), explain(report, "*")
    graph, classes = problem.graph, problem.classes
    assert [e.paths for e in single] == [(graph.paths[i],) for i in problem.parameters("all")]
    assert sorted(p for e in merged for p in e.paths) == sorted(e.name for e in single)
    assert len(merged) < (45 if name == "t5-base" else 35)
    alone = {e.name: e for e in single}
    for entry in merged:
        first = alone[entry.paths[0]]
        assert [d.reason for d in first.dimensions] == [d.reason for d in entry.dimensions]
        for path in entry.paths:
            assert alone[path].shape == entry.shape
            states = [d.state for d in alone[path].dimensions]
            assert states == [d.state for d in entry.dimensions]
    for (path, dimension), one in by_path(single).items():
        position = graph.dim_offset[problem.tensor[path]] + dimension
        label = classes.label[position]
        assert one.label == label
        assert one.size == graph.dims[position] > 1
        if plan.partition.get(path) == dimension:
            assert one.state == "partitioned"
        else:
            assert one.state == ("blocked" if classes.blocked[label] else "replicated")


def test_explain__unknown_pattern(vgg):
    with pytest.raises(ParenvsError, match=r"vgg-19: .* matches 'fc2/bais' \(did you mean"):
        explain(vgg, "fc2/bais")


def test_explanation_text__names_every_entry_and_gives_each_reason_once(vgg):
    entries = explain(vgg)
    shown = explanation_text(entries)
    assert max(map(len, shown.splitlines())) <= 110
    flat = re.sub(r"\s+", " ", shown)
    for entry in entries:
        assert f"{entry.name} {entry.shape}" in flat
    for reason in {d.reason for e in entries for d in e.dimensions}:
        assert flat.count(reason) == 1
    assert (
        "block3_conv{1,3}/bias f32[256] (2 variables) dimension 0 of size 256 partitioned" in flat
    )
    assert "images f32[64,224,224,3] (batch input)" in flat


def test_explain_problem__small_graph_by_hand():
    problem = mlp()
    found = by_path(explain(problem))
    assert {d.state for d in found.values()} == {"open"}
    hidden = found["w1", 1]
    assert hidden.reason.startswith("nothing forbids it: partitioning the class would add 0.6 to ")
    excluded = hidden.reason.partition("it excludes ")[2].split("; ")
    rivals = {key: found[key].label for key in (("w1", 0), ("w2", 1), ("x", 0))}
    assert len(excluded) == 3
    for (path, dimension), label in rivals.items():
        start = f"class {label}, dimension {dimension} of {path}, at instruction "
        assert any(re.match(start + r"\d+, dot \(", words) for words in excluded)
    assert found["w2", 0].reason.startswith("tied to dimension 1 of w1 by instruction ")
    assert found["w2", 0].prospect == ""  # the line of w1 tells it


def test_explainer__chain_is_a_shortest_one():
    """Against a breadth-first search written out, and its instructions tie the dimensions."""
    problem = toys.shipped("vgg-19")
    classes = problem.classes
    links, at = classes.factors.links.tolist(), classes.factors.link_at.tolist()
    near: dict[int, list[int]] = {}
    pairs: dict[frozenset, set[int]] = {}
    for (one, other), instruction in zip(links, at, strict=True):
        near.setdefault(one, []).append(other)
        near.setdefault(other, []).append(one)
        pairs.setdefault(frozenset((one, other)), set()).add(instruction)
    graph, words = problem.graph, Explainer(classes)
    start = int(graph.dim_offset[problem.tensor["fc1/bias"]])
    end = int(graph.dim_offset[problem.tensor["fc2/kernel"]])
    far, queue = {start: 0}, deque([start])
    while queue:
        here = queue.popleft()
        for other in near[here]:
            if other not in far:
                far[other] = far[here] + 1
                queue.append(other)
    chain = words.chain(start, end)
    assert 0 < len(chain) <= far[end]
    # The instructions lead from the start to the end, one or more links each.
    reached = {start}
    for instruction in chain:
        step = [tuple(pair) for pair, found in pairs.items() if instruction in found]
        while True:
            more = {y for x, y in [*step, *(p[::-1] for p in step)] if x in reached} - reached
            if not more:
                break
            reached |= more
    assert end in reached
    assert words.chain(start, start) == []
    with pytest.raises(ValueError, match="different classes"):
        words.chain(start, int(graph.dim_offset[problem.tensor["images"]]))
