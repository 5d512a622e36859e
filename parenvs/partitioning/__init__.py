"""Operator partitioning and data parallelism: rules, classes, costs, the judge."""

from parenvs.partitioning.judge import PartitionReport
from parenvs.partitioning.problem import Partitioning
from parenvs.partitioning.space import PartitionSpace

__all__ = ["PartitionReport", "PartitionSpace", "Partitioning"]
