"""Solver of IOPDDL problems: a bound by messages, plans by moves over trees, proofs by HiGHS."""
