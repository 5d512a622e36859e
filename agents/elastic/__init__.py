"""Policies for jobs on nodes that come and go: the optimal one, bounds, rules, agents that learn."""
