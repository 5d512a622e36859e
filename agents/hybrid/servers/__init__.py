"""Exact methods and certified bounds for stages of one server each, in any order of the servers."""
