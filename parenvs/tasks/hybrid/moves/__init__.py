"""Neighbouring plans of a hybrid plan, of many problems at once: arrays, moves, what they cost."""
