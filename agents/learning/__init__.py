"""Agents that learn, their training, and its distribution."""
