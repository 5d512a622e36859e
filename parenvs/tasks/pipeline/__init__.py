"""Pipelines: chains of pivots, what a plan costs, search spaces, the judge."""

from parenvs.tasks.pipeline.problem import Pipeline, Report
from parenvs.tasks.pipeline.profile import StageProfile

__all__ = ["Pipeline", "Report", "StageProfile"]
