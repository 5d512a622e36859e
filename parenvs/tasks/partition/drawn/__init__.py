"""Partition problems of many graphs: files of sets, and what an episode sees of a problem."""
