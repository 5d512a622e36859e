"""The difference of two plans in words: one screen, largest first, sums shown."""

import dataclasses
import re
from dataclasses import replace

import numpy as np
import partition_toys
import pytest

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


@pytest.mark.thorough
def test_partition__says_what_the_difference_holds():
    a, b = partition_reports()
    diff = difference(a, b)
    shown = text(diff, ("inputs.json", "variables.json"))
    assert max(map(len, shown.splitlines())) <= 110
    for report in (a, b):
        assert f"{duration(report.step_seconds)} a step" in shown
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
