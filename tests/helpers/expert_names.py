"""What an expert splits in the shipped models, by the names of their variables: an expectation."""

import re

MEGATRON = (
    (r"(^|/)(q|k|v|query|key|value|qkv)(/kernel|/weight)?$", -1),
    (r"(^|/)(q|k|v|query|key|value|qkv)/bias$", 0),
    (r"(^|/)(o|out|output|proj)(/kernel|/weight)?$", 0),
    (r"(^|/)(conv1|wi|wi_0|wi_1|up|gate|intermediate)(/kernel|/weight)?$", -1),
    (r"(^|/)(conv1|wi|up|gate|intermediate)/bias$", 0),
    (r"(^|/)(conv2|wo|down)(/kernel|/weight)?$", 0),
)
"""Pattern of a variable's path -> dimension to split: arXiv 1909.08053, section 3; Table 3 of arXiv
2007.04069."""
DENSE = (
    (r"(^|/)fc1/kernel$", 1),
    (r"(^|/)fc1/bias$", 0),
    (r"(^|/)fc2/kernel$", 0),
    (r"(^|/)predictions/kernel$", 1),
    (r"(^|/)predictions/bias$", 0),
)
"""The same for the dense layers of a convolutional network (arXiv 2007.04069, Table 4)."""


def expert_dimensions(graph):
    """Path -> dimension that an expert partitions, for the variables that match a pattern."""
    for patterns in (MEGATRON, DENSE):
        dimensions = {}
        for i in graph.variables:
            path, rank = graph.paths[i], len(graph.shape(graph.parameter_tensor[i]))
            found = [d for pattern, d in patterns if re.search(pattern, path) and -rank <= d < rank]
            if found:
                dimensions[path] = found[0] % rank
        if dimensions:
            return dimensions
    return {}


def expert_by_names(problem):
    """(C,) bool: the classes of these dimensions, each if legal with those before."""
    chosen = problem.chosen({})
    for path, dimension in expert_dimensions(problem.graph).items():
        classes = problem.chosen({path: dimension})
        if problem.legal(chosen | classes):
            chosen |= classes
    return chosen
