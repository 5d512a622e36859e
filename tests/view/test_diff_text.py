"""The difference of two plans in words: one screen, largest first, sums shown."""

import dataclasses
from dataclasses import replace

import numpy as np
import partition_toys
import pytest

from parenvs.core.plan import judge
from parenvs.diff import difference
from parenvs.view.diff_text import text
from parenvs.view.words import duration, size

UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}


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


@pytest.mark.thorough
def test_partition__says_what_the_difference_holds():
    a, b = partition_reports()
    diff = difference(a, b)
    shown = text(diff, ("inputs.json", "variables.json"))
    assert max(map(len, shown.splitlines())) <= 110
    for report in (a, b):
        assert f"{duration(report.step_seconds)} a step" in shown
    assert f"{len(diff.changes)} values of the plans differ" in shown
    for begin, show, total in (
        ("where the seconds are", seconds, diff.seconds),
        ("bytes of the fullest device", None, None),
    ):
        table = rows(shown, begin)
        assert table[-1].split()[:2] == ["in", "all"] and len(table) > 2
        if show is not None:
            costs = [show(" ".join(line.split()[-2:])) for line in table]
            assert costs[-1] == pytest.approx(total, rel=1e-3)
            assert sum(costs[:-1]) == pytest.approx(total, rel=5e-3)
        else:
            assert size(b.memory.peak) in table[-1]


def test_partition__equal_layers_stand_together():
    problem = partition_toys.shipped("t5-base")
    chosen = np.zeros(len(problem.classes), dtype=bool)
    plan = replace(problem, scope="variables", reward="step_time").plan(chosen)
    a = judge(plan, problem)
    layers = {f"encoder/layer_{k}/conv1/kernel": 1 for k in range(12)}
    diff = difference(a, judge(dataclasses.replace(plan, partition=layers), problem))
    (row,) = rows(text(diff), "12 values of the plans differ")
    assert row.split() == ["partition.encoder/layer_0..11/conv1/kernel", "-", "→", "1"]


def test_partition__equal_plans():
    report, _ = partition_reports("vgg-19")
    shown = text(difference(report, report))
    assert "b takes as long as a" in shown and "the plans decide the same" in shown
