"""Stopping a training run as a user does, and comparing its result with that of a whole one."""

import dataclasses

from stable_baselines3.common.callbacks import BaseCallback


class Interrupt(BaseCallback):
    """Ctrl-C in the middle of an update."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def _on_step(self):
        if self.num_timesteps >= self.steps:
            raise KeyboardInterrupt
        return True


def untimed(result):
    """A result without what differs between two equal runs."""
    return dataclasses.replace(result, seconds=0.0, target_seconds=None)
