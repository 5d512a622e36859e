"""Sets of partition problems: graphs of many families on clusters, and their references."""
