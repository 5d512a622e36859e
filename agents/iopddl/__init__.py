"""Solver of IOPDDL problems."""
