"""Runs what strangers wrote: a process of its own, isolated and with limits, or not at all.

``parenvs.leaderboard.sandbox.runner.run`` starts it; leaderboard/README.md says what it protects
against, and what not.
"""
