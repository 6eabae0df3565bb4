"""Execute lessons and solutions and store their outputs, so that running it twice changes no byte.

    python tools/run_notebooks.py                     # every lesson and every solution
    python tools/run_notebooks.py lessons/1_*/1.1_*.ipynb  # those named

A cell that raises fails the run, unless it is tagged `raises-exception`; a cell with that tag that does not
raise fails it too. Nothing is written for a notebook that failed.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import site
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from traitlets.config import Config

ROOT = Path(__file__).resolve().parent.parent
METADATA = {  # what JupyterLab writes when it saves, so that saving changes nothing; without Python's version
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    },
}
SETTLES = re.compile(r"^(?!from |import ).*\b(claim|settle)\(", re.MULTILINE)
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class NotebookError(Exception):
    """A notebook cannot be stored: which cell, and why."""


def execute(notebook: NotebookNode, folder: Path, timeout: int = 300) -> None:
    """Run all cells in place, in a fresh kernel whose working directory is `folder`.

    Raises NotebookError with the cell's source and traceback when an untagged cell raises, and when a cell
    that is tagged `raises-exception` does not.
    """
    with tempfile.TemporaryDirectory(prefix="kernel-") as meeting:
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=timeout,
            record_timing=False,
            store_widget_state=False,
            resources={"metadata": {"path": str(folder)}},
            # In files: a port, once chosen, is anybody's until the kernel has taken it.
            config=Config(KernelManager={"transport": "ipc", "ip": f"{meeting}/socket"}),
        )
        try:
            client.execute(env={**os.environ, "DDPLAB_PANEL": "off"})  # text instead of widgets
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            raise NotebookError(str(error)) from None
    for cell in code_cells(notebook):
        raised = any(output.output_type == "error" for output in cell.outputs)
        if "raises-exception" in tags(cell) and not raised:
            raise NotebookError(f"this cell is tagged raises-exception and raises nothing:\n{cell.source}")


def normalise(notebook: NotebookNode) -> None:
    """Take out in place what differs from run to run or between machines and tells a reader nothing."""
    lesson = {"ddplab": notebook.metadata.ddplab} if "ddplab" in notebook.metadata else {}
    notebook.metadata = nbformat.from_dict(METADATA | lesson)
    identify(notebook)
    for cell in notebook.cells:
        cell.source = cell.source.rstrip()
        kept = sorted(tags(cell))
        cell.metadata = nbformat.from_dict({"tags": kept} if kept else {})
    for cell in code_cells(notebook):
        for output in cell.outputs:
            if output.output_type == "error":
                output.traceback = [shorten(line) for line in output.traceback]
                output.evalue = shorten(output.evalue)  # of a replica's or a rank's error it holds a traceback
            if "data" in output:
                output.data.pop(WIDGET_VIEW, None)
            if "metadata" in output:
                output.metadata.pop(WIDGET_VIEW, None)
        cell.outputs = join_streams([output for output in cell.outputs if output.get("data") != {}])
    fold(notebook)


def fold(notebook: NotebookNode) -> None:
    """Fold in place what would give an answer away, so that nobody reads it by chance; a cell that is run unfolds.

    A cell that settles a prediction or holds a claim box is folded whole. Of a cell between a question and its answer
    the outputs are folded, but not what a turn asks for, or what is tagged `keep-open`: sliders that begin where they
    give nothing away. Of a cell tagged `hide-input` or `one-way` the source is folded; and of one tagged `hide-output`,
    which answers a question in the text above it, the outputs. JupyterLab shows the first line of folded outputs beside
    the dots: so they begin with an empty one.
    """
    waiting: set[str] = set()  # the names of predictions that no cell has settled yet
    for cell in code_cells(notebook):
        answered = {name for name in waiting if re.search(rf"\bsettle\(\s*{name}\b", cell.source)}
        asked = set(re.findall(r"^(\w+) = predict\(", cell.source, re.MULTILINE))
        verdict = bool(answered) or SETTLES.search(cell.source) is not None
        folds = {
            "source_hidden": verdict or bool({"hide-input", "one-way"} & set(tags(cell))),
            "outputs_hidden": verdict
            or "hide-output" in tags(cell)
            or (bool(waiting) and not asked and not {"your-turn", "keep-open"} & set(tags(cell))),
        }
        if any(folds.values()):
            cell.metadata["jupyter"] = {name: True for name, folded in folds.items() if folded}
        if folds["outputs_hidden"]:
            cell.metadata["collapsed"] = True  # the older name, which JupyterLab writes as well
            if cell.outputs and cell.outputs[0].get("data") != {}:
                cell.outputs.insert(0, nbformat.v4.new_output("display_data"))
        waiting = (waiting - answered) | asked


def with_our_way_judged(notebook: NotebookNode) -> None:
    """Let a lesson judge, in place, our way of each turn where it stands: below the turn that was left blank.

    A cell tagged `your-turn` is a function to write and its `check`; the next code cell, tagged `one-way`, defines the
    same function. So one run of the lesson is both: that of somebody who writes nothing, and that of one who does.
    """
    for turn, way in pairwise(code_cells(notebook)):
        if "one-way" in tags(way):
            call = re.search(r'^check\(("\d\.\d+\.[a-z]", .*\))$', turn.source, re.MULTILINE)
            judged = f"from ddplab.checks import judge\n\nverdict = judge({call[1]}\n"
            way.source += f'\n\n\n{judged}assert verdict.state == "correct", str(verdict)'


def join_streams(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Join what was printed between two displays into one stdout and one stderr: the cuts are chance."""
    joined: list[NotebookNode] = []
    streams: dict[str, NotebookNode] = {}
    for output in outputs:
        if output.output_type != "stream":
            joined += [streams[name] for name in sorted(streams, reverse=True)]  # stdout before stderr
            streams = {}
            joined.append(output)
        elif output.name in streams:
            streams[output.name].text += output.text
        else:
            streams[output.name] = output
    return joined + [streams[name] for name in sorted(streams, reverse=True)]


def identify(notebook: NotebookNode) -> None:
    """Keep cell ids; where one is missing or taken, derive it from the cell's source, not from chance."""
    seen: set[str] = set()
    for cell in notebook.cells:
        name, n = cell.get("id") or "", 0
        while not name or name in seen:
            name = hashlib.sha1(f"{cell.source}{n}".encode()).hexdigest()[:8]
            n += 1
        cell.id = name
        seen.add(name)


def shorten(line: str) -> str:
    """A piece of a traceback without this machine's folders. (nbval compares the error only.)"""
    home = str(Path.home())
    folders = {
        *site.getsitepackages(),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("stdlib"),
        str(ROOT),
    }
    for folder in sorted(folders, key=len, reverse=True):
        for written in (folder, folder.replace(home, "~", 1)):
            line = line.replace(written + os.sep, "")
    return re.sub(r"/\S*/ipykernel_\d+/\d+\.py", "<cell>", line)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell: NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


def read(path: Path) -> NotebookNode:
    """Read a notebook without inventing anything: ids that are missing stay missing until `identify`."""
    notebook = nbformat.from_dict(json.loads(path.read_text(encoding="utf-8")))
    notebook.nbformat, notebook.nbformat_minor = 4, 5  # the first minor version whose cells have ids
    for cell in notebook.cells:
        cell.source = cell.source if isinstance(cell.source, str) else "".join(cell.source)
        cell.setdefault("metadata", NotebookNode())
        if cell.cell_type == "code":
            cell.setdefault("outputs", [])
            cell.setdefault("execution_count", None)
    identify(notebook)
    return nbformat.reads(nbformat.writes(notebook), as_version=4)


def write(notebook: NotebookNode, path: Path) -> None:
    nbformat.validate(notebook)
    path.write_text(nbformat.writes(notebook).rstrip() + "\n", encoding="utf-8")


@contextmanager
def copied(*folders: Path) -> Iterator[list[Path]]:
    """Copies of folders of notebooks to run them in: what cells write beside themselves goes when they go."""
    with tempfile.TemporaryDirectory() as place:
        copies = [Path(place) / folder.name for folder in folders]
        for folder, copy in zip(folders, copies, strict=True):
            shutil.copytree(folder, copy, ignore=lambda _, names: [n for n in names if n.startswith(".")])
        yield copies


def run(path: Path) -> None:
    """Execute one notebook and store it. Raises NotebookError, and then leaves the file as it was."""
    notebook = read(path)
    # with its neighbours: the table of claims reads what the other lessons have stored
    course = path.parent.parent if path.is_relative_to(ROOT) else path.parent
    with copied(course) as [folder]:
        execute(notebook, folder / path.parent.relative_to(course))
    normalise(notebook)
    write(notebook, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: everything in lessons/ and solutions/")
    found = parser.parse_args().notebooks
    found = found or sorted(ROOT.glob("lessons/*/*.ipynb")) + sorted(ROOT.glob("solutions/*/*.ipynb"))
    failed = 0
    for path in found:
        start = time.perf_counter()
        try:
            run(path.resolve())
            print(f"{path}: stored ({time.perf_counter() - start:.1f} s)", flush=True)
        except NotebookError as error:
            failed += 1
            print(f"{path}: FAILED\n{error}", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
