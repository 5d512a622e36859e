"""Trains and evaluates one agent on one problem; needs the extra ``agents``."""

from parenvs.agents.train.config import Config
from parenvs.agents.train.run import TrainResult, play, replay, train

__all__ = ["Config", "TrainResult", "play", "replay", "train"]
