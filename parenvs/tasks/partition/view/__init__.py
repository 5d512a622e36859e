"""Partitions as text and as pictures."""
