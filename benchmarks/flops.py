"""FLOPs of our graphs against XLA's own cost analysis (needs JAX)."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.common import INSTANCES, parser, percent, progress, publish, table
from parenvs import Graph, load_graph
from parenvs.graph import reader as hlo
from parenvs.instances import KINDS


def compare(name: str, model: Any, kind: str) -> dict[str, Any]:
    """Both counts of one variant; for a shipped model ours is that of the shipped file."""
    import jax

    from parenvs.datasets.models import forward, train_step

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


def main() -> None:
    """Lower, count, print and write."""
    options = parser(__doc__)
    options.add_argument("--models", nargs="+", help="only these (default: all)")
    chosen = options.parse_args()
    try:
        import jax
    except ImportError as error:
        sys.exit(f"flops.py needs the extra 'jax' ({error})")
    from jax_models import decoder_only, resnet50
    from parenvs.datasets.models import MODELS

    models = {
        **{x: MODELS[x] for x in INSTANCES},
        "resnet-50": resnet50(),
        "decoder-only": decoder_only(),
    }
    raws = []
    for name in chosen.models or models:
        for kind in KINDS:
            progress(f"{name} {kind}")
            raws.append(compare(name, models[name], kind))
    header = ["model", "variant", "graph", "instructions", "ours", "XLA", "ours / XLA - 1"]
    rows = [
        [
            raw["model"],
            raw["kind"],
            "shipped file" if raw["shipped"] else "lowered here",
            f"{raw['instructions']:,}",
            f"{raw['ours']:.6e}",
            f"{raw['xla']:.6e}",
            percent(raw["difference"], 5),
        ]
        for raw in raws
    ]
    worst = max(raws, key=lambda raw: abs(raw["difference"]))
    sections = [
        f"FLOPs of one execution; XLA's are `lowered.cost_analysis()`, jax {jax.__version__}.",
        table(header, rows, left=3),
        f"Largest difference: {percent(worst['difference'], 5)} ({worst['model']}, "
        f"{worst['kind']}). (target: 0.1 %.)",
    ]
    publish("flops", sections, {"jax": jax.__version__, "models": raws}, chosen.out)


if __name__ == "__main__":
    main()
