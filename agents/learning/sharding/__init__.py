"""Policies that learn ``IntraOpSharding-v0``; needs the extra ``agents``."""
