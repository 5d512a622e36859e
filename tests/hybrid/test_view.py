"""Text and pictures of hybrid plans show what the judge says, and nothing else."""

import re
from dataclasses import replace

import pytest

from parenvs import Cluster, HybridStage
from parenvs import view as viewer
from parenvs.datasets.hybrid.problems import find_hybrid
from parenvs.tasks.hybrid import figure, view
from parenvs.tasks.hybrid.explain import alternatives
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.space import UniformSpace
from parenvs.tasks.hybrid.uniform import Uniform
from parenvs.view.page import style
from parenvs.view.words import WIDTH, duration

SHAPE = TransformerShape("small", 8, 1024, 16, 512, 32_000)


@pytest.fixture(scope="module")
def problem():
    return Hybrid(HybridModel.of_shape(SHAPE), "2x8:a100", 64)


def report_of(problem, **axes):
    axes = {"tp": 2, "pp": 4, "dp": 2, "micro_batch": 2, "chunks": 2, "zero": 1, **axes}
    return problem.report(problem.uniform_plan(Uniform(batch=problem.batch, **axes), 0))


def collection(drawn, gid):
    return [c for axes in drawn.axes for c in axes.collections if c.get_gid() == gid]


def test_text__says_what_the_judge_says(problem):
    report = report_of(problem)
    shown = view.text(report)
    assert shown == viewer.text(report)
    lines = shown.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert lines[0].startswith("small on 2x8 a100")
    assert "4 stages x dp 2 x tp 2 x chunks 2, ZeRO 1" in lines[0]
    assert f"L {duration(report.length_seconds)}" in lines[1]
    assert f"MFU {report.mfu:.1%}" in lines[1]
    shares = [float(x) for x in re.findall(r"s +(\d+\.\d)%", shown)]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert {line.split()[0] for line in lines[-4:]} == {"0", "1", "2", "3"}
    for line, stage in zip(lines[-4:], report.stages, strict=True):
        assert f"{stage.memory['total'] / 1e9:.2f}" in line


def test_text__of_long_names_and_many_chunks_is_whole(problem):
    """Lines that are too wide go on in the next one; nothing ends in an ellipsis."""
    model = HybridModel.of_shape(replace(SHAPE, name="a-long-name " * 12, layers=32))
    report = report_of(replace(problem, model=model, instance=""), chunks=8)
    shown = view.text(report) + view.explanation_text(report, alternatives(report))
    assert "…" not in shown and "8 in 0–28" in shown
    assert shown.count("a-long-name") == 24


def test_map__every_plan_is_a_mark(problem):
    space = UniformSpace.build(problem)
    with style():
        drawn = figure.draw_plans(space, 1.0, 1e9)
    marks = [c for axes in drawn.axes for c in axes.collections if (c.get_gid() or "")[:2] == "tp"]
    assert sum(len(c.get_offsets()) for c in marks) == len(space)
    assert len(collection(drawn, "plan")) == 1


def test_explain__alternatives_are_the_best_with_another_value(problem):
    space = UniformSpace.build(problem)
    report = problem.report(space.plan(space.best()))
    own = report.plan.axes
    found = alternatives(report)
    assert {x.axis for x in found} <= set(own)
    assert not any(x.value == own[x.axis] for x in found)
    for other in found:
        which = (getattr(space.plans, other.axis) == other.value) & space.fits
        if which.any():
            assert other.length == pytest.approx(space.length[which].min(), rel=1e-12)
            assert other.excess >= -1e-12
        else:
            assert other.missing_bytes > 0
    shown = view.explanation_text(report, found)
    assert max(map(len, shown.splitlines())) <= WIDTH
    assert f"tensor parallel ranks (tp): {own['tp']}" in shown


def test_explain__a_plan_beside_which_no_uniform_one_fits():
    problem = find_hybrid("hybrid-test/gpt-000")
    ranges = ((0, 3), (3, 6), (6, len(problem.model)))
    stages = [HybridStage((layers,), 64, tp=8) for layers in ranges]
    report = problem.report(problem.plan(stages))
    said, content = view.of_plan(report)
    assert content == {"axes": []} and "No uniform plan fits" in said


def test_figure__unequal_servers_stand_in_order_with_their_speeds():
    cluster = Cluster.parse("3x8:a100")
    cluster = replace(cluster, speeds=(0.5, 1.0, 0.75))
    problem = Hybrid(HybridModel.of_shape(SHAPE), cluster, 64, "megascale-2024")
    stages = [HybridStage(((0, 3),), 8, tp=8), HybridStage(((3, 8),), 8, tp=8)]
    report = problem.report(problem.plan(stages, servers=(2, 1, 0), p2p="overlapped"))
    assert report.legal, report.reasons
    with style():
        drawn = figure.draw(report)
    words = [x.get_text() for axes in drawn.axes for x in axes.texts]
    assert [x for x in words if x.startswith("server ")] == ["server 2: 0.75", "server 1: 1"]
    assert any(x.startswith("2 of 3 servers") for x in words)
    cells = [x for axes in drawn.axes for x in axes.patches if x.get_gid() == "devices"]
    assert cells[0].get_height() == pytest.approx(0.75 * cells[8].get_height())
