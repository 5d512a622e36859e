"""Training on machines that come and go: which plan next, what moves, and what it costs."""
