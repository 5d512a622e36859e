"""Measurements behind the figures of README and docs; none of them ships."""
