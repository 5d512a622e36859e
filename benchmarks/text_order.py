"""How well the order of a trace is restored from HLO text, in which it is lost.

Needs the extra ``jax``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.flops import paper_models
from benchmarks.framework import main, measurement, table
from parenvs import Graph
from parenvs.graph import reader as hlo
from parenvs.graph import text as hlo_text
from parenvs.graph.flow import chain_bytes


def kinds(graph: Graph) -> list[tuple[str, tuple[int, ...]]]:
    """Opcode and shape of the result of every pivot, in order."""
    return [
        (
            graph.opcodes[graph.opcode[i]],
            graph.shape(int(graph.results[graph.result_offset[i]])),
        )
        for i in graph.pivots().tolist()
    ]


def compare(name: str, model: Any) -> list[str]:
    """The row of one forward pass, read from its proto and from its text."""
    import jax

    from parenvs.datasets.models import forward

    function, args = forward(model)
    module = jax.jit(function, keep_unused=True).lower(*args).compiler_ir("hlo")
    proto = hlo.read_proto(module.as_serialized_hlo_module_proto())
    text = hlo.read_module(hlo_text.parse(module.as_hlo_text()))
    ours, theirs = kinds(text), kinds(proto)
    moved = sum(a != b for a, b in zip(ours, theirs, strict=True))
    cut = chain_bytes(text, text.pivots()).cut
    wanted = chain_bytes(proto, proto.pivots()).cut
    count = len(ours)
    other = int((cut != wanted).sum())
    same = "yes" if text.total_flops == proto.total_flops else "no"
    cells = [f"{moved} ({moved / count:.1%})", f"{other} ({other / count:.1%})", same]
    return [name, f"{count:,}", *cells]


@measurement(title="Order of a trace restored from HLO text")
def text_order() -> Iterator[tuple[str, list[str]]]:
    for name, model in paper_models().items():
        yield "rows", compare(name, model)


@text_order.page
def page(data: dict[str, list[list[str]]]) -> list[str]:
    header = ["forward pass", "pivots", "places with another kind of instruction"]
    header += ["cuts with other bytes", "equal FLOPs"]
    return [
        "Text without metadata, as JAX prints it, against the HLO proto of the same module.",
        table(header, data["rows"]),
    ]


if __name__ == "__main__":
    main(text_order)
