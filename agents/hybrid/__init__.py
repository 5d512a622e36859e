"""Planners of hybrid plans, with equal and unequal servers."""
