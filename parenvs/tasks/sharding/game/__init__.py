"""``IntraOpSharding-v0``: strategies of the nodes of an IOPDDL problem, single and native batch."""
