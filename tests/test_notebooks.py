"""Notebooks that really run, and files that hold none."""

import json
import os
import tempfile

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from ddplab import notebooks


def temporary_files():
    """Return what `tempfile` has named, such as a kernel's connection file; not a cache of torch's."""
    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("tmp")}


@pytest.fixture
def run(tmp_path, capfd):
    """Return a function that runs cells in an empty folder and returns what became of them, and the files they made.

    It prints nothing, and leaves no file of its own.
    """
    folder = tmp_path / "work"
    folder.mkdir()

    def run_cells(*cells, timeout=60, **environment):
        notebook = new_notebook(cells=[new_code_cell(cell) if isinstance(cell, str) else cell for cell in cells])
        before = temporary_files()
        failed = notebooks.run(notebook, folder, timeout, **environment)
        assert temporary_files() == before and capfd.readouterr() == ("", "")
        return failed, os.listdir(folder)

    return run_cells


def tagged(source, tag):
    return new_code_cell(source, metadata={"tags": [tag]})


def test_cells_run_in_the_folder_with_the_environment_and_go_on_after_an_error(run):
    failed, made = run("1 / 0", "import os\nopen(os.environ['MINE'], 'w').close()", MINE="made")
    assert failed == {0: "raised ZeroDivisionError: division by zero"} and made == ["made"]


def test_an_error_is_one_line_without_colours_and_without_a_made_up_file(run):
    failed, _ = run('raise ValueError("\\x1b[31mred\\x1b[0m\\nand more")', "raise ValueError", "def greet(:\n    pass")
    assert failed == {
        0: "raised ValueError: red",
        1: "raised ValueError",
        2: "raised SyntaxError: invalid syntax (line 1)",
    }


def test_a_cell_may_be_meant_to_raise_or_not_to_run(run):
    assert run(tagged("1 / 0", "raises-exception"), tagged("open('made', 'w')", "nbval-skip")) == ({}, [])


ENDLESS = "while time.monotonic() < began + 40:\n    pass"  # nearly, so that without a timeout this test fails


@pytest.mark.parametrize(
    ("last", "words"),
    [(ENDLESS, "did not end within 2 s"), ("os._exit(1)", "ended the kernel"), ("exit()", "ended the kernel")],
    ids=["endless", "killed", "exit"],
)
def test_nothing_runs_after_a_cell_that_takes_the_kernel(run, last, words):
    assert run("import os, time\nbegan = time.monotonic()", last, "open('made', 'w')", timeout=2) == ({1: words}, [])


def test_a_kernel_that_does_not_start_is_said_to(run, tmp_path):
    (tmp_path / "ipykernel_launcher.py").write_text("import a_module_that_is_not_there")
    failed, _ = run("a = 1", "b = 1", PYTHONPATH=str(tmp_path))
    assert failed == {0: "found no kernel: Kernel died before replying to kernel_info"}


def test_the_kernel_is_this_pythons_whatever_is_installed_as_python3(run, tmp_path, monkeypatch):
    spec = tmp_path / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": ["false"], "display_name": "another", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    assert run("a = 1") == ({}, [])


def test_what_is_read_is_code_without_outputs(tmp_path):
    stored = new_code_cell("a = 1", outputs=[new_output("stream", text="1\n")])
    nbformat.write(new_notebook(cells=[new_markdown_cell("A title"), stored]), tmp_path / "a.ipynb")
    assert [(cell.source, cell.outputs) for cell in notebooks.read(tmp_path / "a.ipynb").cells] == [("a = 1", [])]


NOT_JSON, NO_NOTEBOOK = "^it cannot be read as JSON: ", "^it is JSON, but nbformat finds no notebook in it: "
HOLDING = b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [%s]}'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{\n"cells": [\n<<<<<<< HEAD\n', NOT_JSON + "Expecting value: line 3 column 1"),
        (b"\xff\xfe", NOT_JSON + "'utf-8' codec can't decode"),
        (b"[]", NO_NOTEBOOK),
        (b"{}", NO_NOTEBOOK),
        (HOLDING % b'{"id": "a", "metadata": {}}', NO_NOTEBOOK),
        (HOLDING % b'{"id": "a", "metadata": {}, "cell_type": "code"}', NO_NOTEBOOK + "'source' is a required"),
    ],
    ids=["conflict", "bytes", "list", "empty", "no cell", "half a cell"],
)
def test_a_file_without_a_notebook_is_refused_with_the_reason(tmp_path, content, words):
    (tmp_path / "a.ipynb").write_bytes(content)
    with pytest.raises(ValueError, match=words):
        notebooks.read(tmp_path / "a.ipynb")
