"""The difference of two plans in words: one screen, largest first, sums shown."""

import dataclasses
import re
from dataclasses import replace

import numpy as np
import partition_toys
import pytest
import toys

from parenvs.cluster import Cluster
from parenvs.core.plan import judge
from parenvs.diff import difference
from parenvs.view.diff_text import text
from parenvs.view.words import duration, size

UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}


def report_of(pipeline, cuts, device_cuts):
    return judge(pipeline.plan(np.array(cuts), np.array(device_cuts)), pipeline)


def partition_reports(name="t5-base"):
    """Batch partitioned over all devices, and variables by the paper's reward."""
    problem = partition_toys.shipped(name)
    reports = []
    for scope in ("inputs", "variables"):
        chosen = np.zeros(len(problem.classes), dtype=bool)
        for label in problem.decidable(scope)[::3]:
            trial = chosen.copy()
            trial[label] = True
            chosen = trial if problem.legal(trial) else chosen
        plan = replace(problem, scope="variables", reward="step_time").plan(chosen)
        reports.append(judge(plan, problem))
    return reports


def seconds(words):
    """``-1,234.5 ms`` as a number."""
    number, unit = words.split()
    return float(number.replace(",", "")) * UNITS[unit]


def rows(shown, begin):
    """The lines of a table up to an empty line, without its head."""
    lines = shown.splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith(begin)) + 1
    end = next((k for k in range(start, len(lines)) if not lines[k]), len(lines))
    return lines[start:end]


def test_pipeline__says_what_the_difference_holds():
    pipeline = toys.dense().pipeline
    diff = difference(report_of(pipeline, [3], [2]), report_of(pipeline, [5], [3]))
    shown = text(diff, ("old.json", "new.json"))
    lines = shown.splitlines()
    assert "dense on 2x2 toy" in lines[0] and "2 micro-batches" in lines[0]
    assert lines[1].startswith("a  old.json  ·  L 27.00 s  ·  simulated ")
    assert lines[2].startswith("b  new.json  ·  L 22.00 s  ·  simulated ")
    assert lines[1].endswith("2 stages, pivot link 0-1")
    assert lines[3] == "b takes 5.000 s less than a (-18.52 %)"
    parts = rows(shown, "where the seconds are")
    assert len(parts) == 5 and parts[-1].split() == [
        "L",
        *["27.00", "s", "22.00", "s", "-5.000", "s"],
    ]
    changes = [seconds(" ".join(line.split()[-2:])) for line in parts[:-1]]
    assert changes == sorted(changes, key=lambda x: -abs(x))
    assert sum(changes) == pytest.approx(-5, abs=2e-3)
    moves = rows(shown, "what moving each cut costs")
    assert [line[11:].split()[:2] for line in moves[:-1]] == [
        [{"cut": "pivots", "device_cut": "devices"}[m.kind], "0|1"]
        for m in sorted(diff.moves, key=lambda m: -abs(m.seconds))
    ]
    assert sum(seconds(line[:11]) for line in moves[:-1]) == pytest.approx(-5, abs=2e-3)
    assert "3 → 5 (+2)" in shown and "2 → 3 (+1)" in shown and "after p2 → p4" in shown
    (first, second) = rows(shown, "stage")
    assert re.match(r"0 +0–1 → 0–2 +3000\.0 → 3333\.3 +3000\.0 +", first)
    assert re.match(r"1 +2–3 → 3 +3000\.0 → 2000\.0 +0 +16500\.0 → 0 +", second)


def test_pipeline__equal_plans():
    report = report_of(toys.dense().pipeline, [5], [3])
    shown = text(difference(report, report))
    assert "b takes as long as a" in shown and "the plans cut the same pivots and devices" in shown
    assert "+" not in shown.replace(" + ", " ")


def test_pipeline__illegal_and_malformed_plans_are_named_so():
    good = report_of(toys.dense().pipeline, [5], [3])
    other = dataclasses.replace(good.plan, cluster=good.plan.cluster, cut_after=("p0",))
    bad = judge(other, good.pipeline)
    shown = text(difference(good, bad))
    assert "b  b  ·  illegal  ·  L 22.00 s" in shown and f"  ! {bad.reasons[0]}" in shown
    broken = judge(dataclasses.replace(good.plan, cuts=(99,), cut_after=()), good.pipeline)
    shown = text(difference(good, broken))
    assert "illegal  ·  malformed" in shown and "nothing to compare but the cuts" in shown
    assert "5 → 99 (+94)" in shown and "L =" not in shown and "inf" not in shown


def test_pipeline__many_stages_fit_a_screen():
    pivots, count = 300, 64
    ones = np.ones(pivots)
    crossing = np.random.default_rng(0).uniform(1e5, 1e7, pivots)
    names = toys.chain(ones, ones, crossing, ones, name="x" * 300)
    pipeline = toys.Pipeline(names, Cluster.parse("16x8:v100"), 4)
    cuts = np.arange(4, 4 * count, 4)
    a, b = (report_of(pipeline, cuts + k, np.arange(1, count)) for k in (0, 1))
    few = report_of(pipeline, cuts[:7], np.arange(1, 8))
    more = report_of(pipeline, cuts[:7] + 1, np.arange(1, 8) + np.arange(7))
    for diff in (difference(a, b), difference(a, few), difference(few, more)):
        shown = text(diff, ("a" * 200 + ".json", "b.json"))
        assert max(map(len, shown.splitlines())) <= 110
        assert len(shown.splitlines()) <= 45
        hidden = len(diff.moves) - 12
        if hidden > 0:
            assert f"and {hidden} more" in shown
    shown = text(difference(few, more))
    moves = rows(shown, "what moving each cut costs")
    total = difference(few, more).seconds
    assert sum(seconds(x[:11]) for x in moves[:-1]) == pytest.approx(total, rel=2e-3)
    assert seconds(moves[-1][:11]) == pytest.approx(total, rel=1e-3)


def test_pipeline__control_characters_reach_no_terminal():
    evil = toys.chain([1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 1, 1], name="a\x1b[2J")
    evil = dataclasses.replace(evil, names=np.array(["\x1b1", "\x1b2", "\x1b3"], dtype=object))
    pipeline = toys.Pipeline(evil, Cluster.parse(toys.shape(1, 2, 1.0, 1.0)), 2)
    shown = text(difference(report_of(pipeline, [1], [1]), report_of(pipeline, [2], [1])))
    assert "\x1b" not in shown and "?1 → ?2" in shown
    shown = text(
        difference(report_of(pipeline, [1], [1]), report_of(pipeline, [2], [1])), ("\x1b", "b")
    )
    assert "\x1b" not in shown


@pytest.mark.thorough
def test_partition__says_what_the_difference_holds():
    a, b = partition_reports()
    diff = difference(a, b)
    shown = text(diff, ("inputs.json", "variables.json"))
    assert max(map(len, shown.splitlines())) <= 110
    for report in (a, b):
        assert f"step {duration(report.step_seconds)}" in shown
    assert f"memory per device, of {size(a.problem.memory_limit)}" in shown
    table = rows(shown, "what each dimension class costs")[1:]
    costs = [seconds(line[:11]) for line in table]
    assert costs[-1] == pytest.approx(diff.seconds, rel=1e-3)
    assert sum(costs[:-1]) == pytest.approx(diff.seconds, rel=5e-3)
    shown_rows = [x for x in table[:-1] if "more rows" not in x]
    sizes = [abs(seconds(line[:11])) for line in shown_rows]
    assert sizes == sorted(sizes, reverse=True) and len(shown_rows) <= 12
    count = sum(int(line[35:].split()[1]) for line in shown_rows)
    rest = re.search(r"and \d+ more rows, ([\d,]+) class", shown)
    assert count + (int(rest[1]) if rest else 0) == len(diff.classes)
    memory = rows(shown, "memory per device")
    assert len(memory) == 6 and size(b.memory.peak) in memory[-1]


def test_partition__equal_layers_stand_together():
    problem = partition_toys.shipped("t5-base")
    chosen = np.zeros(len(problem.classes), dtype=bool)
    plan = replace(problem, scope="variables", reward="step_time").plan(chosen)
    a = judge(plan, problem)
    layers = {f"encoder/layer_{k}/conv1/kernel": 1 for k in range(12)}
    b = judge(dataclasses.replace(plan, partition=layers), problem)
    diff = difference(a, b)
    (row, total) = rows(text(diff), "what each dimension class costs")[1:]
    assert len(diff.classes) == 12
    assert (
        row.split()[6:8] == ["b", "12"]
        and "1 of encoder/layer_0..11/conv1/kernel and 2 more each" in row
    )
    assert "in all" in total


def test_partition__equal_plans():
    report, _ = partition_reports("vgg-19")
    shown = text(difference(report, report))
    assert "b takes as long as a" in shown and "the plans partition the same dimensions" in shown
