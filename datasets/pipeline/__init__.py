"""Drawn pipelines: families, generators, sets and their optima."""
