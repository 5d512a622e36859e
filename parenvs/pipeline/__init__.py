"""Pipelines: chains of pivots, what a plan costs, search spaces, the judge."""

from parenvs.pipeline.problem import Pipeline, Report
from parenvs.pipeline.profile import StageProfile

__all__ = ["Pipeline", "Report", "StageProfile"]
