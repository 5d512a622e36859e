"""Operator partitioning and data parallelism: rules, classes, costs, the judge."""

from parenvs.partitioning.problem import Partitioning, PartitionReport
from parenvs.partitioning.space import PartitionSpace

__all__ = ["PartitionReport", "PartitionSpace", "Partitioning"]
