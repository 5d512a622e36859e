"""Planners that prove nothing."""
