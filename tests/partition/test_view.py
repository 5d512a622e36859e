"""Text and pictures of partition plans show what the judge's report holds, and nothing else."""

import dataclasses
import re
from collections import Counter

import numpy as np
import pytest
from cases import slow
from pictures import boxes, words

from parenvs import judge
from parenvs import view as viewer
from parenvs.agents.partition.exact import exact_partition
from parenvs.tasks.partition.problem import load_partitioning
from parenvs.tasks.partition.view import cells, grid
from parenvs.view.page import STAGE_COLORS
from parenvs.view.words import duration, merged, size

ESCAPES = re.compile(r"\x1b\[[\d;]*m")
GRAY, WHITE = "#D3D3D3", "#FFFFFF"


def best(name, rules="automap", scope="variables", reward="paper"):
    problem = load_partitioning(name, "1x8:v100", rules, scope=scope, reward=reward)
    answer = exact_partition(problem)
    return answer.report


def changed(report, **entries):
    """The report of the same plan with other entries, ``fc2_bias=0`` for ``fc2/bias``."""
    named = {
        next(p for p in report.problem.graph.paths if p.replace("/", "_") == key): value
        for key, value in entries.items()
    }
    partition = {k: v for k, v in {**report.plan.partition, **named}.items() if v is not None}
    return judge(dataclasses.replace(report.plan, partition=partition), report.problem)


@pytest.fixture(scope="module")
def report():
    return best("vgg-19")


@pytest.fixture(scope="module")
def t5():
    return best("t5-base")


@pytest.fixture(scope="module")
def illegal(report):
    return changed(report, fc2_bias=0)


def pixels(figure):
    """What a figure looks like, (800, 1280, 3)."""
    figure.canvas.draw()
    return np.array(figure.canvas.buffer_rgba())[..., :3]


def pixel(picture, x, y):
    """Color at a place given in inches."""
    red, green, blue = picture[round(y * 100), round(x * 100)]
    return f"#{red:02X}{green:02X}{blue:02X}"


def blocked_paths(problem):
    graph, classes = problem.graph, problem.classes
    found = set()
    for path, tensor in problem.tensor.items():
        dims = range(graph.dim_offset[tensor], graph.dim_offset[tensor + 1])
        if all(classes.blocked[classes.label[p]] for p in dims if graph.dims[p] > 1):
            found.add(path)
    return found


# names


def test_merged__every_path_once_and_only_equal_layers():
    paths = [f"enc/layer_{k}/{n}" for k in (0, 1, 2, 5) for n in ("q", "conv1/w")] + [
        "w7",
        "w8",
        "x",
    ]
    keys = [k % 2 for k in range(8)] + [0, 0, 0]
    keys[2] = 7  # layer_1/q is different
    found = merged(paths, keys)
    assert [name for name, _ in found] == [
        "enc/layer_{0,2,5}/q", "enc/layer_{0..2,5}/conv1/w", "enc/layer_1/q", "w7..8", "x",
    ]  # fmt: skip
    assert sorted(k for _, held in found for k in held) == list(range(len(paths)))
    names = merged([f"a{k}" for k in range(0, 40, 2)], [0] * 20)
    assert names == [("a{0,2,4,…,38}", list(range(20)))]


def test_grid__holds_every_variable_once(t5):
    variables, inputs = cells(t5.problem, t5)
    tables, loose = grid(variables)
    assert [(t.title, len(t.rows), len(t.columns)) for t in tables] == [
        ("decoder", 12, 18),
        ("encoder", 12, 12),
    ]
    assert len(loose) == 7
    shown = [c.path for t in tables for row in t.rows.values() for c in row.values()]
    assert sorted([*shown, *(c.path for c in loose)]) == sorted(c.path for c in variables)
    for table in tables:
        for label, held in table.rows.items():
            assert list(held) == table.columns
            for column, some in held.items():
                assert some.path == f"{table.title}/{label}/{column}"
    assert {c.path for c in inputs} == {"inputs", "targets"}


# text


def test_text__holds_what_the_report_holds(report):
    shown = viewer.text(report)
    assert shown.startswith("vgg-19 on 1x8 v100  ·  8 devices  ·  automap rules\nlegal  ·  ")
    assert "27 variables, 27 of 89 variable dimensions" in shown
    figures = {line[:20].strip(): line[20:] for line in shown.splitlines()}
    assert figures["step time"].split()[:2] == duration(report.step_seconds).split()
    assert f"replicated, {duration(report.replicate_seconds)}" in figures["step time"]
    assert duration(report.compute_seconds) in figures["compute"]
    assert duration(report.communication_seconds) in figures["communication"]
    assert f"{report.all_reduces} all-reduces" in figures["communication"]
    assert f"{report.utilization * 100:.1f} %" in figures["utilization"]
    assert size(report.memory.peak) in figures["memory per device"]
    for part in ("parameters", "optimizer", "inputs", "gradients", "activations"):
        assert f"{part} {size(getattr(report.memory, part))}" in shown
    assert "within the limit of 28.8 GB" in shown
    assert "17 (paper)  ·  proven upper bound 17, optimal" in figures["return"]


def test_text__table_names_every_partitioned_variable(t5):
    lines = viewer.text(t5).splitlines()
    table = [x.split() for x in lines[lines.index("") :] if re.match(r"\d+ ", x)]
    assert sum(int(count) for _, _, _, count, *_ in table) == len(t5.plan.partition) == 218
    seen = Counter()
    for digit, name, _, count, *_ in table:
        seen[int(digit)] += int(count)
        one = name.replace("0..11", "7")
        assert t5.plan.partition[one] == int(digit)
        assert ("0..11" in name) == (count == "12")
    assert seen == Counter(t5.plan.partition.values())
    assert "cannot be partitioned: 149 variables and 2 batch inputs, 99.4 MB" in lines
    assert "over the limit of 28.8 GB" in "\n".join(lines)


def test_text__names_every_reason(illegal):
    assert illegal.reasons
    shown = viewer.text(illegal)
    flat = re.sub(r"\s+", " ", shown)
    assert (
        "illegal · 29 variables, 30 of 89 variable dimensions" in flat and "step time" not in shown
    )
    for reason in illegal.reasons:
        assert reason in flat
    wrong = [x.split()[1] for x in shown.splitlines() if x.endswith(" !")]
    assert wrong == ["fc1/kernel", "fc1..2/bias", "fc2/kernel", "predictions/kernel"]


def test_text__fits_110_columns_and_color_changes_no_word(report, t5, illegal):
    long = dataclasses.replace(t5.problem.graph, name="x\x1b" * 200)
    odd = dataclasses.replace(t5, problem=dataclasses.replace(t5.problem, graph=long))
    for some in (report, t5, illegal, odd):
        plain = viewer.text(some)
        assert max(map(len, plain.splitlines())) <= 110
        assert "\x1b" not in plain
        painted = viewer.text(some, color=True)
        assert "\x1b" in painted and ESCAPES.sub("", painted) == plain


# figure


@pytest.mark.thorough
def test_figure__has_a_cell_for_every_variable_and_input(report, t5):
    for some in (report, t5):
        picture = viewer.figure(some)
        graph, expected = some.problem.graph, Counter()
        blocked = blocked_paths(some.problem)
        roles = [*graph.variables.tolist(), *some.problem.inputs.tolist()]
        for path in (graph.paths[i] for i in roles):
            where = some.plan.partition.get(path)
            if where is not None:
                expected[f"dimension {where}"] += 1
            elif path in blocked:
                expected["cannot be partitioned"] += 1
            else:
                expected["replicated"] += 1
        drawn = {gid: len(boxes(picture, gid)) for gid in expected}
        assert drawn == dict(expected)
        assert not boxes(picture, "fault") and not boxes(picture, "undecided")
        shown = "\n".join(words(picture))
        for gid in expected:
            assert f"{gid}: " in shown


@pytest.mark.thorough
def test_figure__colors_of_cells_correspond_to_the_plan(report):
    def colors(undecided=None):
        picture = viewer.figure(report, undecided)
        image = pixels(picture)
        place = {}
        for axes in picture.axes:
            columns = [label.get_text() for label in axes.get_xticklabels()]
            for y, row in enumerate(label.get_text() for label in axes.get_yticklabels()):
                for x, column in enumerate(columns):
                    place[f"{row}/{column}"] = axes.transData.transform((x + 0.3, y + 0.5))

        def color(path):
            x, y = place[path]
            return pixel(image, x / 100, 8 - y / 100)

        return color, place

    (color, place), blocked, seen = colors(), blocked_paths(report.problem), set()
    for index in report.problem.graph.variables:
        path = report.problem.graph.paths[index]
        where = report.plan.partition.get(path)
        expected = GRAY if where is None else STAGE_COLORS[where]
        if path not in blocked and path in place:  # those are hatched, these have no name
            assert color(path) == expected, path
            seen.add(expected)
    assert seen == {*STAGE_COLORS[:4], GRAY} and len(place) > 30
    assert color("fc2/bias") == GRAY and colors({"fc2/bias"})[0]("fc2/bias") == WHITE


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["vgg-19", *slow("t5-base", "bert-48")])
def test_figure__no_two_labels_overlap_or_leave_the_page(name):
    from matplotlib.text import Text

    some = best(name)
    bad = changed(some, **{next(iter(some.plan.partition)).replace("/", "_"): None})
    for given in (some, bad, some.problem):
        picture = viewer.figure(given)
        picture.canvas.draw()
        shown = [x for x in picture.findobj(Text) if x.get_text()]
        places = [(x, x.get_window_extent()) for x in shown]
        for k, (one, box) in enumerate(places):
            assert box.x0 >= 0 and box.x1 <= 1280 and box.y0 >= 0 and box.y1 <= 800, one
            for other, second in places[:k]:
                if one.get_rotation() and other.get_rotation():
                    continue  # slanted names beside one another, whose boxes are far too large
                across = min(box.x1, second.x1) - max(box.x0, second.x0)
                up = min(box.y1, second.y1) - max(box.y0, second.y0)
                assert across <= 1 or up <= 1, (one, other)


# save
