"""The ``parenvs`` command.

It names no task. The options of a task are flags, made of the fields of ``Task.options`` and
``Task.search``; its name is a value of ``--task``. What else commands say or do for a task comes by
its hooks, all of which may be left out:

========================= ======================================================================
``reading``               ``(instance, options)`` -> arguments of ``load_graph``, or None where
                          problems are made of no graph; such graphs are kept beside plans
``assumed``               ``(graph, options)`` -> sentences on what is taken as given
``open``                  ``(instance, cluster, options, search)`` -> problem and options of
                          planners, with what is not given left open for ``plan`` and ``compare``
``remarks``               ``(request, answer, choice)`` -> ``to_json()`` and ``lines()``, what
                          ``plan`` says beside the judge's report
``compare``               ``(answers)`` -> a table of plans side by side
``map``                   ``(request, report)`` -> figure of all plans, for ``plan --map``
``explain``               ``(report, pattern)`` -> text, why a plan is as it is
``explain_problem``       ``(problem, pattern)`` -> text, what plans may do
``verify``                ``(plan, module)`` -> whether another tool agrees with the judge
``diff``, ``diff_text``   ``(report, report)`` -> difference; ``(difference, names)`` -> lines
``tables``                ``(instance, cluster, options)`` -> tables of ``show``
``names``                 ``()`` -> names of instances, for ``list``
``train``                 ``(instance or None)`` -> environment, its arguments, options that may be
                          added; None to train on the problem of the instance
``fused``                 ``(agent, seed, steps, folder, say, resume)``, a training on tensors
``layout``                ``(plan, graph, eager)`` -> ``parenvs.graph.layout.Layout``, for
                          ``export``, ``verify --compile`` and ``run``
``stages``                ``(plan, graph, measured)`` -> ``parenvs.core.stages.Stages``, for
                          ``export`` and ``run``
``step``                  ``(plan, target, element_bytes)`` -> ``parenvs.core.stages.Step``, for
                          ``run``
``decisions``             ``(plan, graph)`` -> what Shardy is told, and what should follow from it
``checkpoint``            ``(plan)`` -> shards of the state of its ranks, for ``reshard``
``chain``                 ``(**columns)`` -> what measured layers become, for ``profile``
``commands``              ``(app)``, adds commands of its own
========================= ======================================================================
"""

from parenvs.cli.app import main

__all__ = ["main"]
