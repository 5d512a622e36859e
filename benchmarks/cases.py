"""Public recipes beside what ``exact`` recommends for the same model on the same devices.

    python benchmarks/cases.py
    python benchmarks/cases.py --seconds 60

What a recipe leaves open is chosen best, so that it does not look slower than it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import parenvs
from benchmarks.framework import Case, Row, columns, main, measurement, percent, spent
from parenvs.agents.hybrid.baseline import limits_of
from parenvs.agents.hybrid.exact import exact_uniform
from parenvs.errors import ParenvsError
from parenvs.tasks.hybrid.problem import Hybrid


class Recipe(NamedTuple):
    """What authors ran; their degrees as ``--baseline`` takes them, and where they say so."""

    model: str
    cluster: str
    batch: int
    precision: str
    stack: str
    degrees: str
    source: str


BRIDGE, DGXC = "Megatron-Bridge, performance summary", "NVIDIA/dgxc-benchmarking"
RECIPES = (
    Recipe("deepseek-v3", "128x8:h100", 8192, "fp8", "nemo-2025",
           "tp 2 pp 8 ep 64 chunks 4 micro-batch 1 zero 1 sp", f"{BRIDGE} 25.09"),
    Recipe("deepseek-v3", "32x8:h100", 2048, "fp8", "nemo-2025",
           "tp 2 pp 8 ep 32 chunks 4 micro-batch 1 zero 1 sp", f"as on 1,024, {BRIDGE} 25.09"),
    Recipe("deepseek-v3", "4x64:gb200", 4096, "mxfp8", "nemo-2026",
           "tp 1 pp 4 ep 64 chunks 4 micro-batch 1 zero 1", f"{BRIDGE} 26.08"),
    Recipe("qwen3-235b-a22b", "4x64:gb200", 8192, "mxfp8", "nemo-2026",
           "tp 1 pp 8 ep 32 chunks 3 micro-batch 1 zero 1", f"{BRIDGE} 26.08"),
    Recipe("qwen3-30b-a3b", "2x8:h100", 1024, "fp8", "nemo-2026",
           "tp 1 pp 1 ep 16 micro-batch 1 zero 1", f"{BRIDGE} 26.06"),
    Recipe("llama4-maverick", "2x64:gb200", 1024, "bf16", "nemo-2025",
           "tp 1 pp 2 ep 64 chunks 12 micro-batch 1 zero 1", f"{DGXC}, llama4-maverick"),
    Recipe("llama3-405b", "128x8:h100", 2048, "bf16", "llama-2024",
           "tp 8 pp 16 micro-batch 1 sp", "arXiv 2407.21783, Table 4, on fewer devices"),
    Recipe("nemotron4-340b", "32x8:h100", 64, "fp8", "nemo-2024",
           "tp 8 pp 8 chunks 12 micro-batch 1 zero 1 sp", f"{DGXC}, nemotron"),
    Recipe("llama3-70b", "8x8:h100", 128, "bf16", "nemo-2024",
           "tp 4 pp 4 chunks 5 micro-batch 1 zero 1 sp", "NeMo's performance summary 24.07"),
    Recipe("gpt-39.1b", "64x8:a100", 1536, "bf16", "megatron-2021",
           "tp 8 pp 2 micro-batch 4 recompute full", "arXiv 2104.04473, Table 1"),
    Recipe("llama2-13b", "4x8:a100", 256, "bf16", "llama-2024",
           "tp 2 micro-batch 1 zero 1 sp", "NeMo's performance summary 24.07, of H100"),
    Recipe("llama3-8b", "1x8:h100", 128, "bf16", "nemo-2024",
           "tp 1 context 2 micro-batch 1 zero 1", "NeMo's performance summary 24.07"),
    Recipe("llama3-8b", "1x8:a100", 128, "bf16", "llama-2024",
           "tp 1 micro-batch 1 zero 3", "PyTorch's FSDP examples"),
)  # fmt: skip


def problem_of(recipe: Recipe) -> Hybrid:
    """Return the problem that authors had."""
    problem: Hybrid = parenvs.problem(
        recipe.model, recipe.cluster, task="hybrid", batch=recipe.batch, stack=recipe.stack,
        precision=recipe.precision,
    )  # fmt: skip
    return problem


def measure(recipe: Recipe, seconds: float) -> Row:
    """Plan, and price the recipe."""
    problem = problem_of(recipe)
    row: Row = {"source": recipe.source, "stack": problem.stack.name}
    with spent(row):
        answer = parenvs.plan(problem, time_limit=seconds)
    row |= {"length": answer.cost, "plan": answer.plan.words, "among": answer.among}
    row["notes"] = list(answer.notes)
    try:
        recipes = exact_uniform(problem, limits_of(recipe.degrees))
    except ParenvsError as error:
        return {**row, "recipe": None, "why": str(error)}
    return {**row, "recipe": recipes.cost, "degrees": recipes.plan.words}


@measurement(key="model cluster precision", title="Public recipes of tuned runs")
def cases(seconds: float = 20.0) -> Iterator[Case]:
    for recipe in RECIPES:
        key = {"model": recipe.model, "cluster": recipe.cluster, "precision": recipe.precision}
        yield key, partial(measure, recipe, seconds)


def _recipe(row: Row) -> str:
    if row["recipe"] is None:
        return f"does not fit: {row['why']}"
    return f"{row['degrees']}: {row['recipe']:.4g} s"


@cases.page
def page(rows: list[Row]) -> list[str]:
    return [
        "Recipes that their authors published, priced by the stack that is named, and the plan "
        "that `exact` recommends among those that a framework runs. Recipes leave open what they "
        "do not say; the best of that is priced.",
        columns(
            rows,
            [
                ("model", "{model}"),
                ("devices", "{cluster}"),
                ("stack", "{stack}, {precision}"),
                ("recipe", _recipe),
                ("recommended", "{plan}: {length:.4g} s"),
                ("less", lambda row: row["recipe"] and percent(1 - row["length"] / row["recipe"])),
                ("source of the recipe", "{source}"),
            ],
        ),
    ]


if __name__ == "__main__":
    main(cases)
