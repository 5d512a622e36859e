"""Hybrid plans as a sequence of choices: whose turn it is, what is legal, what it ends in."""
