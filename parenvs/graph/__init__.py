"""One HLO module as arrays: reading it, roles of its parameters, FLOPs."""

from parenvs.graph.graph import Graph, Phase, Role

__all__ = ["Graph", "Phase", "Role"]
