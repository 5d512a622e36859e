"""Pipelines: chains of pivots, what a plan costs, search spaces, the judge."""
