"""Evaluations of policies: on one environment, and on sets of problems with their statistics."""
