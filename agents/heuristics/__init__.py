"""Planners that prove nothing: simple rules, published planners, random search and beam search."""

from parenvs.agents.heuristics.beam import beam
from parenvs.agents.heuristics.partition import (
    data_parallel,
    expert,
    greedy,
    partition_all,
    replicate,
)
from parenvs.agents.heuristics.partition import random_search as random_partition_search
from parenvs.agents.heuristics.pipedream import pipedream
from parenvs.agents.heuristics.pipeline import even_cut, random_search

__all__ = [
    "beam",
    "data_parallel",
    "even_cut",
    "expert",
    "greedy",
    "partition_all",
    "pipedream",
    "random_partition_search",
    "random_search",
    "replicate",
]
