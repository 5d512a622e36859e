"""Solver of IOPDDL problems: a bound by messages, plans by moves over trees, proofs by HiGHS."""

from parenvs.agents.sharding.solve import Answer, solve_iopddl

__all__ = ["Answer", "solve_iopddl"]
