"""Drawn orders of micro-batches, and their sets."""
