"""Solver of IOPDDL problems: a bound by messages, plans by moves over trees, proofs by HiGHS."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parenvs.agents.sharding.planners import Answer, solve_iopddl

__all__ = ["Answer", "solve_iopddl"]


def __getattr__(name: str) -> object:
    """Import the solver when it is asked for, as that takes its time."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from parenvs.agents.sharding import planners

    return getattr(planners, name)
