"""IOPDDL problems decided turn by turn: what is legal, what is left, and what a plan is worth."""
