"""Runs what strangers wrote: a process of its own with limits, a folder of its own, no network.

``parenvs.leaderboard.sandbox.runner.run`` starts it; leaderboard/README.md says what it protects
against, and what not.
"""
