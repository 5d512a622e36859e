"""The tasks: each folder holds all that is of one task alone."""
