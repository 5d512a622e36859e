"""Operator partitioning and data parallelism: rules, classes, costs, the judge."""

from parenvs.tasks.partition.problem import Partitioning, PartitionReport

__all__ = ["PartitionReport", "Partitioning"]
