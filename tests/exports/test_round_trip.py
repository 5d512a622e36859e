"""What launchers are told is read back as the plan that was told, and judged the same."""

import itertools
import re
from dataclasses import replace

import pytest
from cases import slow

import parenvs
from parenvs.errors import ParenvsError
from parenvs.exports.formats import read_back, runs_in, runs_words
from parenvs.tasks.hybrid import export
from parenvs.tasks.hybrid.plan import HybridStage
from parenvs.tasks.hybrid.space import Constraints

FRAMEWORKS = ("megatron", "torchtitan", "deepspeed", "accelerate")
PROBLEMS = (
    ("gpt-1.7b", "2x8:a100", 64, "megatron-2022", "bf16"),
    ("mixtral-8x7b", "8x8:h100", 256, "nemo-2024", "fp8"),
    ("llama3-70b", "8x8:h100", 512, "titan-async", "bf16"),
    ("llama3-405b", "64x8:h100", 512, "nemo-2026", "bf16"),
)
WAYS = (
    {},
    {"chunks": 2},
    {"pp": 4, "recompute": ("full",)},
    {"pp": 1, "zero": (3,)},
    {"tp": 4, "recompute": ("selective",)},
    {"schedule": "zb-v"},
)


def problem_of(shape, cluster, batch, stack, precision):
    return parenvs.problem(
        shape, cluster, task="hybrid", batch=batch, stack=stack, precision=precision
    )


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("case", [PROBLEMS[0], *slow(*((case,) for case in PROBLEMS[1:]))])
def test_round_trip__the_plan_told_is_the_plan_read(framework, case):
    """Every setting that costs is in the file: the plan itself comes back, with its seconds."""
    problem, count = problem_of(*case), 0
    for way in WAYS:
        limits = Constraints(framework=framework, **way)
        try:
            answer = parenvs.plan(problem, "uniform", constraints=limits)
            found = parenvs.export(answer.plan, framework)
        except ParenvsError:
            continue
        said = read_back(found.text, len(problem.model))
        again = export.read_back(problem, said)
        assert (again, found.loss) == (answer.plan, 0), found.text
        assert problem.report(again).length_seconds == answer.report.length_seconds
        count += 1
    # Neither runs 8 bits; DeepSpeed has no memory for the largest model, Accelerate no stages.
    runs_few = case[-1] == "fp8" or case[0] == "llama3-405b"
    least = {"deepspeed": 0 if runs_few else 2, "accelerate": 0 if runs_few else 1}
    assert count >= least.get(framework, 2)


def test_round_trip__stages_that_differ_and_layers_of_two_modes():
    problem = problem_of("gpt-1.7b", "1x8:a100", 64, "nemo-2024", "bf16")
    # first and last stage, and a layout
    for bounds in (0, 7, 12, 17, 24), (0, 7, 11, 18, 24):
        stages = [
            HybridStage(((a, b),), 2, tp=2, recompute={"full": 2})
            for a, b in itertools.pairwise(bounds)
        ]
        plan = problem.plan(stages, 2, gradient_overlap=True)
        text = parenvs.export(plan, "megatron").text
        again = export.read_back(problem, read_back(text, 24))
        assert again.stages[1].modes[:3] == ("full", "full", "none")
        made = tuple(replace(x, recompute=y.modes) for x, y in zip(stages, stages, strict=True))
        assert replace(again, stages=made) == replace(plan, stages=made)
        assert problem.report(again).length_seconds == problem.report(plan).length_seconds


def test_round_trip__a_script_as_people_write_it():
    """Defaults are the launcher's, values stand behind = or on lines that go on."""
    script = """torchrun --nnodes=2 --nproc-per-node 8 pretrain_gpt.py \\
      --tensor-model-parallel-size 4 --pipeline-model-parallel-size=2 --bf16 \\
      --micro-batch-size 2 --global-batch-size 64 --use-distributed-optimizer"""
    said = read_back(script, 24)
    assert [stage.devices for stage in said.stages] == [8, 8] and said.replicas == (2, 2)
    assert said.stages[1].layers == ((12, 24),) and said.stages[0].zero == 1
    assert (said.batch, said.micro_batch, said.gradient_bytes) == (64, 2, 4)
    with pytest.raises(ParenvsError, match="--global-batch-size is missing in the settings"):
        read_back(script.replace("--global-batch-size 64", ""), 24)
    with pytest.raises(ParenvsError, match="--micro-batch-size must be a whole number, not 'two'"):
        read_back(script.replace("size 2 ", "size two "), 24)
    problem = problem_of("gpt-1.7b", "2x8:a100", 128, "nemo-2024", "bf16")
    with pytest.raises(ParenvsError, match="batch: the file says 64, and the problem has 128"):
        export.read_back(problem, said)


def test_runs_in__every_framework_or_the_field_against_it():
    problem = problem_of("gpt-1.7b", "1x8:a100", 64, "nemo-2024", "bf16")
    parts = [HybridStage(((0, 14),), 4, tp=2), HybridStage(((14, 24),), 4, tp=2)]
    found = runs_in(problem.plan(parts, 2))
    assert found["megatron"] == 0
    assert found["deepspeed"] == pytest.approx(
        parenvs.export(problem.plan(parts, 2), "deepspeed").loss
    )
    assert found["torch"].startswith("instance: gpt-1.7b is a shape")
    words = runs_words(found)
    assert re.fullmatch(
        r"runs in: megatron, torchtitan( \(\+[\d.]+%\))?, deepspeed \(\+[\d.]+%\); "
        r"not in jax, accelerate \(stages\), torch \(instance\)", words
    ), words  # fmt: skip
    assert runs_words(dict.fromkeys(found, "task: of no stages")).startswith(
        "runs in: no framework as it is; not in jax, torch, megatron"
    )
