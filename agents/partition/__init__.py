"""Planners of partitions: exact by HiGHS, greedy, rules."""
