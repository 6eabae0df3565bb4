"""Run a notebook as it stands, and say what became of its cells. The file is only read."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode


def read(path: Path) -> NotebookNode:
    """Return the notebook in a file, only its code cells and no outputs. Raises ValueError where it holds none."""
    try:
        json.loads(path.read_text(encoding="utf-8"))  # nbformat would not say which line is at fault
    except (OSError, ValueError) as error:
        raise ValueError(f"it cannot be read as JSON: {error}") from None
    try:
        notebook = nbformat.read(path, as_version=4)
        notebook.cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        for cell in notebook.cells:
            cell.update(outputs=[], execution_count=None)
        nbformat.validate(notebook, relax_add_props=True)
    except Exception as error:  # nbformat raises whatever it stumbles over
        raise ValueError(f"it is JSON, but nbformat finds no notebook in it: {first_line(str(error))}") from None
    return notebook


def first_line(text: str) -> str:
    """Return the first line that is not blank, or nothing."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def run(notebook: NotebookNode, folder: Path, timeout: int, **environment: str) -> dict[int, str]:
    """Run the cells in place, in a fresh kernel of this Python whose working directory is `folder`.

    Returns what became of the cells that did not end well: {1: "raised NameError: …"}. Cells go on after one that
    raises; none runs after one that takes longer than `timeout` seconds, or that ends the kernel.
    """
    own_python = KernelSpecManager(kernel_dirs=[])  # an installed "python3" may be another environment's
    client = NotebookClient(
        notebook,
        km=AsyncKernelManager(kernel_spec_manager=own_python),
        timeout=timeout,
        allow_errors=True,
        skip_cells_with_tag="nbval-skip",
        on_cell_executed=_notice_exit,
        resources={"metadata": {"path": str(folder)}},
    )
    kernel = {"env": {**os.environ, **environment}, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    failed: dict[int, str] = {}
    n = 0
    try:
        with client.setup_kernel(cleanup_kc=True, **kernel):
            for n, cell in enumerate(notebook.cells):
                client.execute_cell(cell, n)
                if error := _error_of(cell):
                    failed[n] = f"raised {error}"
    except CellTimeoutError:
        failed[n] = f"did not end within {timeout} s"
    except DeadKernelError:
        failed[n] = "ended the kernel"
    except RuntimeError as error:
        failed[n] = f"found no kernel: {error}"
    return failed


def _notice_exit(execute_reply: dict[str, Any], **_: Any) -> None:
    """Raise DeadKernelError after a cell that called exit(), whose kernel would take another cell before it ends."""
    if any(part["source"] == "ask_exit" for part in execute_reply["content"].get("payload", [])):
        raise DeadKernelError


def _error_of(cell: NotebookNode) -> str:
    """Return what a cell raised, on one line: "NameError: …". Nothing if it raised nothing, or was meant to raise."""
    errors = [output for output in cell.outputs if output.output_type == "error"]
    if not errors or "raises-exception" in cell.metadata.get("tags", []):
        return ""
    colour, made_up_file = r"\x1b\[[\d;]*m", r"\b\d+\.py, "
    message = re.sub(f"{colour}|{made_up_file}", "", first_line(errors[-1].evalue))
    return f"{errors[-1].ename}: {message}" if message else errors[-1].ename
