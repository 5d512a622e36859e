"""Published rows: bad ones are named in one line, and what a row leaves out is assumed."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import each

from benchmarks.hybrid import constant_mfu, leave_one_out, orders, totals
from benchmarks.hybrid_predictions import predictions
from parenvs.errors import ParenvsError
from parenvs.tasks.hybrid.rows import SHIPPED, Published, checked, read_rows, shipped
from parenvs.tasks.hybrid.stack import STACKS

ROOT = Path(__file__).parents[2]
ROW = {
    "source": "somebody", "name": "7b", "device": "h100", "layers": 32, "hidden": 4096, "heads": 32,
    "seq": 4096, "vocab": 32000, "tp": 2, "pp": 2, "gpus": 16, "batch": 128, "micro_batch": 1,
    "tokens_per_s_per_gpu": 9000.0,
}  # fmt: skip


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
        ({"hidden": 4096.5}, "'hidden' must be a whole number from 1, not 4096.5"),
        ({"heads": 33}, "33 heads do not divide hidden 4096"),
        ({"gpus": 18}, "18 gpus are no multiple of tp x pp x cp = 4"),
        ({"micro_batch": 64}, "micro_batch 64 is more than batch / dp = 32"),
        ({"tokens_per_s_per_gpu": -1}, "'tokens_per_s_per_gpu' must be a positive number"),
        ({"mfu": 1.5}, "'mfu' must be a share of the peak, at most 1"),
        ({"recompute": "ful"}, "none, selective, full, not 'ful' (did you mean 'full'?)"),
        ({"zero": 4}, "'zero' must be a whole number from 0 to 3"),
        ({"hidden": 10**400}, "'hidden' must be a whole number from 1"),
        ({"hiden": 4096}, "unknown field 'hiden' (did you mean 'hidden'?)"),
        ({"device": "TPU v5p"}, "unknown device 'TPU v5p'; known: v100, a100"),
        ({"device": "mi350x"}, "unknown device 'mi350x' (did you mean"),
        (
            {"device": "a100", "tflops_per_gpu": 328.0, "tokens_per_s_per_gpu": None},
            "tflops_per_gpu 328 is impossible: at the 312 TFLOP/s of a a100 at bf16",
        ),
        ({"peak_memory_gib": 81.0}, "peak_memory_gib 81 is more than the 79.11 GiB of a h100"),
        ({"sequence_parallel": "yes"}, "'sequence_parallel' must be true or false"),
        ({"stack": "megatron-2031"}, "unknown stack 'megatron-2031'"),
        ({"interleave": 20}, "pp x interleave = 40 is more than layers = 32"),
    ],
)
def test_rows__bad_ones_are_named_in_one_line(tmp_path, changes, words):
    row = {key: value for key, value in {**ROW, **changes}.items() if value is not None}
    path = write(tmp_path, {"rows": [ROW, row]})
    with pytest.raises(ParenvsError, match="row 1") as caught:
        predictions(read_rows(path))
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


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


def test_rows__no_file_and_no_json(tmp_path):
    with pytest.raises(ParenvsError, match="No such file"):
        read_rows(tmp_path / "none.json")
    (tmp_path / "x.json").write_text("{", encoding="utf-8")
    with pytest.raises(ParenvsError, match="not a JSON file"):
        read_rows(tmp_path / "x.json")


@each(
    ("fields", "stack"),
    [
        ({"year": 2022}, "megatron-2022"),
        ({"date": "2024-06"}, "megatron-2022"),
        ({"date": "2024-07"}, "llama-2024"),
        ({"date": "2025-04"}, "llama-2024"),
        ({"year": 2025}, "megatron-2025"),
        ({"experts": 8, "date": "2025-12"}, "nemo-2025"),
        ({"experts": 8, "date": "2026-06"}, "nemo-2026"),
    ],
)
def test_settings__the_stack_is_the_newest_of_its_date(fields, stack):
    (one,) = of_row(source=None, device="a100", tokens_per_s_per_gpu=900.0, **fields)
    assert one.stack == stack


def test_settings__what_is_left_out_is_assumed_and_said():
    (one,) = of_row(
        source=None, device=None, seq=None, vocab=None, heads=None, micro_batch=None,
        batch=None, tp=None, pp=None, tokens_per_s_per_gpu=2000.0,
    )  # fmt: skip
    for words in (
        "no device is given: taken for an A100", "seq 2048", "vocab 51200",
        "heads 32, 128 wide", "recompute none", "stack megatron-2022, by device",
    ):  # fmt: skip
        assert any(words in line for line in one.assumed), (words, one.assumed)
    assert one.source == "unknown"
    assert np.isfinite(one.predicted)


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


@pytest.mark.slow
def test_command__prints_every_figure_of_a_file(tmp_path):
    path = write(tmp_path, {"rows": [{**ROW, "note": "mine"}], "sources": {}})
    command = [sys.executable, "benchmarks/hybrid.py", "--rows", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    content = json.loads(done.stdout)
    (row,) = content["rows"]
    assert row["measured"] == 9000.0
    assert row["error"] == pytest.approx(row["predicted"] / 9000 - 1)
    assert set(row["details"]["seconds"]) == {"core", "tail", "tied", "optimizer", "length"}
    assert content["tables"][0]["n"] == 1


def test_shipped__files_carry_sources():
    for name in SHIPPED:
        published = read_rows(name)
        assert {row.source for row in published.rows} <= set(published.sources)
        assert name in (shipped(name).parent / "NOTICE").read_text(encoding="utf-8")
