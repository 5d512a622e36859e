"""Measures agents on the problems of the suite, and its speed: behind ``parenvs bench``."""
