"""Runs that are independent of each other, as tasks of Ray (extra ``ray``)."""
