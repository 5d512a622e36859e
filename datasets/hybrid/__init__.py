"""Drawn hybrid problems, with equal and unequal servers, and their sets."""
