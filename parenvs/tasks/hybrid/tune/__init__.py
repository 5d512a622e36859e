"""Ask-and-tell tuning of hybrid plans: the cost model as a prior, trials as evidence."""
