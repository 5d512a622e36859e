"""What others need of a partition plan: where arrays lie, what a step takes, what was decided."""
