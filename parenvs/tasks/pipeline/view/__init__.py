"""Pipelines as text and as pictures."""
