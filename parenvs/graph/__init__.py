"""HLO modules: the reader, and ``Graph``, which holds one as arrays with roles and FLOPs."""
