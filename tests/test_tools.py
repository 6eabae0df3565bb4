"""The notebook tools, on small notebooks of their own."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from notebook_guards import problems

ROOT = Path(__file__).parent.parent


def load(name):
    if str(ROOT / "tools") not in sys.path:
        sys.path.insert(0, str(ROOT / "tools"))
    return importlib.import_module(name)


run_notebooks, make_exercises = load("run_notebooks"), load("make_exercises")

SOLUTION = """\
def greet():
    ### BEGIN SOLUTION
    rank = dist.get_rank()
    return f"rank {rank} of {dist.get_world_size()}"
    ### END SOLUTION
"""


def code(source, *tags, **metadata):
    return new_code_cell(source, metadata={"tags": list(tags), **metadata} if tags or metadata else metadata)


def solution_notebook(*cells):
    return new_notebook(
        cells=[
            new_markdown_cell("# 📃 Solutions 1.1 · A test"),
            code("import torch.distributed as dist\n\nfrom ddplab import check"),
            code(SOLUTION),
            code('check("1.1.1", greet)'),
            *cells,
        ]
    )


@pytest.fixture
def course(tmp_path):
    """A course of one solution: the folder, with `solutions/` and `exercises/`."""
    (tmp_path / "solutions").mkdir()
    (tmp_path / "exercises").mkdir()
    nbformat.write(solution_notebook(), tmp_path / "solutions" / "00_test.ipynb")
    return tmp_path


def drift(course):
    return make_exercises.drift(course / "solutions", course / "exercises")


# Blanks


def test_a_block_in_a_function_raises():
    assert make_exercises.blank(SOLUTION) == 'def greet():\n    raise NotImplementedError("your code here")'


def test_a_block_at_the_margin_is_a_comment():
    source = "answer = ...\n### BEGIN SOLUTION\nanswer = 3\n### END SOLUTION\nprint(answer)"
    assert make_exercises.blank(source) == "answer = ...\n# your code here\nprint(answer)"


def test_blocks_in_a_script_cell_follow_the_same_rule():
    source = "%%torchrun\ndef main():\n    ### BEGIN SOLUTION\n    pass\n    ### END SOLUTION\nmain()\n"
    blank = make_exercises.blank(source)
    assert blank.splitlines()[2] == '    raise NotImplementedError("your code here")' and blank.endswith("main()")


def test_several_blocks_keep_what_is_between_them():
    source = "### BEGIN SOLUTION\na = 1\n### END SOLUTION\nb = 2\n### BEGIN SOLUTION\nc = 3\n### END SOLUTION"
    assert make_exercises.blank(source) == "# your code here\nb = 2\n# your code here"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("### BEGIN SOLUTION\nx = 1", "without ### END"),
        ("x = 1\n### END SOLUTION", "without ### BEGIN"),
        ("### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION", "a second"),
        ("## begin solution\nx = 1", "not spelt like"),
    ],
)
def test_markers_that_do_not_pair_are_refused(source, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        make_exercises.blank(source)


def test_tags_and_title_of_an_exercise():
    notebook = solution_notebook(
        code("greet()", "exercise-raises"),
        code("1", "nbval-ignore-output", "raises-exception"),
        code("secret = 1", "solution-only"),
        new_markdown_cell("Why this works", metadata={"tags": ["solution-only"]}),
    )
    made = make_exercises.exercise_from(notebook)
    assert made.cells[0].source == "# 📝 Exercises 1.1 · A test"
    assert [cell.metadata.get("tags", []) for cell in made.cells[4:]] == [
        ["raises-exception"],
        ["nbval-ignore-output", "raises-exception"],
    ]
    assert [cell.id for cell in made.cells] == [cell.id for cell in notebook.cells[:6]]
    assert "BEGIN SOLUTION" in notebook.cells[2].source, "the solution itself is left alone"


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([new_markdown_cell("# Something"), code(SOLUTION)], "the first cell of a solution is its title"),
        ([new_markdown_cell("# 📃 Solutions 00"), code("x = 1")], "nothing in it is marked"),
        ([new_markdown_cell("# 📃 Solutions 00"), code("### END SOLUTION")], "cell 2: ### END"),
    ],
)
def test_a_solution_that_is_none_is_refused(cells, words):
    with pytest.raises(run_notebooks.NotebookError, match=words):
        make_exercises.exercise_from(new_notebook(cells=cells))


# Making and drift


def test_made_exercises_are_executed_clean_idempotent_and_without_drift(course):
    path = course / "exercises" / "00_test.ipynb"
    make_exercises.make(course / "solutions" / "00_test.ipynb", path)
    first = path.read_bytes()
    made = nbformat.read(path, as_version=4)
    assert made.cells[3].outputs[0].text == "exercise 1.1.1, Every rank says who it is: not filled in yet\n"
    assert problems(made) == [] and drift(course) == []
    make_exercises.make(course / "solutions" / "00_test.ipynb", path)
    assert path.read_bytes() == first


def test_drift_is_found_and_named(course):
    made = make_exercises.exercise_from(solution_notebook())
    path = course / "exercises" / "00_test.ipynb"
    assert drift(course) == ["exercises/00_test.ipynb is missing"]

    solution = run_notebooks.read(course / "solutions" / "00_test.ipynb")
    made = make_exercises.exercise_from(solution)
    nbformat.write(made, path)
    assert drift(course) == []
    for change in (
        lambda nb: nb.cells[2].update(source=nb.cells[2].source + "  # edited by hand"),
        lambda nb: nb.cells[2].metadata.update(tags=["raises-exception"]),
        lambda nb: nb.metadata.update(authors=[]),
        lambda nb: nb.cells.pop(),
    ):
        edited = nbformat.read(path, as_version=4)
        change(edited)
        nbformat.write(edited, path)
        assert drift(course) == ["exercises/00_test.ipynb is not what solutions/00_test.ipynb gives"]
        nbformat.write(made, path)

    edited = nbformat.read(path, as_version=4)
    edited.cells[3].outputs = [new_output("stream", text="x")]
    nbformat.write(edited, path)
    assert drift(course) == [], "outputs are nbval's to compare"

    nbformat.write(made, course / "exercises" / "07_stray.ipynb")
    assert drift(course) == ["exercises/07_stray.ipynb has no solution"]


# Running


def test_a_run_stores_the_same_bytes_twice(tmp_path):
    path = tmp_path / "a.ipynb"
    cells = [
        code("import sys\nfor n in range(3):\n    print(n, flush=True)\n    print(-n, file=sys.stderr)"),
        code("import ipywidgets\nprint('a')\ndisplay(ipywidgets.IntSlider())\nprint('b')"),
        code("import torch\ntorch.nn.Linear(2, 3)(torch.zeros(4))", "raises-exception", collapsed=True),
        code("raise ValueError(f'in {torch.__file__} and {__import__(\"ddplab\").__file__}')", "raises-exception"),
        code("%matplotlib inline\nimport matplotlib.pyplot as plt\n_ = plt.plot([1, 2])", "nbval-ignore-output"),
    ]
    nbformat.write(new_notebook(cells=cells, metadata={"widgets": {}, "language_info": {"name": "x"}}), path)
    run_notebooks.run(path)
    first = path.read_bytes()
    stored = nbformat.read(path, as_version=4)
    assert problems(stored) == []
    assert stored.metadata == run_notebooks.METADATA
    streams, slider, error, words, _ = (cell.outputs for cell in stored.cells)
    assert [(output.name, output.text) for output in streams] == [
        ("stdout", "0\n1\n2\n"),
        ("stderr", "0\n-1\n-2\n"),
    ]
    assert [output.output_type for output in slider] == ["stream", "display_data", "stream"]
    assert error[0].ename == "RuntimeError" and "torch/nn/modules/linear.py" in error[0].traceback[-2]
    assert words[0].evalue == "in torch/__init__.py and ddplab/__init__.py"
    assert "collapsed" not in stored.cells[2].metadata
    run_notebooks.run(path)
    assert path.read_bytes() == first


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (code("x = 1\nx / 0"), ["x / 0", "ZeroDivisionError"]),
        (code("x = 1", "raises-exception"), ["x = 1", "raises nothing"]),
    ],
    ids=["raises", "does not raise"],
)
def test_a_failing_cell_fails_the_run_and_writes_nothing(tmp_path, cell, words):
    path = tmp_path / "a.ipynb"
    nbformat.write(new_notebook(cells=[cell]), path)
    before = path.read_bytes()
    command = [sys.executable, "tools/run_notebooks.py", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and all(word in done.stderr for word in words)
    assert path.read_bytes() == before


def test_ids_that_are_missing_are_made_from_the_source(tmp_path):
    raw = {"nbformat": 4, "nbformat_minor": 4, "metadata": {}}
    cell = {"cell_type": "code", "source": ["x = 1"], "metadata": {}, "outputs": [], "execution_count": None}
    (tmp_path / "a.ipynb").write_text(json.dumps({**raw, "cells": [cell, cell]}))
    first, second = (run_notebooks.read(tmp_path / "a.ipynb") for _ in range(2))
    assert first == second and first.cells[0].id != first.cells[1].id


# The guards bite


def clean():
    made = [new_output("stream", text="1\n")]
    cells = [new_code_cell("print(1)", execution_count=n, outputs=made) for n in range(1, 13)]
    return new_notebook(cells=cells, metadata=dict(run_notebooks.METADATA))


def test_a_clean_notebook_has_no_problem():
    assert problems(clean(), lesson=True) == []


def put_output(notebook, *arguments, **fields):
    notebook.cells[0].outputs = [new_output(*arguments, **fields)]


def take_a_name(notebook, slider):
    reads = "def read(n):\n    return [kept[i] for i in range(n)]\n\n\ndef shown(n):\n    return read(n)\n\n\n"
    notebook.cells[0].source = f"kept = [1, 2]\n\n\n{reads}{slider}"
    notebook.cells[1].source = "said = !echo 1\n\n\ndef other():\n    kept = 3\n    return kept\n\n\nshown = 4"
    notebook.cells[2].source = "%matplotlib inline\nfor kept in [3]:\n    pass"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda nb: nb.cells[0].update(execution_count=None), "not run once each"),
        (lambda nb: nb.cells[0].update(execution_count=7), "not run once each"),
        (lambda nb: nb.cells[0].metadata.update(execution={"iopub.status.busy": "now"}), "when it ran"),
        (lambda nb: nb.metadata.update(widgets={}), "widget state"),
        (lambda nb: nb.metadata.update(language_info={"name": "python"}), "not what JupyterLab saves"),
        (lambda nb: nb.metadata.update(kernelspec={"name": "mine", "display_name": "m"}), "not python3"),
        (lambda nb: nb.cells[0].update(surprise=1), "not a valid notebook"),
        (
            lambda nb: put_output(nb, "error", ename="ValueError", evalue="x", traceback=[]),
            "raised ValueError",
        ),
        (lambda nb: put_output(nb, "display_data", {run_notebooks.WIDGET_VIEW: {}}), "widget view"),
        (lambda nb: put_output(nb, "display_data", {"text/plain": "<Figure size 640x480 with 1 Axes>"}), "no picture"),
        (lambda nb: put_output(nb, "stream", text="see /home/ada/x.py"), "/home/ada"),
        (lambda nb: put_output(nb, "stream", text="File \x1b[32m/tmp/x.py"), "/tmp/x.py"),
        (lambda nb: put_output(nb, "display_data", {"text/html": "<p>~/course</p>"}), "~/course"),
        (lambda nb: nb.cells[0].update(source="x = " + "1" * 107), "a line of 111 characters"),
        (lambda nb: take_a_name(nb, "move(shown, n=[1])"), "code cell 3: it takes kept, which the slider of cell 1"),
        (lambda nb: take_a_name(nb, "move(partial(shown), n=[1])"), "code cell 3: it takes kept"),
    ],
)
def test_each_fault_is_named(spoil, words):
    notebook = clean()
    spoil(notebook)
    found = problems(notebook, lesson=True)
    assert any(words in problem for problem in found), found


def test_a_copy_of_a_lesson_judges_our_way_where_it_stands(tmp_path):
    blank = code('def one():\n    # your turn: 1 line. One\n    ...\n\n\ncheck("1.1.a", one)', "your-turn")
    way, after = code("def one():\n    return 1", "one-way"), code("one()")
    (tmp_path / "1_part").mkdir()
    path = tmp_path / "1_part" / "1.1_test.ipynb"
    nbformat.write(new_notebook(cells=[new_markdown_cell("# 1.1 · Test"), blank, way, after]), path)
    load("run_tests").judge_our_way(tmp_path)
    made = [cell.source for cell in nbformat.read(path, as_version=4).cells]
    judged = 'from ddplab.checks import judge\n\nverdict = judge("1.1.a", one)\nassert verdict.state == "correct"'
    assert made[1] == blank.source and made[2].startswith(f"def one():\n    return 1\n\n\n{judged}")
    assert made[3] == "one()"


def test_a_stage_that_fails_beside_another_says_so_at_the_end_once_more(monkeypatch, capsys):
    tests = load("run_tests")
    beside, other, *_ = tests.BESIDE
    stages = {beside: ["-c", "print('told', 1); exit(1)"], other: ["-c", "print('told', 2)"], "long": ["-c", ""]}
    monkeypatch.setitem(tests.STAGES, "quick", stages)
    assert tests.main("quick") == 1
    said = capsys.readouterr().out
    assert said.count("told 1") == 2 and said.count("told 2") == 1
    assert said.rpartition("told 1")[2].startswith(f"\n\nfailed: {beside} after")
    monkeypatch.setitem(stages, beside, ["-c", "print('told', 1)"])
    assert tests.main("quick") == 0 and capsys.readouterr().out.count("told 1") == 1


@pytest.mark.parametrize("good", [1, 2, 3])
def test_a_notebook_that_fails_in_a_warm_kernel_is_rehearsed_in_a_fresh_one(good, monkeypatch, tmp_path, capsys):
    tool, kernels = load("rehearse_notebooks"), []

    def execute(*_):
        kernels.append(tool.local_provisioner.launch_kernel)
        if len(kernels) < good:
            raise RuntimeError(f"try {len(kernels)} went wrong")

    monkeypatch.setattr(tool, "execute", execute)
    monkeypatch.setattr(tool, "KERNELS", ["warm", "fresh"])
    monkeypatch.setattr(tool.local_provisioner, "launch_kernel", None)
    path = tmp_path / "course" / "1_part" / "1.1_test.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(new_notebook(cells=[new_code_cell("1")]), path)
    _, _, wrong = tool.rehearse(path)
    assert kernels == ["warm", "fresh"][:good] and wrong == ("RuntimeError: try 2 went wrong" if good == 3 else "")
    assert capsys.readouterr().out.count("went wrong") == good - 1


@pytest.mark.parametrize("our_way", [False, True])
def test_our_way_is_judged_in_a_rehearsed_lesson_when_asked_for(our_way, monkeypatch, tmp_path):
    tool, ran = load("rehearse_notebooks"), []
    monkeypatch.setattr(tool, "execute", lambda notebook, *_: ran.append(notebook.cells[1].source))
    path = tmp_path / "lessons" / "1_part" / "1.1_test.ipynb"
    path.parent.mkdir(parents=True)
    turn, way = (
        code('def one():\n    ...\n\n\ncheck("1.1.a", one)', "your-turn"),
        code("def one():\n    return 1", "one-way"),
    )
    nbformat.write(new_notebook(cells=[turn, way]), path)
    assert tool.rehearse(path, our_way=our_way)[2] == "" and ('judge("1.1.a", one)' in ran[0]) == our_way


def test_between_a_question_and_its_answer_outputs_are_folded_but_of_turns_and_of_what_is_tagged_to_stay_open():
    asked, after = code('one = predict("One?", "yes", "no")'), code("2")
    between = [code("1"), code('check("1.1.a", one)', "your-turn"), code("move(one)", "keep-open")]
    cells = [asked, *between, code('settle(one, "yes")'), after]
    run_notebooks.fold(new_notebook(cells=cells))
    hidden = [cell.metadata.get("jupyter", {}).get("outputs_hidden", False) for cell in cells]
    assert hidden == [False, True, False, False, True, False]
