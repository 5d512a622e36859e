"""The first page, which has the rankings of all tasks, and the page of each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parenvs.leaderboard.check import Standing
from parenvs.leaderboard.comparing import Marks, compare, turned
from parenvs.leaderboard.kinds import kind_of
from parenvs.leaderboard.problem import Reference, TaskProblem
from parenvs.leaderboard.site.entry import learned_mark
from parenvs.leaderboard.site.html import Child, Markup, badge, foreign_text, markup, page, tag
from parenvs.leaderboard.site.sortable_table import (
    Column,
    Field,
    Row,
    number,
    proof,
    score_field,
    seconds_field,
    sortable_table,
)
from parenvs.leaderboard.tasks import Task, TaskList
from parenvs.leaderboard.verdicts import PlanState, Verdict

_RANKING = (
    Column("rank", "number"),
    Column("entry"),
    Column("score", "number", "descending"),
    Column("at reference", "number", "descending"),
    Column("legal plans", "number", "descending"),
    Column("learned"),
    Column("search", extra=True),
    Column("seconds", "number", extra=True),
)


def index_page(known: TaskList, rankings: Mapping[str, Sequence[Standing]]) -> str:
    """Make the first page: all rankings, with filters.

    Args:
        known: the list of tasks.
        rankings: name of a task -> its standings.
    """
    problems = sum(len(task.counted) for task in known.tasks.values())
    entries = sum(map(len, rankings.values()))
    return page(
        "parenvs leaderboard",
        [],
        0,
        tag("h1", "Plans for parallel training, judged anew"),
        tag(
            "p",
            "An entry is a file of plans. Its costs are computed by the judge each time this page "
            "is written, so that no entry can be wrong or stale.",
            class_="lead",
        ),
        tag(
            "p",
            f"{len(known.tasks)} tasks, {problems} problems, {entries} entries. List of tasks: "
            f"version {known.version}, revision {known.revision}. ",
            tag("a", "How scores come about", href="#rules"),
            class_="quiet",
        ),
        _filters(known),
        [_section(task, rankings.get(task.name, ())) for task in known.tasks.values()],
        _rules(),
    )


def _rules() -> Markup:
    """Make the section that explains the tables."""
    return markup(
        tag("h2", "How scores come about", id="rules"),
        tag(
            "ul",
            tag("li", "Score of a problem: cost of the reference / cost of the plan. It is at most "
                "1 where the reference is a proven optimum; a plan better than one without proof "
                "scores above 1, is marked by a triangle, and becomes the reference of the next "
                "list."),
            tag("li", "Score of a task: the geometric mean over all its problems, of policies the "
                "arithmetic one. Equal to six decimals is a tie, listed by name."),
            tag("li", "Same plans: on every problem those of another entry. ≈: entries that the "
                "simulation puts in another order than L are equal within the model's error."),
            tag("li", "A problem without a legal plan scores as the trivial plan and is marked: "
                "leaving out what one is bad at does not pay."),
            tag("li", "A reference is a proven optimum, or the best plan known with a proven "
                "bound; which of both stands beside it."),
            tag("li", "Problems whose files are not ours to ship do not count; where the file was "
                "added, their verdicts and figures are shown beside the score."),
            tag("li", "Learned: something in it was fitted to problems or to rewards. On what, and "
                "the search that it needs, is what its authors say, as are the seconds; neither "
                "ranks."),
            class_="rules",
        ),
    )  # fmt: skip


def _filters(known: TaskList) -> Markup:
    """Make the filters, which are hidden until a script shows them."""
    tasks = [tag("option", "all tasks", value="")]
    tasks += [tag("option", name, value=name) for name in known.tasks]
    learned = (("", "all"), ("yes", "learned"), ("no", "not learned"))
    options = [tag("option", words, value=value) for value, words in learned]
    return tag(
        "form",
        tag("label", "Task ", tag("select", tasks, id="filter-task")),
        tag("label", "Entries ", tag("select", options, id="filter-learned")),
        tag("label", "Text ", tag("input", type="search", id="filter-text", autocomplete="off")),
        tag("p", role="status", id="filter-status"),
        class_="filters",
        id="filters",
        aria_label="Filter the entries",
        hidden=True,
    )


def _section(task: Task, standings: Sequence[Standing]) -> Markup:
    """Make the section of a task: its title, a paragraph and its ranking."""
    title = tag("h2", tag("a", task.name, href=f"tasks/{task.name}.html"))
    return tag(
        "section",
        title,
        tag("p", about(task)),
        ranking_table(task, standings, "entries/"),
        data_task=task.name,
        id=task.name,
    )


def about(task: Task) -> str:
    """Describe a task in a few sentences."""
    proven = sum(p.reference.proven for p in task.counted.values())
    count, more = len(task.counted), len(task.problems) - len(task.counted)
    proofs = "all" if proven == count else f"{proven} of them"
    words = f"{task.title} {count} problems, {proofs} with a proven optimum. Cost: {task.cost}."
    if kind_of(task.name).mean == "arithmetic":
        words += (
            " The reference is the hindsight optimum of the same courses; the score of a problem "
            "is its share, that of the task the arithmetic mean."
        )
    return words if not more else f"{words} {more} more, whose files users add, do not count."


def ranking_table(task: Task, standings: Sequence[Standing], root: str) -> Markup:
    """Make the table of a task's ranking; ``root`` leads to the folder of the entries."""
    if not standings:
        return tag("p", "No entry yet.", class_="quiet")
    marks = compare(standings)
    is_simulated = any(mark.simulated is not None for mark in marks.values())
    rows = [
        _rank(task, standing, root, marks[standing.checked.entry.entry], is_simulated)
        for standing in standings
    ]
    figures = kind_of(task.name).figures
    own = [Column(figure.title, first="descending") for figure in figures]
    own += [Column("simulated", "number", "descending")] if is_simulated else []
    words = (
        f"Ranking of {task.name}. Seconds are the entry's own, of all its plans; they do not rank."
    )
    words += "".join(f" {x.title[0].upper()}{x.title[1:]}: {x.words}." for x in figures)
    if is_simulated:
        words += (
            " L ranks. Simulated: the same score by the simulated length; entries whose order it "
            "turns round are equal within the model's error (≈)."
        )
    return sortable_table(words, (*_RANKING[:5], *own, *_RANKING[5:]), rows, head=1)


def _rank(task: Task, standing: Standing, root: str, mark: Marks, is_simulated: bool) -> Row:
    """Make the row of an entry in the ranking."""
    checked, entry = standing.checked, standing.checked.entry
    total, legal = len(task.counted), checked.count(PlanState.LEGAL)
    seconds = standing.seconds
    marks: list[Child] = []
    for state, words, kind in (
        (PlanState.MISSING, "missing", "warn"),
        (PlanState.ILLEGAL, "illegal", "bad"),
    ):
        if checked.count(state):
            marks += [badge(f"{checked.count(state)} {words}", kind), " "]
    if mark.same:
        marks += [badge("same plans", "warn"), tag("small", foreign_text(f" as {mark.same}")), " "]
    beside = [tag("small", foreign_text(f"≈ {', '.join(mark.equal)}"))] if mark.equal else []
    simulated = (
        []
        if mark.simulated is None
        else [Field([f"{mark.simulated:.4f}", *beside], mark.simulated, "score")]
    )
    if is_simulated and not simulated:
        simulated = [Field("")]
    authors = ", ".join(entry.authors)
    name = tag("a", foreign_text(entry.entry), href=f"{root}{task.name}/{entry.entry}.html")
    sources = tag("small", foreign_text(", ".join(entry.trained_on))) if entry.trained_on else None
    filter_words = (entry.entry, entry.method, authors, *entry.trained_on, entry.search_budget)
    return Row(
        (
            number(standing.rank, f"{standing.rank}"),
            Field([name, tag("small", foreign_text(authors))], entry.entry, "name"),
            score_field(standing.score),
            number(standing.reached, f"{standing.reached} of {total}"),
            Field([*marks, f"{legal} of {total}"], float(legal)),
            *(Field(words, words) for words in checked.figures.values()),
            *simulated,
            Field([learned_mark(entry.learned), sources], "1" if entry.learned else "2"),
            Field(foreign_text(entry.search_budget), entry.search_budget, "prose"),
            seconds_field(seconds),
        ),
        learned=entry.learned,
        words=" ".join(filter_words),
    )


def task_page(task: Task, standings: Sequence[Standing]) -> str:
    """Make the page of a task: ranking, scores by problem, problems with their references."""
    return page(
        f"{task.name}, parenvs leaderboard",
        [("All tasks", "index.html")],
        1,
        tag("h1", task.name),
        tag("p", about(task), f" Trivial plan: {task.trivial}.", class_="lead"),
        tag("h2", "Ranking"),
        ranking_table(task, standings, "../entries/"),
        markup(tag("h2", "Scores by problem"), _matrix(task, standings)) if standings else None,
        tag("h2", "Problems"),
        _problems(task),
    )


def _matrix(task: Task, standings: Sequence[Standing]) -> Markup:
    """Make the table of scores: a row for each problem, a column for each entry."""
    columns, others = [Column("problem")], turned(standings)
    verdicts = []
    for standing in standings:
        entry = standing.checked.entry
        address = f"../entries/{task.name}/{entry.entry}.html"
        name = tag("a", foreign_text(entry.entry), href=address)
        columns.append(Column(name, "number", "descending"))
        verdicts.append({v.problem.name: v for v in standing.checked.verdicts})
    rows = [
        Row(
            (
                Field(name),
                *(
                    _cell(by_name[name], s.checked.entry.entry in others.get(name, ()))
                    for s, by_name in zip(standings, verdicts, strict=True)
                ),
            )
        )
        for name in task.problems
    ]
    words = (
        f"Scores of {task.name} by problem. A star: the cost is the reference's. A triangle: "
        "better than the reference, which has no proof. In brackets: no legal plan, scored as the "
        "trivial plan."
    )
    if others:
        words += " ≈: a greater L than the reference, and not slower in simulation."
    return sortable_table(words, columns, rows)


def _cell(verdict: Verdict, is_turned: bool) -> Field:
    """Make the cell of a score; ``is_turned`` says that the simulation puts it first."""
    score = f"{verdict.score:.4f}" + " ≈" * is_turned
    if verdict.state == PlanState.ILLEGAL:
        return Field(f"illegal ({score})", verdict.score, "bad")
    if verdict.state == PlanState.UNJUDGED:
        return Field("not judged", None, "gone")
    if verdict.state == PlanState.MISSING:
        return Field(f"({score})", verdict.score, "gone")
    if verdict.reaches:
        return Field(f"★ {score}", verdict.score, "heat best")
    if verdict.improves:
        return Field(f"▲ {score}", verdict.score, "heat best")
    return Field(score, verdict.score, f"heat h{min(int(verdict.score * 10), 9)}")


_PROBLEMS = (
    Column("problem"),
    Column("graph"),
    Column("devices", "number"),
    Column("cluster"),
    Column("settings"),
    Column("reference", "number"),
    Column("proof"),
    Column("by"),
    Column("trivial plan", "number"),
)


def _problems(task: Task) -> Markup:
    """Make the table of a task's problems."""
    rows = [_problem(problem) for problem in task.problems.values()]
    return sortable_table(f"Problems of {task.name}. The cost is {task.cost}.", _PROBLEMS, rows)


def _problem(problem: TaskProblem) -> Row:
    """Make the row of a problem."""
    settings = dict(problem.settings)
    settings.pop("cluster", None)
    reference, trivial = problem.reference, problem.trivial
    words = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in settings.items())
    return Row(
        (
            Field(problem.name),
            Field(problem.instance),
            *_devices(problem),
            Field(words, style="prose"),
            number(reference.cost, problem.words(reference.cost)),
            Field(proof(reference), reference.status),
            Field(foreign_text(_provenance(reference)), style="prose"),
            number(trivial, problem.words(trivial)),
        )
    )


def _devices(problem: TaskProblem) -> tuple[Field, Field]:
    """Make the cells of a problem's devices; empty where it names none."""
    if not problem.has_cluster:
        return Field("", None), Field("")
    cluster = problem.cluster
    return number(cluster.devices, f"{cluster.devices}"), Field(str(cluster))


def _provenance(reference: Reference) -> str:
    """Return in words what made a reference and its bound, and where."""
    words = reference.method
    if reference.bounded_by:
        words += f"; bound: {reference.bounded_by}"
    return f"{words}; {reference.source}" if reference.source else words
