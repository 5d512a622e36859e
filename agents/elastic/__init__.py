"""Policies for jobs on nodes that come and go: the optimal one, rules, an agent that learns."""
