"""Pipelines: chains of pivots, what a plan costs, search spaces, the judge."""

from parenvs.pipeline.cuts import CutSpace
from parenvs.pipeline.points import PointSpace
from parenvs.pipeline.problem import Pipeline, Report
from parenvs.pipeline.profile import StageProfile

__all__ = ["CutSpace", "Pipeline", "PointSpace", "Report", "StageProfile"]
