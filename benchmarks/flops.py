"""FLOPs of our graphs against XLA's own cost analysis (needs JAX)."""

from __future__ import annotations

from typing import Any

from benchmarks.framework import (
    INSTANCES,
    Column,
    Row,
    columns,
    main,
    measurement,
    percent,
    progress,
)
from parenvs import Graph, load_graph
from parenvs.graph import reader as hlo
from parenvs.instances import KINDS


def compare(name: str, model: Any, kind: str) -> Row:
    """Both counts of one variant; for a shipped model ours is that of the shipped file."""
    import jax

    from parenvs.datasets.models import forward, train_step

    progress(f"{name} {kind}")
    function, arguments = (forward if kind == "forward" else train_step)(model)
    lowered: Any = jax.jit(function, keep_unused=True).lower(*arguments)
    shipped = name in INSTANCES
    if shipped:
        graph: Graph = load_graph(name, kind)
    else:
        proto = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
        graph = hlo.read_proto(proto, name=name)
    xla = float(lowered.cost_analysis()["flops"])
    return {
        "model": name,
        "kind": kind,
        "shipped": shipped,
        "instructions": len(graph.opcode),
        "ours": float(graph.total_flops),
        "xla": xla,
        "difference": float(graph.total_flops) / xla - 1,
    }


def paper_models() -> dict[str, Any]:
    """Those of the paper in full size, and one of each other architecture."""
    from jax_models import decoder_only, resnet50
    from parenvs.datasets.models import MODELS

    shipped = {name: MODELS[name] for name in INSTANCES}
    return {**shipped, "resnet-50": resnet50(), "decoder-only": decoder_only()}


@measurement(title="FLOPs against XLA", about={"models": "only these (default: all)"})
def flops(models: tuple[str, ...] = ()) -> dict[str, Any]:
    import jax

    made = paper_models()
    rows = [compare(name, made[name], kind) for name in models or made for kind in KINDS]
    return {"jax": jax.__version__, "models": rows}


@flops.page
def page(data: dict[str, Any]) -> list[str]:
    told: list[Column] = [
        ("model", "{model}"),
        ("variant", "{kind}"),
        ("graph", lambda row: "shipped file" if row["shipped"] else "lowered here"),
        ("instructions", "{instructions:,}"),
        ("ours", "{ours:.6e}"),
        ("XLA", "{xla:.6e}"),
        ("ours / XLA - 1", "{difference:.5%}"),
    ]
    worst = max(data["models"], key=lambda row: abs(row["difference"]))
    return [
        f"FLOPs of one execution; XLA's are `lowered.cost_analysis()`, jax {data['jax']}.",
        columns(data["models"], told, left=3),
        f"Largest difference: {percent(worst['difference'], 5)} ({worst['model']}, "
        f"{worst['kind']}). (target: 0.1 %.)",
    ]


if __name__ == "__main__":
    main(flops)
