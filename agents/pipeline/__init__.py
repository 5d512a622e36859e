"""Planners of pipelines: exact searches, published planners, simple rules."""
