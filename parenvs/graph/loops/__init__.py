"""Counted loops: how often they run, and their iterations one after another.

``trips`` finds the whole numbers that a module computes from constants, and with them the trip
counts; ``unroll`` writes a graph's loops over layers out; ``views`` are parts of stacked arrays.
"""
