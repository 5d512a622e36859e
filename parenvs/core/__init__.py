"""What all tasks share: plans, answers, games, the registry; no task is named here."""
