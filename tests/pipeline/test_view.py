"""Pipelines in text and pictures, and short names of cuts."""

import dataclasses
import re

import numpy as np
import pytest
from cases import each
from pictures import boxes, words

import parenvs
from parenvs import StageProfile
from parenvs import view as viewer
from parenvs.core.plan import judge
from parenvs.tasks.pipeline import view as pipeline_text
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
        assert "stage 0" not in shown and "  pivots" not in shown
    assert "no cut yet" in viewer.text(pipeline)
    assert "40 pivots" in viewer.text(pipeline)


def test_text__fits_110_columns_and_color_changes_no_word(report, too_large, malformed):
    long = problem("16x8:v100", pivots=300, name="x" * 300)
    many = report_of(long, range(4, 260, 4), range(1, 65))
    for some in (report, too_large, malformed, many):
        plain = viewer.text(some)
        assert max(map(len, plain.splitlines())) <= 110
        assert "\x1b" not in plain
        painted = viewer.text(some, color=True)
        assert ESCAPES.sub("", painted) == plain
        assert ("\x1b" in painted) == bool(some.stages)


def test_text__control_characters_of_a_file_reach_no_terminal():
    shown = viewer.text(evil := problem(name="a\x1b[2Jb"), report_of(evil, *LEGAL))
    assert "\x1b" not in shown and "a?[2Jb" in shown


# figure


@pytest.mark.thorough
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


def chain(names, source="sha256:a graph"):
    count = len(names)
    ones = np.ones(count)
    return StageProfile(
        "toy", np.array(names, dtype=object), ones, ones, ones, ones,
        source=source,
    )  # fmt: skip


def label(names, cut, width=48, **options):
    return cut_labels(chain(names, **options), [cut], width)[0]


def layers(before, scope, parts, count=3, head="lm_head/dot_general"):
    """Names of ``count`` layers, each with the same parts, between an embedding and a head."""
    names = [f"{before}/embed_tokens/gather"]
    names += [f"{before}/{scope}/{i}/{part}" for i in range(count) for part in parts]
    return [*names, f"{before}/{head}"]


GPT2 = layers(
    "jit(train_step)/jvp(FlaxGPT2LMHeadModule)/transformer",
    "h",
    ["ln_1/mul", "attn/c_attn/dot_general", "attn/c_proj/dot_general", "add", "mlp/c_fc/add"],
)
LLAMA = layers(
    "jit(train_step)/jvp(FlaxLlamaForCausalLMModule)/model",
    "layers",
    ["input_layernorm/mul", "self_attn/q_proj/dot_general", "self_attn/o_proj/dot_general", "add",
     "mlp/jit(silu)/mul", "mlp/down_proj/dot_general", "add"],
)  # fmt: skip
RESNET = [
    "jit(train_step)/jvp()/transpose",
    *[
        f"jit(train_step)/jvp(FlaxResNetForImageClassificationModule)/resnet/encoder/stages/{stage}"
        f"/layers/{i}/{part}"
        for stage, count in ((0, 2), (1, 3))
        for i in range(count)
        for part in ("layer/0/convolution/conv_general_dilated", "layer/0/normalization/mul",
                     "layer/1/convolution/conv_general_dilated", "layer/1/normalization/mul", "add")
    ],
    "jit(train_step)/jvp()/reduce_sum",
]  # fmt: skip
BART = [
    f"jit(train_step)/jvp(FlaxBartForConditionalGenerationModule)/model/{side}/layers/{i}/{part}"
    for side, parts in (
        ("encoder", ("self_attn/dot_general", "fc1/dot_general", "fc2/dot_general")),
        ("decoder", ("self_attn/dot_general", "encoder_attn/dot_general", "fc1/dot_general")),
    )
    for i in range(2)
    for part in parts
]
ROBERTA = layers(
    "jit(train_step)/jvp(FlaxRobertaForMaskedLMModule)/roberta/encoder",
    "layer",
    ["attention/self/query/dot_general", "attention/self/...hqk,...khd->...qhd/dot_general",
     "attention/output/dense/dot_general", "output/dropout/jit(_bernoulli)/jit(_uniform)/xor"],
)  # fmt: skip


@each(
    ("names", "cut", "expected"),
    [
        (GPT2, 1, "after embed_tokens"),
        (GPT2, 6, "after transformer/h/0"),
        (GPT2, 9, "after transformer/h/1/attn"),  # the addition is in the layer's scope alone
        (GPT2, 8, "after transformer/h/1/attn/c_attn"),
        (GPT2, 16, "after h"),  # all layers end with the last one
        (LLAMA, 8, "after model/layers/0"),
        (LLAMA, 11, "after model/layers/1/self_attn"),
        (LLAMA, 12, "before model/layers/1/mlp"),
        (LLAMA, 13, "before model/layers/1/mlp/down_proj"),
        (RESNET, 6, "after stages/0/layers/0"),
        (RESNET, 11, "after encoder/stages/0"),
        (BART, 3, "after encoder/layers/0"),
        (BART, 6, "after encoder"),
        (BART, 8, "after decoder/layers/0/encoder_attn"),
        (ROBERTA, 3, "after encoder/layer/0/attention/self"),
        (ROBERTA, 2, "after encoder/layer/0/attention/self/query"),
        (ROBERTA, 5, "after encoder/layer/0"),
        (ROBERTA, len(ROBERTA), "end"),
    ],
)
def test_cut_labels__public_models(names, cut, expected):
    assert label(names, cut) == expected


@each("names", [GPT2, LLAMA, RESNET, BART, ROBERTA])
@each("width", [48, 23])
def test_cut_labels__are_distinct_and_short(names, width):
    labels = cut_labels(chain(names), range(1, len(names) + 1), width)
    assert len(set(labels)) == len(names)
    assert max(len(x.removeprefix("after ")) for x in labels) <= width


def test_cut_labels__inside_a_scope_are_instructions():
    names = [f"jit(f)/jvp(net)/layer_{i}/{x}" for i in (0, 1) for x in ("dot_general", "add") * 2]
    chained = chain(names)
    assert cut_labels(chained, [1, 4]) == ["after net/layer_0/dot", "after net/layer_0"]
    assert cut_labels(chained, [1, 3]) == ["after pivot 0", "after pivot 2"]


def test_cut_labels__measured_chains():
    names = ["conv1", "pool", "block/fc", "block/fc", "fc2"]
    assert [label(names, cut, source="") for cut in (1, 2, 3, 4)] == [
        "after conv1",
        "after pool",
        "after fc",
        "after block",
    ]
