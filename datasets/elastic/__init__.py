"""Sets of problems of jobs on nodes that come and go."""
