"""Text and pictures show what the judge's report holds, and nothing else."""

import dataclasses
import re
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from cases import slow

import parenvs
from parenvs import view as viewer
from parenvs.core.plan import judge
from parenvs.tasks.pipeline import view as pipeline_text
from parenvs.tasks.pipeline.spaces import CutSpace
from parenvs.tasks.pipeline.view import cut_labels
from parenvs.view.words import duration, size

ESCAPES = re.compile(r"\x1b\[[\d;]*m")


def problem(cluster="2x4:v100", micro_batches=6, pivots=40, weight=1e7, name="toy"):
    """A chain of random pivots, each with a variable."""
    rng = np.random.default_rng(0)
    forward = rng.uniform(1e-3, 3e-3, pivots)
    profile = parenvs.StageProfile(
        name=name,
        names=np.array([f"jit(forward)/block_{i // 4}/part_{i % 4}/add" for i in range(pivots)]),
        forward=forward,
        backward=2 * forward,
        cut_bytes=rng.uniform(1e5, 1e7, pivots),
        parameter_bytes=rng.uniform(0.5, 1.5, pivots) * weight,
    )
    return parenvs.Pipeline(profile, cluster, micro_batches=micro_batches)


def report_of(pipeline, cuts, device_cuts):
    pipeline = pipeline.with_stages(len(cuts) + 1)
    return judge(pipeline.plan(np.array(cuts), np.array(device_cuts)), pipeline)


LEGAL = ((12, 22, 31), (3, 4, 6))


@pytest.fixture
def pipeline():
    return problem()


@pytest.fixture
def report(pipeline):
    return report_of(pipeline, *LEGAL)


@pytest.fixture
def too_large():
    return report_of(problem(weight=2e9), *LEGAL)


@pytest.fixture
def malformed(pipeline):
    plan = pipeline.plan(np.array([12, 22, 31]), np.array([3, 4, 6]))
    return judge(dataclasses.replace(plan, cuts=(12, 5, 31), device_cuts=(3, 4, 99)), pipeline)


def words(picture):
    """Every text of a figure."""
    from matplotlib.text import Text

    return [x.get_text() for x in picture.findobj(Text) if x.get_text()]


def boxes(picture, gid):
    found = picture.findobj(lambda x: x.get_gid() == gid)
    return [path for collection in found for path in collection.get_paths()]


# text


def test_text__holds_what_the_report_holds(pipeline, report):
    lines = viewer.text(report).splitlines()
    head = "\n".join(lines[:2])
    assert "toy" in head and "4 stages" in head and "6 micro-batches of 16" in head
    assert f"L {report.length_seconds * 1e3:.1f} ms" in head
    assert f"simulated {report.simulated_seconds * 1e3:.1f} ms" in head
    assert f"value {report.value:.4f}" in head
    table = {line[0]: line.split() for line in lines if re.match(r"\d ", line)}
    assert list(table) == ["0", "1", "2", "3"]
    for (_, devices, pivots, name, *numbers), stage in zip(
        table.values(), report.stages, strict=True
    ):
        first, last = stage.device_first, stage.device_end - 1
        assert devices == (f"{first}–{last}" if first < last else f"{last}")
        assert pivots == f"{stage.first}–{stage.end - 1}"
        ends = {12: "block_2", 22: "block_5/part_1", 31: "block_7/part_2", 40: "end"}
        assert name == ends[stage.end]
        compute = (stage.forward_seconds + stage.backward_seconds) * 1e3
        expected = [
            compute,
            stage.transfer_seconds * 1e3,
            stage.all_reduce_seconds * 1e3,
            stage.memory_bytes / 1e9,
            stage.efficiency * 100,
        ]
        np.testing.assert_allclose([float(x) for x in numbers], expected, rtol=0.01, atol=6e-3)
    assert f"of {report.memory_limit_bytes / 1e9:.1f}" in "\n".join(lines)


def test_text__bar_is_in_proportion_to_seconds(pipeline, report):
    bar = next(x for x in viewer.text(report).splitlines() if x.startswith("chain"))[9:]
    ends = [i + 1 for i, x in enumerate(bar) if x == "┃"]
    share = pipeline.seconds_sum[list(LEGAL[0])] / pipeline.seconds_sum[-1]
    np.testing.assert_allclose(np.array(ends) / len(bar), share, atol=1 / len(bar))
    assert re.sub("[━┃ ]", "", bar) == "0123"


def test_text__gantt_shows_when_stages_are_busy(pipeline, report):
    lines = viewer.text(report).splitlines()
    rows = [x for x in lines if x.startswith(("stage ", "  link"))]
    assert [x.split()[0] for x in rows] == ["stage", "link"] * 3 + ["stage"]
    table = report.timetable
    span = max(report.length_seconds, report.simulated_seconds)
    for row, line in enumerate(rows):
        track = line[9:]
        begin = len(track) - len(track.lstrip())
        end = max(table.end[row].max(), table.reduce_end[row])
        assert begin == int(table.start[row, 0, 0] / span * 90 + 1e-9)
        assert len(track) == pytest.approx(end / span * 90, abs=1.01)


def test_text__names_every_reason(too_large, malformed):
    for bad in (too_large, malformed):
        shown = re.sub(r"\s+", " ", viewer.text(bad))
        assert bad.reasons and "illegal" in shown and "value -1" in shown
        for reason in bad.reasons:
            assert reason in shown
    over = [x for x in viewer.text(too_large).splitlines() if x.endswith(" !")]
    limit = too_large.memory_limit_bytes
    assert len(over) == sum(stage.memory_bytes > limit for stage in too_large.stages) > 0


def test_text__without_a_plan_shows_no_stage(pipeline, malformed):
    for nothing in (pipeline, malformed):
        shown = viewer.text(nothing)
        assert "┃" not in shown and "no cut" in shown and "stage 0" not in shown
    assert "40 pivots" in viewer.text(pipeline)


def test_text__fits_100_columns_and_colour_changes_no_word(report, too_large, malformed):
    long = problem("16x8:v100", pivots=300, name="x" * 300)
    many = report_of(long, range(4, 260, 4), range(1, 65))
    for some in (report, too_large, malformed, many):
        plain = viewer.text(some)
        assert max(map(len, plain.splitlines())) <= 100
        assert "\x1b" not in plain
        painted = viewer.text(some, colour=True)
        assert ESCAPES.sub("", painted) == plain
        assert ("\x1b" in painted) == bool(some.stages)


def test_text__control_characters_of_a_file_reach_no_terminal():
    shown = viewer.text(evil := problem(name="a\x1b[2Jb"), report_of(evil, *LEGAL))
    assert "\x1b" not in shown and "a?[2Jb" in shown


def test_units():
    assert duration(1.23456) == "1.235 s"
    assert duration(0.05678) == "56.78 ms"
    assert duration(3e-7) == "300.0 ns"
    assert duration(0) == "0 s"
    assert size(28.8e9) == "28.8 GB"
    assert size(999.9e6) == "1.00 GB"
    assert size(12) == "12 B"


# figure


def test_figure__has_a_box_for_every_pass_at_its_time(pipeline, report):
    picture = viewer.figure(report)
    passes = boxes(picture, "passes")
    table, stages = report.timetable, len(report.stages)
    assert len(passes) == (2 * stages - 1) * 2 * pipeline.micro_batches
    begins = sorted(path.vertices[:, 0].min() for path in passes)
    np.testing.assert_allclose(begins, np.sort(table.start.ravel()) * 1e3, atol=1e-9)
    reduces = boxes(picture, "all-reduce")
    expected = [s.all_reduce_seconds * 1e3 for s in report.stages if s.all_reduce_seconds > 0]
    assert 0 < len(expected) < stages  # a stage of one device has none
    widths = [np.ptp(path.vertices[:, 0]) for path in reduces]
    np.testing.assert_allclose(sorted(widths), sorted(expected))


def test_figure__says_what_the_report_holds(pipeline, report):
    shown = "\n".join(words(viewer.figure(report)))
    assert "toy on 2x4 v100" in shown
    assert f"L {duration(report.length_seconds)}" in shown
    assert f"simulated {duration(report.simulated_seconds)}" in shown
    assert f"{report.value:.4f}" in shown
    for number, stage in enumerate(report.stages):
        plural = "s" if stage.device_end - stage.device_first > 1 else ""
        assert f"{number} · device{plural} {pipeline_text.device_range(stage)}" in shown
        assert f"{stage.efficiency:.1%} busy" in shown
        assert size(stage.memory_bytes) in shown
    for label in cut_labels(pipeline.profile, report.plan.cuts):
        assert label in shown


@pytest.mark.slow
def test_figure__no_two_labels_overlap_or_leave_the_page(pipeline, report, too_large):
    close = report_of(pipeline, (2, 3, 4, 5, 6, 38, 39), (1, 2, 3, 4, 5, 6, 7))
    names = [f"{'scope' * 8}_{i}/{'part' * 8}" for i in range(40)]
    profile = dataclasses.replace(pipeline.profile, names=np.array(names, dtype=object))
    long = report_of(
        parenvs.Pipeline(profile, "2x4:v100", micro_batches=6), (12, 38, 39), (3, 4, 6)
    )
    for some in (report, too_large, close, long):
        picture = viewer.figure(some)
        picture.canvas.draw()
        from matplotlib.text import Text

        unseen = set()  # ticks beyond the ends of an axis, which are not drawn
        for axis in (x for axes in picture.axes for x in (axes.xaxis, axes.yaxis)):
            low, high = sorted(axis.get_view_interval())
            unseen |= {x.label1 for x in axis.get_major_ticks() if not low <= x.get_loc() <= high}
        shown = [x for x in picture.findobj(Text) if x.get_text() and x not in unseen]
        places = [(x.get_text(), x.get_window_extent()) for x in shown]
        places = [(x, box) for x, box in places if box.width > 1]
        for k, (one, box) in enumerate(places):
            assert box.x0 >= 0 and box.x1 <= 1280 and box.y0 >= 0 and box.y1 <= 800, one
            for other, second in places[:k]:
                across = min(box.x1, second.x1) - max(box.x0, second.x0)
                up = min(box.y1, second.y1) - max(box.y0, second.y0)
                assert across <= 1 or up <= 1, (one, other)


@pytest.mark.thorough
def test_figure__marks_stages_over_the_memory_limit(report, too_large):
    from matplotlib.colors import to_hex
    from matplotlib.patches import Patch

    def red(picture):
        return [x for x in picture.findobj(Patch) if to_hex(x.get_facecolor()) == "#c1121f"]

    assert not red(viewer.figure(report))
    picture = viewer.figure(too_large)
    over = sum(x.memory_bytes > too_large.memory_limit_bytes for x in too_large.stages)
    assert len(red(picture)) == 2 * over > 0  # in the strip and among the memory bars
    for reason in too_large.reasons:
        assert reason in words(picture)


@pytest.mark.thorough
def test_figure__of_a_malformed_plan_gives_the_reasons(pipeline, malformed):
    picture = viewer.figure(malformed)
    assert set(malformed.reasons) <= set(words(picture))
    assert not boxes(picture, "passes")


@pytest.mark.thorough
def test_figure__many_reasons_and_stages_and_one_micro_batch():
    many = problem("16x8:v100", micro_batches=1, pivots=300, weight=1e12)
    worst = report_of(many, range(4, 260, 4), range(1, 65))
    picture = viewer.figure(worst)
    assert len(boxes(picture, "passes")) == 129 * 2
    assert any(re.fullmatch(r"and \d+ lines more", x) for x in words(picture))


@pytest.mark.thorough
def test_figure__heading_of_a_long_name_stays_on_the_page():
    from matplotlib.text import Text

    odd = problem(name="W" * 300)
    for some in (odd, report_of(odd, *LEGAL)):
        picture = viewer.figure(some)
        picture.canvas.draw()
        (title,) = (x for x in picture.findobj(Text) if "WWW" in x.get_text())
        assert title.get_window_extent().x1 <= 1280


@pytest.mark.thorough
def test_figure__dollar_signs_are_no_formula():
    odd = problem(name="a $\\frac{$ b")
    assert viewer.rgb_array(report_of(odd, *LEGAL)).any()


# rgb_array


@pytest.mark.slow
def test_rgb_array__is_fresh_and_depends_on_the_plan(pipeline, report, malformed):
    first = viewer.rgb_array(report)
    assert first.shape == (800, 1280, 3) and first.dtype == np.uint8
    assert first.flags.owndata and first.flags.c_contiguous and first.flags.writeable
    second = viewer.rgb_array(report)
    np.testing.assert_array_equal(first, second)
    first[:] = 0
    assert second.any() and not np.shares_memory(first, second)
    others = [pipeline, malformed, report_of(pipeline, (12, 22, 32), (3, 4, 6))]
    for other in others:
        picture = viewer.rgb_array(other)
        assert picture.shape == second.shape and (picture != second).any()


@pytest.mark.slow
def test_rgb_array__does_not_depend_on_the_users_style_or_change_it(pipeline, report):
    import matplotlib

    plain = viewer.rgb_array(report)
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30, "axes.grid": True}):
        before = dict(matplotlib.rcParams)
        np.testing.assert_array_equal(viewer.rgb_array(report), plain)
        assert dict(matplotlib.rcParams) == before


@pytest.mark.slow
def test_import__loads_no_matplotlib_and_drawing_no_pyplot():
    code = """
import sys, parenvs, parenvs.tasks.pipeline.figure, gymnasium as gym
assert "matplotlib" not in sys.modules
env = gym.make("PipelineCut-v0", instance="vgg-19", render_mode="rgb_array")
env.reset()
env.render()
assert "matplotlib" in sys.modules and "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# save


@pytest.mark.parametrize(
    ("suffix", "begin"),
    [*slow((".svg", b"<?xml"), (".png", b"\x89PNG\r\n\x1a\n"), (".pdf", b"%PDF-"))],
)
def test_save__is_deterministic(tmp_path, monkeypatch, pipeline, report, suffix, begin):
    one, two = tmp_path / f"one{suffix}", tmp_path / "new" / f"two{suffix}"
    viewer.save(one, report)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")  # what a date in the file would follow
    viewer.save(str(two), report)
    assert one.read_bytes().startswith(begin)
    assert one.read_bytes() == two.read_bytes()


def test_save__that_fails_leaves_the_old_file(tmp_path, monkeypatch, pipeline, report):
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


def test_save__refuses_other_endings(tmp_path, pipeline, report):
    with pytest.raises(ValueError, match=r"plan\.jpg.*\.png, \.svg, \.pdf"):
        viewer.save(tmp_path / "plan.jpg", report)
    assert not list(tmp_path.iterdir())


# the environment


@pytest.mark.parametrize("mode", ["ansi", *slow("rgb_array")])
def test_env__renders_every_step(mode):
    env = gym.make("PipelineCut-v0", instance="vgg-19", cluster="B", render_mode=mode)
    _, info = env.reset(seed=0)
    pictures = [env.render()]
    over = False
    while not over:
        action = env.action_space.sample(info["action_mask"])
        _, reward, over, _, info = env.step(action)
        pictures.append(env.render())
    assert len(pictures) == 3
    if mode == "ansi":
        assert ["┃" in x for x in pictures] == [False, True, True]
        assert f"value {reward:.4f}" in pictures[-1]
    else:
        assert all(x.shape == (800, 1280, 3) and x.dtype == np.uint8 for x in pictures)
        assert (pictures[0] != pictures[1]).any() and (pictures[1] != pictures[2]).any()


@pytest.mark.slow
def test_figure__is_drawn_in_time():
    import time

    big = problem("8x8:v100", micro_batches=64, pivots=6000)
    space = CutSpace.build(big.with_stages(8))
    chosen: list[int] = []
    while len(chosen) < 7:
        chosen.append(int(np.flatnonzero(space.legal(chosen))[0]))
    plan = big.plan(*space.plan(chosen))
    report = judge(plan, big)
    viewer.rgb_array(report)
    begin = time.process_time()
    viewer.rgb_array(report)
    assert time.process_time() - begin < 3  # 0.4 s here; some room for slow machines
