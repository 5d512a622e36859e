"""``ElasticPlan-v0``: which plan next, on nodes that come and go."""
