"""The cost model of hybrid plans against what others measured and published."""
