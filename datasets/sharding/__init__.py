"""Drawn IOPDDL problems."""
