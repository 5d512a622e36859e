"""Plans as settings of launchers, read back by their rules, and refusals by field."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import yaml
from cases import each, slow

import parenvs
from parenvs import HybridPlan, HybridStage, TransformerShape
from parenvs.cluster import Cluster
from parenvs.errors import ParenvsError
from parenvs.exports.formats import export, megatron_layout, read_back
from parenvs.exports.stages import stages_of

SHAPE = {"name": "small", "layers": 10, "hidden": 64, "heads": 8, "sequence": 32}


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """Two uneven stages of a small transformer on eight devices: tp 2, dp 2."""
    monkeypatch.chdir(tmp_path)
    content = {**SHAPE, "vocabulary": 128}
    (tmp_path / "small.json").write_text(json.dumps(content))
    shape = TransformerShape(**content)
    stages = tuple(HybridStage((part,), 4, tp=2, zero=1) for part in ((0, 6), (6, 10)))
    return HybridPlan(
        "small.json", shape.fingerprint, Cluster.parse("1x8:a100"), "megatron-2022", "bf16",
        batch=32, micro_batch=2, stages=stages,
    )  # fmt: skip


def chunked(plan):
    """The plan with two chunks on each stage."""
    ranges = (((0, 1), (4, 6)), ((1, 4), (6, 10)))
    stages = tuple(
        replace(stage, layers=parts) for stage, parts in zip(plan.stages, ranges, strict=True)
    )
    return replace(plan, stages=stages, chunks=2, schedule="interleaved", p2p="overlapped")


def split(plan, schedule="zb-h1"):
    """The plan with passes of their own for gradients of weights, on a stack that has them."""
    stack = {"name": "megatron-2022", "schedules": ["1f1b", schedule]}
    plan = replace(plan, schedule=schedule, p2p="overlapped", stack=stack)
    if schedule == "zb-h1":
        return plan
    ranges = (((0, 1), (6, 10)), ((1, 4), (4, 6)))
    if schedule == "dualpipe":
        ranges = (((0, 6), (6, 10)), ((6, 10), (0, 6)))
    stages = zip(plan.stages, ranges, strict=True)
    return replace(plan, chunks=2, stages=tuple(replace(x, layers=parts) for x, parts in stages))


def values(text):
    """Flag -> value of the array of a shell script."""
    lines = re.findall(r"^  (--\S+) ?(.*)$", text, re.M)
    return dict(lines)


def refused(words, plan, to):
    with pytest.raises(ParenvsError, match=re.escape(words)):
        export(plan, to)


def expanded(layout):
    """Parts of Megatron's layout, by its rules: groups first, then letters."""
    layout = layout.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        layout = re.sub(pattern, lambda x: x[1] * int(x[2]), layout)
    return layout.split("|")


def test_megatron__uneven_stages(plan):
    assert values(export(plan, "megatron").text) == {
        "--num-layers": "10", "--tensor-model-parallel-size": "2",
        "--pipeline-model-parallel-size": "2", "--decoder-first-pipeline-num-layers": "6",
        "--decoder-last-pipeline-num-layers": "4", "--micro-batch-size": "2",
        "--global-batch-size": "32", "--use-distributed-optimizer": "", "--bf16": "",
        "--accumulate-allreduce-grads-in-fp32": "", "--attention-backend": "unfused",
    }  # fmt: skip
    even = replace(plan, stages=tuple(
        replace(stage, layers=(part,))
        for stage, part in zip(plan.stages, ((0, 5), (5, 10)), strict=True)
    ))  # fmt: skip
    assert "--decoder-first-pipeline-num-layers" not in values(export(even, "megatron").text)


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "deepspeed", "accelerate"])
@pytest.mark.parametrize(
    ("shape", "cluster", "batch", "stack"),
    [
        ("gpt-1.7b", "2x8:a100", 64, "megatron-2022"),
        ("mixtral-8x7b", "8x8:h100", 256, "nemo-2024"),
        *slow(("llama3-70b", "8x8:h100", 512, "titan-2025")),
    ],
)
def test_for__plans_run_as_they_are(framework, shape, cluster, batch, stack):
    """The best of these is proven, and its export loses nothing; without, stages may differ."""
    problem = parenvs.problem(shape, cluster, task="hybrid", batch=batch, stack=stack)
    answer = parenvs.plan(problem, constraints={"framework": framework})
    assert f"that {framework} runs as they are" in answer.among
    assert export(answer.plan, framework).loss == 0
    every = parenvs.plan(problem, "uniform", constraints={"uneven": True})
    if framework != "accelerate":  # it sums gradients in 16 bits, where the stack takes 32
        assert answer.cost >= every.cost * (1 - 1e-9)
    again = parenvs.plan(problem, "uniform", constraints={"framework": framework})
    assert again.proven and again.cost <= answer.cost * (1 + 1e-9)


def test_for__what_no_framework_runs_is_one_line():
    problem = parenvs.problem("mixtral-8x7b", "2x8:h100", task="hybrid", batch=64)
    for words, planner, limits in (
        (
            r"--for: no framework 'megatorn' \(did you mean 'megatron'",
            "exact",
            {"framework": "megatorn"},
        ),
        ("--for: random ignores it; take", "random", {"framework": "megatron"}),
        ("is one that jax runs as it is; --for free", "exact", {"framework": "jax", "pp": 2}),
        ("is one that jax runs as it is; --for free", "exact", {"framework": "jax"}),
        ("is one that torch runs as it is; --for free", "uniform", {"framework": "torch"}),
    ):
        with pytest.raises(ParenvsError, match=words):
            parenvs.plan(problem, planner, constraints=limits)


def test_megatron__layout_is_read_back():
    rng = np.random.default_rng(0)
    for _ in range(100):
        sizes = rng.integers(0, 4, size=rng.integers(2, 12)).tolist()
        parts = expanded(megatron_layout(sizes))
        assert [part.count("t") for part in parts] == sizes
        assert parts[0][0] == "E" and parts[-1][-1] == "L"


def test_torchtitan__degrees_and_modules(plan):
    result = export(plan, "torchtitan")
    found = dict(re.findall(r"^(\w+) = (.*)$", result.text, re.M))
    assert found["data_parallel_shard_degree"] == found["tensor_parallel_degree"] == "2"
    assert found["pipeline_parallel_schedule"] == '"1F1B"'
    assert (found["local_batch_size"], found["global_batch_size"]) == ("16", "32")
    rows = re.findall(r'^  (\[".*"\]),$', result.text, re.M)
    parts = [json.loads(row) for row in rows]
    assert parts[0] == ["tok_embeddings", *(f"layers.{i}" for i in range(6))]
    assert parts[1] == [*(f"layers.{i}" for i in range(6, 10)), "norm", "output"]
    assert [note.split(":")[0] for note in result.notes] == ["sequence_parallel", "zero"]
    refused("precision: torchtitan has no fp16", replace(plan, precision="fp16"), "torchtitan")
    turned = export(split(plan, "zb-v"), "torchtitan")
    assert 'pipeline_parallel_schedule = "ZBVZeroBubble"' in turned.text
    rows = [json.loads(x) for x in re.findall(r'^  (\[".*"\]),$', turned.text, re.M)]
    assert [len(row) for row in rows] == [2, 3, 2, 6]  # in the model's order
    assert (rows[1][0], rows[2][0], rows[3][-1]) == ("layers.1", "layers.4", "output")


def test_accelerate__degrees_and_what_it_refuses():
    """The file's numbers by hand; every refusal names the field; what a user's own file says."""
    problem = parenvs.problem("llama3-8b", "2x8:h100", task="hybrid", batch=64)
    one = HybridStage(((0, 32),), 16, tp=2, zero=3, recompute={"full": 32})
    plan = problem.plan([one], 2, context=2, shard=4, gradient_bytes=2, gradient_overlap=True)
    result = export(plan, "accelerate")
    found = yaml.safe_load(result.text)
    assert found["parallelism_config"] == {
        "parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 2,
        "parallelism_config_tp_size": 2, "parallelism_config_cp_size": 2,
    }  # fmt: skip
    assert (found["num_machines"], found["num_processes"], found["machine_rank"]) == (2, 16, 0)
    assert found["fsdp_config"]["fsdp_reshard_after_forward"] is True
    assert found["fsdp_config"]["fsdp_activation_checkpointing"] is True
    assert "per_device_train_batch_size=2, gradient_accumulation_steps=8" in result.text
    assert [note.partition(":")[0] for note in result.notes] == ["stages[0].tp"]
    halves = [HybridStage(((k, k + 16),), 8, tp=8) for k in (0, 16)]
    for words, refused_plan in (
        ("stages: Accelerate has no pipelines", problem.plan(halves, 1)),
        ("stages[0].zero: Accelerate shares", problem.plan([replace(one, tp=8, zero=0)], 2)),
        ("precision: Accelerate has no fp8", replace(plan, precision="fp8")),
    ):
        refused(words, refused_plan, "accelerate")
    # As ``accelerate config`` writes it, of FSDP alone; the batch is the trainer's.
    own = "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n"
    with pytest.raises(ParenvsError, match="per_device_train_batch_size is missing"):
        read_back(own, 32)
    said = read_back(own + "# per_device_train_batch_size=4, gradient_accumulation_steps=2", 32)
    assert (said.batch, said.micro_batch, said.stages[0].zero, said.replicas) == (64, 4, 3, (8,))


def test_accelerate__takes_the_file(tmp_path):
    """Its own classes read every key and hold the degrees to its rules."""
    accelerate = pytest.importorskip("accelerate")
    arguments = pytest.importorskip("accelerate.commands.config.config_args")
    problem = parenvs.problem("gpt-1.7b", "2x8:h100", task="hybrid", batch=64)
    for limits in ({"tp": 2, "sequence_parallel": False}, {"context": 2}, {"zero": (0,)}, {}):
        limits = {"framework": "accelerate", **limits}
        (tmp_path / "a.yaml").write_text(
            export(parenvs.plan(problem, constraints=limits).plan, "accelerate").text
        )
        config = arguments.load_config_from_file(str(tmp_path / "a.yaml"))
        sizes = config.parallelism_config.items()
        sizes = {name.removeprefix("parallelism_config_"): size for name, size in sizes}
        if sizes:
            made = accelerate.parallelism_config.ParallelismConfig(**sizes)
            assert made.total_size == config.num_processes == 16


def test_deepspeed__even_parts_and_what_moved(plan):
    result = export(plan, "deepspeed")
    content = json.loads(result.text)
    assert content["config"]["zero_optimization"] == {"stage": 1, "overlap_comm": False}
    assert content["config"]["data_types"] == {"grad_accum_dtype": "fp32"}
    assert content["config"]["gradient_accumulation_steps"] == 8
    assert content["parts"] == [0, 5, 10]
    assert content["topology"] == {"num_pp": 2, "num_mp": 2, "num_dp": 2}
    (note,) = [x for x in result.notes if x.startswith("stages: ")]
    assert "cuts moved by -1 layers, a step" in note
    planned = stages_of(plan)
    assert planned.parts == ((0, 6), (6, 10))  # what is moved is the export's own


@each(
    ("precision", "device", "recipe", "converter"),
    [
        ("fp8", "h100", "tensorwise", "quantize.linear.float8"),
        ("fp8-row", "h100", None, "quantize.linear.float8"),
        ("fp8-block", "h100", "blockwise", None),
        ("mxfp8", "b200", "mxfp8", "quantize.linear.mx"),
        ("nvfp4", "b200", "nvfp4", None),
    ],
)
def test_launchers__recipes_of_fp8(plan, precision, device, recipe, converter):
    cluster = Cluster.parse(f"1x8:{device}")
    plan = replace(plan, precision=precision, cluster=cluster, stack="nemo-2025")
    if recipe is None:
        refused(f"precision: Megatron has no {precision}", plan, "megatron")
    else:
        flags = values(export(plan, "megatron").text)
        flag = "--fp4-recipe" if precision == "nvfp4" else "--fp8-recipe"
        assert flags[flag] == recipe and "--bf16" in flags
    if converter is None:
        refused(f"precision: torchtitan has no {precision}", plan, "torchtitan")
    else:
        text = export(plan, "torchtitan").text
        assert f'[model]\nconverters = ["{converter}"]\n\n[{converter}]\n' in text
        assert ("enable_fsdp_float8_all_gather = true" in text) is (precision == "fp8")
        assert 'mixed_precision_param = "bfloat16"' in text
    alone = replace(plan, stages=tuple(replace(x, tp=1) for x in plan.stages))
    refused(f"precision: DeepSpeed has no {precision}", alone, "deepspeed")


@pytest.mark.parametrize(
    ("to", "change", "words"),
    [
        ("megatron", lambda p: replace(p, schedule="early"), "schedule: Megatron"),
        ("torchtitan", lambda p: replace(p, schedule="early"), "schedule: torchtitan"),
        ("deepspeed", split, "schedule: DeepSpeed has no zb-h1"),
        ("megatron", split, "schedule: Megatron has no zb-h1"),
        ("torchtitan", lambda p: split(p, "dualpipe"), "schedule: dualpipe has every layer on two"),
        ("deepspeed", lambda p: chunked(p), "chunks: DeepSpeed's pipelines are not interleaved"),
        (
            "megatron",
            lambda p: replace(p, stages=(p.stages[0], replace(p.stages[1], zero=0))),
            "stages[1].zero: Megatron gives every stage the same, and the plan has 0 there and 1",
        ),
        (
            "megatron",
            lambda p: replace(p, stages=(p.stages[0], replace(p.stages[1], tp=4))),
            "stages[1].tp: Megatron gives",
        ),
        ("megatron", lambda p: replace(p, batch=33), "illegal"),
    ],
)
def test_launchers__refuse_by_field(plan, to, change, words):
    refused(words, change(plan), to)
