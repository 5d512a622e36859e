"""Trains and evaluates one agent on one problem; needs the extra ``agents``."""

from parenvs.agents.learning.train.config import Config
from parenvs.agents.learning.train.run import TrainResult, play, replay, train

__all__ = ["Config", "TrainResult", "play", "replay", "train"]
