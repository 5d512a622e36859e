"""An agent for jobs on nodes that come and go."""
