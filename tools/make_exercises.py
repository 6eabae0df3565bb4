"""Make exercises/ out of solutions/, execute what was made, and store it.

    python tools/make_exercises.py           # write and execute an exercise for every solution
    python tools/make_exercises.py --check   # write nothing; fail where exercises/ is not what it would be

What lies between a line `### BEGIN SOLUTION` and a line `### END SOLUTION` is the learner's to write:

- indented (inside a function) it becomes `raise NotImplementedError("your code here")`;
- at the margin it becomes `# your code here`. Put `answer = ...` before it, so that the check finds a blank.

The same holds inside a `%%torchrun` or `%%writefile` cell. Tags on a solution's cell:

- `exercise-raises`: in the exercise this cell meets the unfinished code; it is tagged `raises-exception`;
- `solution-only`: the cell is not in the exercise.

The code cells of all exercises go into `ddplab/grading/exercises.json` as well, for `python -m ddplab grade`.
"""

import argparse
import copy
import re
import sys
import time
from pathlib import Path

from nbformat import NotebookNode
from run_notebooks import ROOT, NotebookError, copied, execute, normalise, read, tags, write

from ddplab.grading import sheets

PACKED = ROOT / "ddplab" / "grading" / "exercises.json"  # what `python -m ddplab grade` holds a learner's notebooks to

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"


def blank(source: str) -> str:
    """A cell's source with every solution block replaced. Raises ValueError for markers that do not pair."""
    lines, inside = [], False
    for line in source.splitlines():
        marker = line.strip()
        if marker == BEGIN:
            if inside:
                raise ValueError(f"a second {BEGIN} before {END}")
            inside = True
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(f'{indent}raise NotImplementedError("your code here")' if indent else "# your code here")
        elif marker == END:
            if not inside:
                raise ValueError(f"{END} without {BEGIN}")
            inside = False
        elif re.search(r"#\s*(BEGIN|END) SOLUTION", line, re.IGNORECASE):
            raise ValueError(f"a marker that is not spelt like {BEGIN} or {END}: {line.strip()!r}")
        elif not inside:
            lines.append(line)
    if inside:
        raise ValueError(f"{BEGIN} without {END}")
    return "\n".join(lines)


def exercise_from(solution: NotebookNode) -> NotebookNode:
    """The exercise notebook, not yet executed, that a solution stands for."""
    notebook = copy.deepcopy(solution)
    notebook.cells = [cell for cell in notebook.cells if "solution-only" not in tags(cell)]
    for n, cell in enumerate(notebook.cells, 1):
        if cell.cell_type == "code":
            try:
                cell.source = blank(cell.source)
            except ValueError as error:
                raise NotebookError(f"cell {n}: {error}") from None
            cell.outputs, cell.execution_count = [], None
        kept = ["raises-exception" if tag == "exercise-raises" else tag for tag in tags(cell)]
        cell.metadata = NotebookNode(tags=kept) if kept else NotebookNode()
    title = notebook.cells[0] if notebook.cells else None
    if title is None or title.cell_type != "markdown" or not title.source.startswith("# 📃 Solutions"):
        raise NotebookError("the first cell of a solution is its title, `# 📃 Solutions N.N …`")
    title.source = title.source.replace("# 📃 Solutions", "# 📝 Exercises", 1)
    if not any(BEGIN in cell.source for cell in solution.cells):
        raise NotebookError("nothing in it is marked as a solution")
    normalise(notebook)
    return notebook


def without_outputs(notebook: NotebookNode) -> NotebookNode:
    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def drift(solutions: Path, exercises: Path) -> list[str]:
    """What in `exercises` is not what `solutions` would give, one sentence a file; empty when all is well."""
    found = []
    for solution in sorted(solutions.rglob("*.ipynb")):
        name = solution.relative_to(solutions)
        path = exercises / name
        try:
            expected = exercise_from(read(solution))
        except NotebookError as error:
            found.append(f"{solutions.name}/{name}: {error}")
            continue
        if not path.exists():
            found.append(f"{exercises.name}/{name} is missing")
        elif without_outputs(read(path)) != expected:
            found.append(f"{exercises.name}/{name} is not what {solutions.name}/{name} gives")
    return found + orphans(solutions, exercises)


def orphans(solutions: Path, exercises: Path) -> list[str]:
    made, sources = ({path.relative_to(it) for path in it.rglob("*.ipynb")} for it in (exercises, solutions))
    return [f"{exercises.name}/{name} has no solution" for name in sorted(made - sources)]


def make(solution: Path, exercise: Path) -> None:
    """Write one exercise, executed. Raises NotebookError, and then leaves the file as it was."""
    notebook = exercise_from(read(solution))
    exercise.parent.mkdir(parents=True, exist_ok=True)
    with copied(exercise.parent) as [folder]:
        execute(notebook, folder)
    normalise(notebook)
    write(notebook, exercise)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("solutions", nargs="*", type=Path, help="default: everything in solutions/")
    parser.add_argument("--check", action="store_true", help="write nothing, fail where exercises/ differs")
    arguments = parser.parse_args()
    solutions, exercises = ROOT / "solutions", ROOT / "exercises"
    if arguments.check:
        found = drift(solutions, exercises)
        if PACKED.read_text(encoding="utf-8") != sheets.packed(exercises):
            found.append(f"{PACKED.relative_to(ROOT)} is not what the exercises give")
        print("\n".join([*found, "Run `make notebooks`."]) if found else "exercises are what the solutions give")
        return 1 if found else 0
    problems = orphans(solutions, exercises)
    for solution in arguments.solutions or sorted(solutions.rglob("*.ipynb")):
        name = solution.resolve().relative_to(solutions)
        start = time.perf_counter()
        try:
            make(solution.resolve(), exercises / name)
            print(f"exercises/{name}: stored ({time.perf_counter() - start:.1f} s)", flush=True)
        except NotebookError as error:
            problems.append(f"solutions/{name}: FAILED\n{error}")
    PACKED.write_text(sheets.packed(exercises), encoding="utf-8")
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
