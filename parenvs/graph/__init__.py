"""HLO modules: the reader, and ``Graph``, which holds one as arrays with roles and FLOPs."""

from parenvs.graph.graph import Graph, Phase, Role

__all__ = ["Graph", "Phase", "Role"]
