"""Chains of layers made of the HLO graph of a training step."""
