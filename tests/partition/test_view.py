"""Text and pictures of partition plans show what the judge's report holds, and nothing else."""

import dataclasses
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from cases import slow

from parenvs import judge
from parenvs import view as viewer
from parenvs.agents.partition.exact import exact_partition
from parenvs.tasks.partition.figure import Lists, Sheet
from parenvs.tasks.partition.problem import load_partitioning
from parenvs.tasks.partition.view import (
    BLOCKED,
    REPLICATED,
    UNDECIDED,
    Cell,
    cells,
    grid,
)
from parenvs.view.layers import layers, merged
from parenvs.view.page import STAGE_COLOURS, Page, style
from parenvs.view.words import duration, size

ESCAPES = re.compile(r"\x1b\[[\d;]*m")
GREY, PALE, WHITE = "#D3D3D3", "#F5F5F5", "#FFFFFF"


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


def words(picture):
    from matplotlib.text import Text

    return [x.get_text() for x in picture.findobj(Text) if x.get_text()]


def boxes(picture, gid):
    found = picture.findobj(lambda x: x.get_gid() == gid)
    return [path for collection in found for path in collection.get_paths()]


def pixel(picture, x, y):
    """Colour at a place given in inches."""
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


def cell(path, state=REPLICATED, shape=(8, 8)):
    return Cell(path, shape, state, False, 256.0, 256.0)


# names


def test_layers__of_many_conventions():
    def of(*paths):
        return [layer for layer, _ in layers(paths)]

    assert of("encoder/layer_0/conv1/bias", "encoder/layer_1/conv1/bias", "norm/bias") == [
        "encoder/layer_0", "encoder/layer_1", "",
    ]  # fmt: skip
    assert of("block1_conv1/kernel", "block1_conv2/kernel") == ["block1_conv1", "block1_conv2"]
    assert of("h/0/attn/w", "h/11/mlp/c1/w", "wte") == ["h/0", "h/11", ""]
    assert of("stages/0/blocks/3/w") == ["stages/0/blocks/3"]
    assert of("net1/layer_0/w", "net1/layer_1/w") == ["net1/layer_0", "net1/layer_1"]
    assert of("0/0", "0/1", "w1", "", "a/b/") == ["0", "0", "", "", ""]


RESNET = [
    f"params/resnet/encoder/stages/{stage}/layers/{i}/{name}"
    for stage, count in enumerate((3, 4, 6, 3))
    for i in range(count)
    for name in (
        *(f"layer/{k}/{part}" for k in range(3) for part in ("convolution/kernel", "norm/scale")),
        *(["shortcut/convolution/kernel"] if i == 0 else []),
    )
]
"""Variables of a ResNet-50 in flax, whose layers are nested three deep."""


def test_layers__nested_ones_make_a_table_of_about_as_many_rows_as_columns():
    found = dict(zip(RESNET, layers(RESNET), strict=True))
    assert found["params/resnet/encoder/stages/2/layers/5/layer/1/norm/scale"] == (
        "params/resnet/encoder/stages/2/layers/5",
        "layer/1/norm/scale",
    )
    assert len({layer for layer, _ in found.values()}) == 16
    named = [f"stage_{i}/block_{j}/conv_{k}/w{n}" for i in range(4) for j in range(9)
             for k in range(3) for n in range(2)]  # fmt: skip
    assert {layer for layer, _ in layers(named)} == {
        f"stage_{i}/block_{j}" for i in range(4) for j in range(9)
    }


def test_grid__of_a_resnet_from_flax():
    """No path is cut: what all share is left out, and several numbers stand for a layer."""
    single = ["params/classifier/1/kernel", "params/classifier/1/bias"]
    tables, groups = grid([cell(path) for path in (*RESNET, *single)])
    ((title, columns, rows),) = [(t.title, t.columns, t.rows) for t in tables]
    assert title == "resnet/encoder/stages/#/layers/#" and len(columns) == 7
    assert [row.label for row in rows][:4] == ["0/0", "0/1", "0/2", "1/0"] and len(rows) == 16
    assert [(g.title, [name for name, _ in g.cells]) for g in groups] == [
        ("classifier/1", ["kernel", "bias"])  # one layer alone is no table
    ]
    counted, _ = grid([cell(f"layers/{k}/w") for k in range(3)])
    assert counted[0].title == "layers"  # what the numbers count stays


def test_grid__equal_neighbours_share_a_row_where_there_are_many():
    paths = [f"stages/{s}/blocks/{b}/w{n}" for s in range(2) for b in range(20) for n in range(20)]
    ((table,), _) = grid([cell(x, int("stages/1/blocks/3" in x)) for x in paths])
    assert [row.label for row in table.rows] == ["0/0–1/2", "1/3", "1/4–19"]
    assert [len(row.cells[0]) for row in table.rows] == [23, 1, 16]
    ((few,), _) = grid([cell(f"layer_{k}/w") for k in range(32)])
    assert len(few.rows) == 32


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
    tables, groups = grid(variables)
    assert [(t.title, len(t.rows), len(t.columns)) for t in tables] == [
        ("encoder", 12, 12),
        ("decoder", 12, 18),
    ]
    assert [(g.title, len(g.cells)) for g in groups] == [("", 1), ("encoder", 3), ("decoder", 3)]
    shown = [c.path for t in tables for _, held in t.rows for some in held for c in some]
    shown += [c.path for g in groups for _, c in g.cells]
    assert sorted(shown) == sorted(c.path for c in variables)
    for table in tables:
        for label, held in table.rows:
            for column, some in zip(table.columns, held, strict=True):
                assert [c.path for c in some] == [f"{table.title}/{label}/{column}"]
    assert {c.path for c in inputs} == {"inputs", "targets"}


def test_grid__condenses_what_is_too_large():
    deep = [cell(f"dense_{k}/{n}", k % 2) for k in range(1000) for n in ("kernel", "bias")]
    ((table,), groups) = grid(deep)
    assert not groups and len(table.rows) <= 64
    assert table.rows[0][0] == "dense_0–15" and table.rows[-1][0] == "dense_992–999"
    assert sum(len(some) for _, held in table.rows for some in held) == 2000
    wide = [cell(f"layer_{k}/w_{n}") for k in range(2) for n in range(300)]
    tables, groups = grid(wide)
    assert not tables and sum(len(g.cells) for g in groups) == 600
    odd = [cell(f"kind{chr(97 + k)}_{n}/w{k}") for k in range(20) for n in range(3)]
    tables, groups = grid(odd)
    assert 0 < len(tables) <= 4
    held = sum(len(some) for t in tables for _, row in t.rows for some in row)
    assert held + sum(len(g.cells) for g in groups) == 60


@pytest.mark.parametrize("count", [1, 40, 1000, *slow(10_000, 100_000)])
def test_lists__show_every_variable_of_a_flat_graph(count):
    from matplotlib.figure import Figure

    with style():
        page = Page(Figure(figsize=(12.8, 8)))
        _, groups = grid([cell(f"w{k}", k % 2) for k in range(count)])
        lists = Lists(groups, [cell("x")], 9.0, 6.5, False)
        assert lists.height <= 6.5 + 1e-9
        sheet = Sheet(page)
        lists.draw(sheet, 0.3, 1.2)
        sheet.finish()
    drawn = sum(len(boxes(page.figure, f"dimension {d}")) for d in (0, 1))
    if count <= 10_000:
        assert drawn == count
    else:
        each = int(re.search(r"(\d+) a cell", "\n".join(words(page.figure)))[1])
        assert drawn == 2 * -(-count // each)  # both states in every cell
    corners = np.concatenate([p.vertices for p in boxes(page.figure, "dimension 0")])
    assert corners[:, 0].max() <= 9.3 and corners[:, 1].max() <= 7.7


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
    assert f"{report.utilisation * 100:.1f} %" in figures["utilisation"]
    assert size(report.memory.peak) in figures["memory per device"]
    for part in ("parameters", "optimiser", "inputs", "gradients", "activations"):
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


def test_text__inputs_and_undecided(report):
    shown = viewer.text(best("vgg-19", "shardy", "inputs"))
    assert "0 variables and 2 batch inputs, 2 of 5 input dimensions" in shown
    assert re.search(r"0 +images \(batch input\) +64x224x224x3 +1 ", shown)
    some = {"fc2/bias", "predictions/kernel", "images"}
    shown = viewer.text(report, undecided=some)
    assert "\n3 undecided  ·  27 variables" in shown
    assert "\nundecided: 2 variables and 1 batch input," in shown


def test_text__nothing_decided(report):
    shown = viewer.text(report.problem)
    flat = re.sub(r"\s+", " ", shown)
    assert "nothing decided yet · 38 variables with 89 dimensions" in flat
    assert f"replicated step {duration(report.replicate_seconds)} nothing is partitioned" in flat
    count = sum(c.state == UNDECIDED for c in cells(report.problem, None)[0])
    assert f"\nundecided: {count} variables and 1 batch input, " in shown


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


def test_text__fits_110_columns_and_colour_changes_no_word(report, t5, illegal):
    long = dataclasses.replace(t5.problem.graph, name="x\x1b" * 200)
    odd = dataclasses.replace(t5, problem=dataclasses.replace(t5.problem, graph=long))
    for some in (report, t5, illegal, odd):
        plain = viewer.text(some)
        assert max(map(len, plain.splitlines())) <= 110
        assert "\x1b" not in plain
        painted = viewer.text(some, colour=True)
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
        key = Counter(dict.fromkeys(expected, 1))
        drawn = {gid: len(boxes(picture, gid)) for gid in expected}
        assert drawn == dict(expected + key)
        assert not boxes(picture, "fault") and not boxes(picture, "undecided")
        shown = words(picture)
        for gid in expected:
            assert gid in shown


@pytest.mark.thorough
def test_rgb_array__colours_of_cells_correspond_to_the_plan(report):
    from matplotlib.text import Text

    picture = viewer.figure(report)
    image = viewer.rgb_array(report)
    place = {t.get_text(): t.get_position() for t in picture.findobj(Text)}
    blocked, seen = blocked_paths(report.problem), set()
    for index in report.problem.graph.variables:
        path = report.problem.graph.paths[index]
        row, column = path.split("/")
        x, y = place[column][0] + 0.75, place[row][1]  # right of the words in the cell
        where = report.plan.partition.get(path)
        grey = PALE if path in blocked else GREY
        expected = STAGE_COLOURS[where] if where is not None else grey
        assert pixel(image, x, y) == expected, path
        seen.add(expected)
    assert seen == {*STAGE_COLOURS[:4], GREY, PALE}
    opened = viewer.rgb_array(report, {"fc2/bias"})
    x, y = place["bias"][0] + 0.75, place["fc2"][1]
    assert pixel(image, x, y) == GREY and pixel(opened, x, y) == WHITE


def test_figure__says_what_the_report_holds(report, t5):
    for some in (report, t5):
        shown = words(viewer.figure(some))
        text = "\n".join(shown)
        faster = some.replicate_seconds / some.step_seconds
        assert f"step time  ·  {faster:.2f} × as fast as replicated" in shown
        for seconds in (some.replicate_seconds, some.step_seconds, some.compute_seconds):
            assert duration(seconds) in shown
        assert duration(some.communication_seconds) in shown
        for part in ("parameters", "optimiser", "inputs", "gradients", "activations"):
            assert size(getattr(some.memory, part)) in shown
        assert f"utilisation {some.utilisation * 100:.1f} %" in text
        assert f"{some.variables} variables, " in text and "(paper), optimal" in text
    assert "does not fit" in text


def test_figure__bars_are_in_proportion(report):
    from matplotlib.patches import Rectangle

    picture = viewer.figure(report)
    width = {}
    for bar in picture.findobj(Rectangle):
        width.setdefault(bar.get_gid(), []).append(bar.get_width())
    replicated, compute = width["compute"]
    (communication,) = width["communication"]
    assert compute / replicated == pytest.approx(report.compute_seconds / report.replicate_seconds)
    share = report.communication_seconds / report.replicate_seconds
    assert communication / replicated == pytest.approx(share)
    (activations,), (optimiser,) = width["activations"], width["optimiser"]
    memory = report.memory
    assert optimiser / activations == pytest.approx(memory.optimiser / memory.activations)


def test_figure__memory_over_the_limit_is_red(report, t5):
    from matplotlib.colors import to_hex
    from matplotlib.text import Text

    def red(some):
        picture = viewer.figure(some)
        return [t.get_text() for t in picture.findobj(Text) if to_hex(t.get_color()) == "#c1121f"]

    assert red(report) == []
    assert red(t5) == [f"{size(t5.memory.peak)} of 28.8 GB", "limit"]


def test_figure__of_an_illegal_plan(report, illegal):
    picture = viewer.figure(illegal)
    shown = "\n".join(words(picture))
    flat = re.sub(r"\s+", " ", shown)
    assert "illegal  ·  " in shown and "step time" not in shown
    assert illegal.reasons[0] in flat
    wrong = {c.path for c in cells(illegal.problem, illegal)[0] if c.fault}
    assert {"fc1/kernel", "fc1/bias", "fc2/kernel", "fc2/bias", "predictions/kernel"} == wrong
    assert len(boxes(picture, "fault")) == len(wrong) + 1  # one in the key
    left_out = changed(report, fc1_bias=None)
    assert {c.path for c in cells(left_out.problem, left_out)[0] if c.fault} == {"fc1/bias"}
    unknown = changed(report, fc1_bias=3)
    assert "fc1/bias" in {c.path for c in cells(unknown.problem, unknown)[0] if c.fault}


def test_figure__many_reasons_are_cut_short(t5):
    paths = [p for p in t5.plan.partition if not p.endswith("self/q")]
    plan = dataclasses.replace(t5.plan, partition={p: t5.plan.partition[p] for p in paths})
    bad = judge(plan, t5.problem)
    assert len(bad.reasons) > 10
    shown = words(viewer.figure(bad))
    assert f"and {len(bad.reasons) - 3} more" in shown


def test_figure__nothing_decided(report):
    picture = viewer.figure(report.problem)
    variables, inputs = cells(report.problem, None)
    assert {c.state for c in variables} == {BLOCKED, UNDECIDED}
    count = sum(c.state == UNDECIDED for c in (*variables, *inputs))
    assert len(boxes(picture, "undecided")) == count + 1
    shown = "\n".join(words(picture))
    assert "nothing decided yet  ·  38 variables with 89 dimensions" in shown
    assert duration(report.replicate_seconds) in shown and "this plan" not in shown


def test_figure__undecided_cells(t5):
    keep = {k: v for k, v in t5.plan.partition.items() if k.startswith("encoder")}
    part = judge(dataclasses.replace(t5.plan, partition=keep), t5.problem)
    rest = set(t5.plan.partition) - set(keep)
    picture = viewer.figure(part, undecided=rest | {"embedding"})
    # The embedding cannot be partitioned, so there is nothing to decide.
    assert len(boxes(picture, "undecided")) == len(rest) + 1
    assert f"{len(rest)} undecided  ·  {len(keep)} variables" in "\n".join(words(picture))


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


@pytest.mark.thorough
def test_figure__long_and_odd_names_stay_on_the_page(t5):
    from matplotlib.text import Text

    graph = t5.problem.graph
    strings = [x.replace("encoder/layer_", "$\\frac{\x1b" * 20 + "/layer_") for x in graph.strings]
    data = np.frombuffer("\n".join(strings).encode(), dtype=np.uint8).copy()
    odd = dataclasses.replace(graph, name="W" * 300, string_table=data)
    problem = dataclasses.replace(t5.problem, graph=odd)
    picture = viewer.figure(problem)
    picture.canvas.draw()
    for text in (x for x in picture.findobj(Text) if x.get_text()):
        box = text.get_window_extent()
        assert box.x0 >= 0 and box.x1 <= 1280 and "\x1b" not in text.get_text(), text


# rgb_array


@pytest.mark.slow
def test_rgb_array__is_fresh_and_depends_on_the_plan(report, illegal):
    first = viewer.rgb_array(report)
    assert first.shape == (800, 1280, 3) and first.dtype == np.uint8
    assert first.flags.owndata and first.flags.c_contiguous and first.flags.writeable
    second = viewer.rgb_array(report)
    np.testing.assert_array_equal(first, second)
    first[:] = 0
    assert second.any() and not np.shares_memory(first, second)
    for other in (report.problem, illegal):
        assert (viewer.rgb_array(other) != second).any()


@pytest.mark.thorough
def test_rgb_array__does_not_depend_on_the_users_style_or_change_it(report):
    import matplotlib

    plain = viewer.rgb_array(report)
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30, "axes.grid": True}):
        before = dict(matplotlib.rcParams)
        np.testing.assert_array_equal(viewer.rgb_array(report), plain)
        assert dict(matplotlib.rcParams) == before


@pytest.mark.slow
def test_import__loads_no_matplotlib_and_drawing_no_pyplot():
    code = """
import sys
from parenvs.cluster import choose_cluster
from parenvs.tasks.partition.problem import load_partitioning
from parenvs import view as viewer
import parenvs.tasks.partition.figure
import parenvs.tasks.partition.view
assert "matplotlib" not in sys.modules
viewer.rgb_array(load_partitioning("vgg-19", choose_cluster()))
assert "matplotlib" in sys.modules and "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# save


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("suffix", "begin"),
    [(".png", b"\x89PNG\r\n\x1a\n"), (".svg", b"<?xml"), *slow((".pdf", b"%PDF-"))],
)
def test_save__is_deterministic(tmp_path, monkeypatch, report, suffix, begin):
    one, two = tmp_path / f"one{suffix}", tmp_path / "new" / f"two{suffix}"
    viewer.save(one, report)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")  # what a date in the file would follow
    viewer.save(str(two), report)
    assert one.read_bytes().startswith(begin)
    assert one.read_bytes() == two.read_bytes()


def test_save__that_fails_leaves_the_old_file(tmp_path, monkeypatch, report):
    from matplotlib.figure import Figure

    path = tmp_path / "plan.png"
    path.write_bytes(b"old")

    def half(self, stream, **_):
        stream.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(OSError, match="disk full"):
        viewer.save(path, report)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_save__refuses_other_endings(tmp_path, report):
    with pytest.raises(ValueError, match=r"plan\.jpg.*\.png, \.svg, \.pdf"):
        viewer.save(tmp_path / "plan.jpg", report)
    assert not list(tmp_path.iterdir())
