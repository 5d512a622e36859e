"""Readers of published rows and measured steps, what they assume, and ``parenvs bench hybrid``."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from cases import each
from commands import caller

import parenvs
from parenvs.bench.hybrid import steps as measured
from parenvs.bench.hybrid.baselines import constant_mfu, leave_one_out, orders, totals
from parenvs.bench.hybrid.constants import CONSTANTS
from parenvs.bench.hybrid.errors import groups, rank_correlation
from parenvs.bench.hybrid.hardware import server_of
from parenvs.bench.hybrid.measured import MeasuredLayer
from parenvs.bench.hybrid.predict import predictions
from parenvs.bench.hybrid.rows import SHIPPED, Published, checked, read_rows, shipped
from parenvs.errors import ParenvsError
from parenvs.tasks.hybrid.layers import Split
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.space import UniformSpace
from parenvs.tasks.hybrid.stack import STACKS

ROW = {
    "source": "somebody", "name": "7b", "device": "h100", "layers": 32, "hidden": 4096, "heads": 32,
    "seq": 4096, "vocab": 32000, "tp": 2, "pp": 2, "gpus": 16, "batch": 128, "micro_batch": 1,
    "tokens_per_s_per_gpu": 9000.0,
}  # fmt: skip


@pytest.fixture
def call(monkeypatch, capfd, tmp_path):
    return caller(monkeypatch, capfd, tmp_path)


def of_row(**changes):
    row = {key: value for key, value in {**ROW, **changes}.items() if value is not None}
    found, skipped = predictions(Published("f.json", (checked(row, 0),), {}, {}))
    assert not skipped
    return found


def write(folder, content):
    path = folder / "rows.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@each(
    ("changes", "words"),
    [
        ({"hidden": None}, "field 'hidden' is missing"),
        ({"layers": None}, "field 'layers' is missing"),
        ({"hidden": 4096.5}, "hidden must be a whole number from 1, not 4096.5"),
        ({"hidden": True}, "hidden must be a whole number"),
        ({"heads": 33}, "33 heads do not divide hidden 4096"),
        ({"gpus": 18}, "18 gpus are no multiple of tp x pp x cp = 4"),
        ({"dp": 5}, "tp x pp x cp x dp = 20, but gpus is 16"),
        ({"batch": 2}, "batch 2 is less than dp 4"),
        ({"micro_batch": 64}, "micro_batch 64 is more than batch / dp = 32"),
        ({"tokens_per_s_per_gpu": -1}, "tokens_per_s_per_gpu must be a positive number"),
        ({"tokens_per_s_per_gpu": float("nan")}, "must be a positive number"),
        ({"mfu": 1.5}, "mfu is a share of the peak, at most 1"),
        ({"recompute": "ful"}, "recompute 'ful' is unknown (did you mean 'full'?)"),
        ({"precision": "bf61"}, "precision 'bf61' is unknown (did you mean 'bf16'?)"),
        ({"zero": 4}, "zero must be 0, 1, 2 or 3"),
        ({"zero": True}, "zero must be 0, 1, 2 or 3"),
        ({"hidden": 10**400}, "hidden must be a whole number from 1"),
        ({"tokens_per_s_per_gpu": 5e-324}, "must be a positive number, not 5e-324; 1e-12 to"),
        ({"hiden": 4096}, "unknown field 'hiden' (did you mean 'hidden'?)"),
        ({"nic_bandwidth": 5e10}, "unknown field 'nic_bandwidth'"),
        ({"node_gbit": 0}, "node_gbit must be a positive number, not 0"),
        ({"shard": 3, "zero": 1, "pp": 1}, "shard 3 does not divide dp x cp = 8"),
        ({"device": "TPU v5p"}, "device 'TPU v5p': only GPUs of servers with a switch inside"),
        (
            {"device": "a100", "tflops_per_gpu": 328.0, "tokens_per_s_per_gpu": None},
            "tflops_per_gpu 328 is impossible: at the 312 TFLOP/s of a a100 at bf16",
        ),
        ({"tokens_per_s_per_gpu": 1e5}, "tokens_per_s_per_gpu 100000 is impossible"),
        ({"peak_memory_gib": 81.0}, "peak_memory_gib 81 is more than the 74.51 GiB of a h100"),
        ({"sequence_parallel": "yes"}, "sequence_parallel must be true or false"),
        ({"stack": "megatron-2031"}, "unknown stack 'megatron-2031'"),
        ({"device": "v100", "precision": "bf16"}, "a v100 has no bf16"),
        ({"source": 3}, "source must be a text"),
        ({"experts": 8, "ep": 3}, "ep 3 does not divide dp x cp x tp / etp = 4"),
        ({"interleave": 20}, "pp x interleave = 40 is more than layers = 32"),
        ({"percent_of_none": {"all": 3}}, "percent_of_none must be an object"),
    ],
)
def test_rows__bad_ones_are_named_in_one_line(tmp_path, call, changes, words):
    row = {key: value for key, value in {**ROW, **changes}.items() if value is not None}
    path = write(tmp_path, {"rows": [ROW, row]})
    status, out, err = call("bench", "hybrid", "--rows", str(path))
    assert status == 2
    assert out == ""
    (line,) = err.strip().splitlines()
    assert words in line
    assert str(path) in line
    assert "row 1" in line


@each(
    ("content", "words"),
    [
        ([], "'rows' is empty"),
        ({"rows": {}}, "expected an object with a list of objects, 'rows'"),
        ({"schema": 2, "rows": [ROW]}, "schema 2 is not known"),
        ({"rows": [3]}, "row 0: expected an object"),
    ],
)
def test_rows__bad_files(tmp_path, content, words):
    with pytest.raises(ParenvsError, match=r"rows\.json") as caught:
        read_rows(write(tmp_path, content))
    assert words in str(caught.value)


def test_rows__no_file_and_no_json(tmp_path, call):
    assert "no file" in call("bench", "hybrid", "--rows", str(tmp_path / "none.json"))[2]
    (tmp_path / "x.json").write_text("{", encoding="utf-8")
    assert "not a JSON file" in call("bench", "hybrid", "--rows", str(tmp_path / "x.json"))[2]


def test_settings__what_is_left_out_is_assumed_and_said():
    (one,) = of_row(
        source=None, device="accelerator-9", seq=None, vocab=None, heads=None, micro_batch=None,
        batch=None, tp=None, pp=None, tokens_per_s_per_gpu=2000.0,
    )  # fmt: skip
    for words in (
        "device 'accelerator-9' is unknown: taken for an A100", "seq 2048", "vocab 51200",
        "heads 32, 128 wide", "recompute none", "stack megatron-2022, by device",
    ):  # fmt: skip
        assert any(words in line for line in one.assumed), (words, one.assumed)
    assert one.source == "unknown"
    assert np.isfinite(one.predicted)


def test_settings__a_full_row_assumes_only_its_stack():
    (one,) = of_row(recompute="none")
    assert one.assumed == ("stack llama-2024, by device",)
    (one,) = of_row(recompute="none", stack="nemo-2024", precision="fp8")
    assert one.assumed == ()


def test_settings__names_say_recipes_of_fp8_and_rows_what_was_switched():
    for name, device, recipe in (
        ("26.06 llama FP8 tp2", "gb200", "fp8"), ("llama MXFP8", "gb200", "mxfp8"),
        ("8B FP8-MX", "b200", "mxfp8"), ("8B FP8-CS (FP8-MX)", "gb200", "fp8"),
        ("float8 rowwise", "h100", "fp8-row"), ("V3 FP8-SC", "h100", "fp8-block"),
        ("8B NVFP4", "gb300", "nvfp4"),
    ):  # fmt: skip
        (one,) = of_row(name=name, device=device, precision="fp8", stack="nemo-2025")
        assert one.precision == recipe, name
        assert (recipe == "fp8") is not any("by the name" in x for x in one.assumed), name
    (given,) = of_row(name="MXFP8", device="gb200", precision="fp8-block", stack="nemo-2025")
    assert given.precision == "fp8-block"
    (base,) = of_row(stack="titan-2025")
    slower, faster = (
        of_row(stack="titan-2025", compile=False),
        of_row(stack="titan-2025", async_tp=True),
    )
    assert slower[0].predicted < base.predicted < faster[0].predicted
    assert of_row(stack="titan-2025", compile=True)[0].predicted == base.predicted


def test_legality__what_a_device_has_and_what_plans_keep_free_are_told_apart():
    def reason(layers):
        (one,) = of_row(layers=layers, tp=1, pp=1, gpus=1, dp=1, batch=1, micro_batch=1, seq=256)
        return one.details["illegal"], one.details["gib"]

    size, found = 80e9 / 2**30, {}
    for layers in range(1, 60):
        reasons, held = reason(layers)
        what = reasons[0].partition(":")[0] if reasons else ""
        found.setdefault(what, []).append(held / size)
    assert list(found) == ["", "the 10% of memory kept free", "memory"]
    assert max(found[""]) <= 0.9 < min(found["the 10% of memory kept free"])
    assert max(found["the 10% of memory kept free"]) <= 1 < min(found["memory"])


def test_settings__plan_of_the_row_decides():
    (base,) = of_row()
    for change in (
        {"recompute": "full"}, {"batch": 16}, {"seq": 32768}, {"device": "h200"},
        {"zero": 3, "tp": 1, "pp": 1}, {"tp": 16, "pp": 1, "gpus_per_node": 4},
        {"stack": "nemo-2024"}, {"cp": 2, "gpus": 16},
    ):  # fmt: skip
        (other,) = of_row(**change)
        assert other.predicted != pytest.approx(base.predicted, rel=1e-3), change
    (saved,) = of_row(recompute="full")
    assert saved.predicted < base.predicted
    assert saved.details["gib"] < base.details["gib"]


def test_predictions__units_agree_with_each_other():
    units = {"tokens_per_s_per_gpu": 1.0, "samples_per_s": 1.0, "ms": 2e4, "mfu": 0.5}
    found = {one.column: one.predicted for one in of_row(**units)}
    (alone,) = of_row(tokens_per_s_per_gpu=None, seconds=20.0)
    seconds = alone.predicted
    assert found["ms"] == pytest.approx(1e3 * seconds)
    assert found["samples_per_s"] == pytest.approx(128 / seconds)
    assert found["tokens_per_s_per_gpu"] == pytest.approx(128 * 4096 / seconds / 16)
    rate = alone.details["flops"] / seconds / 16
    assert found["mfu"] == pytest.approx(rate / 989.4e12)
    assert alone.details["tflops_per_gpu"] == pytest.approx(rate / 1e12)


def test_predictions__network_shards_and_memory_of_a_row():
    """A slower network, shards of a server, latent attention count; bytes are predicted, too."""
    own = {"tp": 1, "pp": 1, "zero": 3, "device": "a100", "tokens_per_s_per_gpu": 1000.0}
    (base,) = of_row(**own)
    for change in ({"node_gbit": 100}, {"shard": 8}):
        (other,) = of_row(**own, **change)
        assert (other.predicted < base.predicted) == ("node_gbit" in change), change
    moe = {"experts": 8, "active_experts": 2, "ffn": 1024}
    rates = [
        of_row(**own, **moe, **change)[0].predicted
        for change in ({}, {"shared_experts": 1}, {"key_rank": 512, "query_rank": 1024})
    ]
    assert rates[1] < rates[0] < rates[2]
    step, size = of_row(peak_memory_gib=60.0)
    assert (step.unit, size.unit) == ("tokens/s", "GiB")
    assert size.predicted == pytest.approx(step.details["gib"] / 0.9)  # the allocator's share
    assert [part.table for part in groups([step, size])] == ["", "memory"]


def test_baselines__one_constant_a_kind():
    """Two devices, MFU by twos: geometric means, and the order and regret of one group."""
    found = [
        of_row(name=name, micro_batch=size, tokens_per_s_per_gpu=rate)[0]
        for name, size, rate in (("a", 1, 4000.0), ("b", 2, 8000.0), ("c", 4, 2000.0))
    ]
    errors = constant_mfu(found, "device")
    assert errors == pytest.approx([0.0, -0.5, 1.0])
    slow = replace(found[2], unit="s")
    assert constant_mfu([slow], "stack", found) == pytest.approx([-0.5])
    (order,) = orders(found)
    assert (order["groups"], order["rows"]) == (1, 3)
    best = max(found, key=lambda one: one.predicted)
    assert order["regret"] == pytest.approx(8000.0 / best.measured - 1)
    assert order["right"] + order["wrong"] + order["tied"] == 3
    (one, *_), samples = totals(found), {row["sample"] for row in totals(found)}
    assert one["of"] == "somebody" and samples == {False}
    assert one["device"] == pytest.approx(0.5)


def test_beaten__a_measurement_below_the_best_plan_of_its_stack(tmp_path, call):
    """The best uniform plan of the row's problem, by the search; a slower row is not named."""
    row = {**ROW, "stack": "llama-2024", "layers": 4, "batch": 32, "recompute": "none"}
    model = {"layers": 4, "hidden": 4096, "heads": 32, "sequence": 4096, "vocabulary": 32000}
    shape = TransformerShape("7b", positions=4096, **model)
    problem = parenvs.problem(shape, "2x8:h100", task="hybrid", batch=32, stack="llama-2024")
    best = float(UniformSpace.build(problem).length[UniformSpace.build(problem).best()])
    rates = [32 * 4096 / 16 / best * factor for factor in (1.05, 0.95)]
    rows = [{**row, "name": f"{x:.3g}", "tokens_per_s_per_gpu": x} for x in rates]
    path = write(tmp_path, {"rows": rows})
    status, out, _ = call("bench", "hybrid", "--rows", str(path), "--search", "--json")
    assert status == 0
    (one,) = json.loads(out)["beaten"]
    assert (one["name"], one["stack"]) == (f"{rates[0]:.3g}", "llama-2024")
    assert one["best"] == pytest.approx(best)
    assert one["below"] == pytest.approx(1 - 1 / 1.05)


@pytest.mark.slow
def test_left_out__constants_know_nothing_of_the_source():
    """Of two sources of one stack, each is judged by constants of the other."""
    published = read_rows("rows-2026.json")
    few = tuple(row for row in published.rows if row.source in ("tt-2412", "fms-fsdp-a100"))
    part = replace(published, rows=few)
    found, _ = predictions(part)
    rows = {one.source: one for one in leave_one_out(part, found)}
    assert set(rows) == {"tt-2412", "fms-fsdp-a100"}
    assert rows["tt-2412"].fitted < rows["tt-2412"].left_out
    assert any("memory_share 0.5" in words for words in rows["tt-2412"].constants)
    assert STACKS["titan-2025"].memory_share == 0.5  # nothing is left changed


def test_settings__models_that_ship_lend_what_rows_leave_out():
    """gpt-oss by its name and numbers; what the row says itself, it keeps."""
    shape = {
        "layers": 36, "hidden": 2880, "heads": 64,
        "kv_heads": 8, "head_width": 64, "ffn": 2880, "seq": 4096,
        "vocab": 201088, "experts": 128, "active_experts": 4,
        "gated": True, "bias": False, "dropout": False,
        "tied": False, "tp": 1, "pp": 1, "ep": 8,
        "gpus": 8, "batch": 64, "stack": "nemo-2025", "device": "gb200",
        "tokens_per_s_per_gpu": 9000.0,
    }  # fmt: skip
    (known,) = of_row(name="26.04 gpt-oss-120b gb200", **shape)
    (unknown,) = of_row(name="a mixture", **shape)
    (other,) = of_row(name="half a gpt-oss-120b", **{**shape, "layers": 18})
    (plain,) = of_row(
        name="gpt-oss-120b", **shape, sinks=False, expert_bias=False, window=4096, full_every=2
    )
    said = "window 128, full_every 2, sinks True, expert_bias True, as gpt-oss-120b has"
    assert said in known.assumed
    assert not any("gpt-oss" in words for one in (unknown, other, plain) for words in one.assumed)
    assert known.predicted < unknown.predicted == plain.predicted


def test_settings__switches_and_folds_of_a_row():
    mixture = {
        "layers": 8, "hidden": 4096, "heads": 32, "kv_heads": 8,
        "ffn": 2048, "seq": 4096, "vocab": 32000, "experts": 64,
        "active_experts": 8, "gpus": 64, "dp": 32, "pp": 1,
        "device": "h100", "batch": 256, "stack": "nemo-2025", "tp": 2,
        "ep": 32, "etp": 1, "sequence_parallel": True, "tokens_per_s_per_gpu": 9000.0,
    }  # fmt: skip
    (folded,) = of_row(**mixture)
    (torn,) = of_row(**{**mixture, "etp": 2})
    (hidden,) = of_row(**mixture, dispatch_overlap=True)
    assert torn.predicted < folded.predicted < hidden.predicted
    assert folded.details["illegal"] == torn.details["illegal"] == []
    for wrong, words in (
        ({"etp": 3}, "etp 3 does not divide tp 2"),
        ({"ep": 48}, "ep 48 does not divide dp x cp x tp / etp = 64"),
    ):
        with pytest.raises(ParenvsError, match=words):
            of_row(**{**mixture, **wrong})


def test_predictions__flops_as_a_row_counts_them():
    def rate(**changes):
        (one,) = of_row(
            tokens_per_s_per_gpu=None, tflops_per_gpu=400.0, recompute="full", **changes
        )
        return one.predicted, one.details["flops_counted"]

    counted, plain = rate(flops_formula="96 B s l h^2 (...)"), rate()
    assert counted[1] == "recomputation counted"
    assert plain[1] == "no recomputation counted"
    assert 1.25 < counted[0] / plain[0] < 4 / 3
    causal = rate(flops_formula="6 N tokens")
    assert causal[0] < plain[0]


def test_hardware__words_of_rows():
    for words, name, devices in (
        ("NVIDIA A100-SXM4-80GB", "a100", 8), ("ampere", "a100", 8), ("H100 SXM", "h100", 8),
        ("v100 DGX-2H", "v100", 16), ("GB200 NVL72", "gb200", 72), ("B300", "b300", 8),
        ("h100 96GB 500W", "h100-96gb", 8), ("H200", "h100", 8), ("V100-16GB", "v100", 8),
    ):  # fmt: skip
        server = server_of(words)
        assert (server.device.name, server.devices) == (name, devices), words
    assert server_of("H200").device.memory_bw == 4800e9
    for precision, device in (("fp8", "an H100"), ("fp8-row", "an H100"), ("nvfp4", "a GB200")):
        assert f"taken for {device}" in server_of("tensor thing", precision).guess


@pytest.mark.slow
def test_constants__every_one_is_of_a_stack_and_of_shipped_rows():
    found, _ = predictions(read_rows())
    used = {item for part in groups(found) for item in part.constants}
    shipped_ones = [item for item in CONSTANTS if item.ships]
    assert used == set(shipped_ones)
    assert all(item.value > 0 and item.stack in STACKS for item in CONSTANTS)
    for item in CONSTANTS:
        low, high = item.plausible or (item.value, item.value)
        assert low <= item.value <= high
    rows = {}
    for item in shipped_ones:
        where = [one for one in found if item.is_of(one.source, one.table, one.name, one.stack,
                                                     one.device, one.precision)]  # fmt: skip
        of_both = item.words.partition(" ")[2], item.rows  # two releases share a table
        rows[of_both] = rows.get(of_both, 0) + len({one.row for one in where})
    assert min(rows.values()) >= 3  # never per row


def test_constants__none_was_fitted_on_rows_of_other_files():
    (one,) = of_row(source="mpt", tp=1, pp=1, zero=3)
    assert groups([one])[0].constants == ()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("stack", "name", "source", "table", "key"),
    [
        ("megatron-2022", "matmul_share", "korthikanti", "Table 4", "a100"),
        ("megatron-2022", "hidden", "korthikanti", "Table 4", ""),
        ("llama-2024", "matmul_share", "llama3", "Table 4", "h100 bf16"),
        ("nemo-2024", "matmul_share", "nemo-24.07", "", "h100 fp8"),
        ("megatron-2021", "matmul_share", "megatron-sc21", "Table 1", "a100"),
        ("megatron-2019", "matmul_share", "megatron-v1", "", "v100"),
    ],
)
def test_constants__are_at_the_best_value(monkeypatch, stack, name, source, table, key):
    """A tenth more or less fits the rows that they were fitted on worse."""
    everything = read_rows("published.json")
    rows = tuple(
        row for row in everything.rows if (row.source, row.table) == (source, table)
    )  # fmt: skip
    part = Published("", rows, {}, {})
    base = STACKS[stack]

    def off(factor):
        value = getattr(base, name)
        if key:
            value = tuple((k, v * factor if k == key else v) for k, v in value)
        else:
            value = value * factor
        monkeypatch.setitem(STACKS, stack, replace(base, **{name: value}))
        return np.sqrt(np.mean([one.error**2 for one in predictions(part)[0]]))

    step = 0.1 if key else 0.5
    assert off(1.0) < min(off(1 - step), off(1 + step))


FIGURES = "ddc8517c9f8ed96f"
STEP_SECONDS = "c7393c54edc6e3a5"


def digest(figures):
    """Hash of names and figures, ten digits of each."""
    text = json.dumps([[*name, f"{figure:.9e}"] for *name, figure in figures])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.thorough
def test_shipped__figures_of_published_rows_and_steps_stay():
    """What came later changes no digit of the 268 figures and 109 steps that came first.

    The stacks that ran them say so of every effect: those of later software are their own.
    """
    found, _ = predictions(read_rows("published.json"))
    assert len(found) == 268
    rows = [(x.source, x.table, x.name, x.gpus, x.column, x.predicted) for x in found]
    assert digest(rows) == FIGURES
    stack, steps = STACKS[measured.STACK], []
    for name in measured.SHIPPED:
        one = measured.read_steps(name)
        seconds = one.predicted(dict(stack.matmul_share)["v100 fp16"], stack.link_share)
        steps += zip(one.data.tolist(), one.pipeline.tolist(), seconds.tolist(), strict=True)
    assert len(steps) == 109
    assert digest(steps) == STEP_SECONDS


def test_rank_correlation():
    assert rank_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 1, 2, 3], [1, 1, 2, 3]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None


def test_steps__parcae_deals_out_rows_of_the_profile():
    assert np.diff(measured.parcae_bounds(48, 24)).tolist() == [2] * 22 + [3, 1]
    assert np.diff(measured.parcae_bounds(48, 8)).tolist() == [6] * 6 + [7, 5]
    for pieces in range(1, 33):
        bounds = measured.parcae_bounds(48, pieces)
        assert (bounds[0], bounds[-1]) == (0, 48)
        assert (np.diff(bounds) >= 0).all()
    assert np.diff(measured.even_blocks(24, 5)).max() == 5


@pytest.fixture(scope="module")
def verdicts():
    """GPT-1.5B and BERT, each by constants fitted on BERT (the quicker fit), and stored ones."""
    gpt, bert = (measured.read_steps(name) for name in measured.SHIPPED)
    on_bert = bert.fitted()
    stack = STACKS[measured.STACK]
    stored = dict(stack.matmul_share)["v100 fp16"], stack.link_share
    return {
        "gpt by bert": measured.judged(gpt, *on_bert, "bert"),
        "bert by bert": measured.judged(bert, *on_bert, "bert"),
        "gpt by gpt": measured.judged(gpt, *stored, "gpt"),
        "bert by gpt": measured.judged(bert, *stored, "gpt"),
    }


@pytest.mark.thorough
def test_steps__ranked_by_constants_of_the_other_model(verdicts):
    assert verdicts["gpt by bert"].rank > 0.98
    assert verdicts["gpt by bert"].mean < 0.05
    assert verdicts["bert by gpt"].mean < 0.1
    assert verdicts["bert by gpt"].rank_without > 0.99
    assert len(verdicts["bert by gpt"].far) == 6
    assert {data * stages for data, stages in verdicts["bert by gpt"].far} == {16, 18, 20}
    assert verdicts["gpt by gpt"].mean < 0.019
    assert verdicts["gpt by gpt"].rank > 0.98


@pytest.mark.thorough
@pytest.mark.xfail(
    strict=True, reason="0.93: six steps on 16 to 20 nodes took 1.4 to 1.9 times as long"
)
def test_steps__bert_with_its_odd_rows(verdicts):
    assert verdicts["bert by gpt"].rank > 0.95


@pytest.mark.xfail(strict=True, reason="3 x 10 and 16 x 2 are 2nd and 3rd, 4.7 % over the best")
def test_steps__plan_called_best_within_three_per_cent(verdicts):
    assert max(one.over_best for one in verdicts.values()) < 0.03


def test_steps__plan_called_best_is_among_the_three_best(verdicts):
    assert max(one.place for one in verdicts.values()) <= 3
    assert max(one.over_best for one in verdicts.values()) < 0.05


def test_steps__measured_layers_double_with_samples():
    layer = MeasuredLayer(0.006, 0.012, 3e7, 2.5e8, samples=1)
    machine = STACKS[measured.STACK].machine(measured.read_steps("gpt-1.5b.json").cluster, "fp16")
    one, two = (layer.seconds(machine, Split(1, count)) for count in (1, 2))
    assert (one.forward, one.backward) == (0.006, 0.012)
    assert two.backward == 0.024
    assert layer.saved_bytes(machine, Split(2, 2), "none") == 2.5e8
    assert layer.parameters(Split(2, 1)) == (1.5e7, 0.0)


STEPS = {
    "model": "gpt-2", "global_batch": 64, "micro_batch": 1,
    "measured": [[1, 2, 4000.0], [1, 4, 2500.0], [2, 4, 1500.0], [1, 8, 1600.0]],
}  # fmt: skip


@each(
    ("changes", "words"),
    [
        ({"model": None}, "field 'model' is missing"),
        ({"model": "net-9"}, "the shape of model 'net-9' is not known; give 'shape' or 'layers'"),
        ({"global_batch": 0}, "global_batch must be a whole number from 1"),
        ({"measured": [[1, 2, 3.0]]}, "measured must be a list of at least 3 rows"),
        ({"measured": [[1, 2, 3.0]] * 3 + [[1, 2]]}, "measured[3] must be [data parallel"),
        ({"measured": [[1, 0, 3.0]] * 3}, "measured[0] needs whole degrees"),
        *(({"measured": [[1, 2, x]] * 3}, "milliseconds from 1e-06") for x in (-3.0, 0, 1e-320)),
        ({"measured": [[1, 25, 3.0]] * 3}, "measured has 25 stages, but gpt-2 has 24 layers"),
        ({"layers": [[1, 2]]}, "layers must be a list of at least 3 rows"),
        ({"shape": 3}, "shape must be an object"),
        ({"cluster": "4x8:v1000"}, "unknown device 'v1000'"),
    ],
)
def test_steps__bad_files_are_named_in_one_line(tmp_path, changes, words):
    content = {k: v for k, v in {**STEPS, **changes}.items() if v is not None}
    with pytest.raises(ParenvsError) as caught:
        measured.read_steps(write(tmp_path, content))
    assert words in str(caught.value)


def test_steps__a_file_of_ones_own(tmp_path):
    steps = measured.read_steps(write(tmp_path, {**STEPS, "cluster": "8x1:v100,10Gbps"}))
    verdict = measured.judged(steps, *steps.fitted(), "itself")
    assert verdict.rank == pytest.approx(1)
    assert verdict.best == (2, 4)
    assert verdict.place == 1


def test_command__tables_and_json(tmp_path, call):
    path = write(tmp_path, {"rows": [{**ROW, "note": "mine"}], "sources": {}})
    status, out, err = call("bench", "hybrid", "--rows", str(path), "--out", str(tmp_path / "o"))
    assert (status, err) == (0, "")
    assert "| somebody |" in out
    assert (tmp_path / "o" / "hybrid.md").read_text(encoding="utf-8") in out
    status, out, _ = call("bench", "hybrid", "--rows", str(path), "--json")
    content = json.loads(out)
    written = json.loads((tmp_path / "o" / "hybrid.json").read_text(encoding="utf-8"))
    for told in (content, written):  # of two runs
        assert told["made"].pop("processor_seconds") >= 0
    assert content == written
    (row,) = content["rows"]
    assert row["measured"] == 9000.0
    assert row["error"] == pytest.approx(row["predicted"] / 9000 - 1)
    assert row["details"]["plan"]["tp"] == 2
    assert set(row["details"]["seconds"]) == {"core", "tail", "tied", "optimizer", "length"}
    assert content["tables"][0]["n"] == 1
    assert content["steps_judged"] == []


@pytest.mark.thorough
def test_command__shipped_rows_by_table(call):
    path = str(shipped("published.json"))
    status, out, _ = call("bench", "hybrid", "--rows", path, "--only", "rows", "--json")
    content = json.loads(out)
    assert status == 0
    tables = {(part["source"], part["table"]): part for part in content["tables"]}
    part = tables["megatron-sc21", "Table 1"]
    assert part["n"] == 10
    assert part["fitted"] == ["megatron-2021 matmul_share (a100)", "megatron-2021 link_share"]
    assert part["tools"]["calculon"] == [10, pytest.approx(0.173, abs=5e-4)]
    assert len(content["not_predicted"]) == 14
    assert call("bench", "hybrid", "--only", "columns")[0] == 2


def test_shipped__files_carry_sources():
    for name in ("published.json", *measured.SHIPPED):
        assert shipped(name).is_file()
    assert "MIT" in (shipped("published.json").parent / "NOTICE").read_text(encoding="utf-8")
    for name in SHIPPED:
        published = read_rows(name)
        assert {row.source for row in published.rows} <= set(published.sources)
        assert name in (shipped(name).parent / "NOTICE").read_text(encoding="utf-8")
