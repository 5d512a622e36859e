"""Training jobs that change their plans while they run (extra ``torch``)."""
