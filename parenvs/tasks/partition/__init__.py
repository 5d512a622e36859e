"""Operator partitioning and data parallelism: rules, classes, costs, the judge."""
