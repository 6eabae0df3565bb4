"""What nbval does not see in a stored notebook: one sentence for each thing that is wrong."""

import re
import symtable

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode
from run_notebooks import METADATA

WIDTH = 110  # characters of code that a page of 1366 pixels shows
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
# Folders of the machine that ran it, looked for in outputs alone: a path in prose or code is the author's.
MACHINE_PATH = re.compile(r"(?<![\w.:/])(?:~|/(?:home|tmp|root|work|Users|var|opt|usr))/[\w.+-]+")


def problems(notebook: NotebookNode, lesson: bool = False) -> list[str]:
    """Everything wrong with a stored notebook. `lesson` adds the bound on the width of its lines, and its sliders."""
    found = []
    try:
        nbformat.validate(notebook)
    except nbformat.ValidationError as error:
        found.append(f"not a valid notebook: {str(error).splitlines()[0]}")
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        found.append("its kernel is not python3")
    if notebook.metadata.get("language_info") != METADATA["language_info"]:
        found.append("its language_info is not what JupyterLab saves, less the version: store it")
    if "widgets" in notebook.metadata:
        found.append("it stores widget state")
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    counts = [cell.execution_count for cell in cells]
    if counts != list(range(1, len(cells) + 1)):
        found.append(f"its cells were not run once each, in order: {counts}")
    for n, cell in enumerate(cells, 1):
        found += [f"code cell {n}: {problem}" for problem in cell_problems(cell)]
    return found + (width_problems(cells) + slider_problems(cells) if lesson else [])


def cell_problems(cell: NotebookNode) -> list[str]:
    found = []
    if "execution" in cell.metadata:
        found.append("it stores when it ran")
    for output in cell.outputs:
        if WIDGET_VIEW in output.get("data", {}):
            found.append("it stores a widget view")
        if text_of(output).startswith("<Figure size") and "image/png" not in output.data:
            found.append("it stores a figure's name and no picture")
        if output.output_type == "error" and "raises-exception" not in cell.metadata.get("tags", []):
            found.append(f"it raised {output.ename} and is not tagged raises-exception")
        if path := MACHINE_PATH.search(text_of(output)):
            found.append(f"an output names a folder of the machine that ran it: {path[0]}")
    return found


def width_problems(cells: list[NotebookNode]) -> list[str]:
    """JupyterLab cuts off what is wider than the page of a small laptop."""
    wide = [(n, line) for n, cell in enumerate(cells, 1) for line in cell.source.splitlines() if len(line) > WIDTH]
    return [
        f"code cell {n}: a line of {len(line)} characters, more than {WIDTH}: {line.strip()[:40]}" for n, line in wide
    ]


def slider_problems(cells: list[NotebookNode]) -> list[str]:
    """A slider is moved also when all cells have run: what its function reads must then be what it was beneath it."""
    python = [TransformerManager().transform_cell(cell.source) for cell in cells]  # a magic becomes a call
    scopes = [symtable.symtable(source, "cell", "exec") for source in python]
    found, defined = [], {}
    for n, (source, scope) in enumerate(zip(python, scopes, strict=True), 1):
        defined |= {child.get_name(): child for child in scope.get_children()}
        for moved in re.findall(r"^\s*move\(\s*(?:partial\()?(\w+)", source, re.M):
            needed, seen = globals_of(defined[moved]) if moved in defined else [], set()
            while needed:
                if (name := needed.pop()) not in seen:
                    seen.add(name)
                    needed += globals_of(defined[name]) if name in defined else []
            for later, after in enumerate(scopes[n:], n + 1):
                taken = sorted(seen & {symbol.get_name() for symbol in after.get_symbols() if symbol.is_assigned()})
                found += [f"code cell {later}: it takes {name}, which the slider of cell {n} reads" for name in taken]
    return found


def globals_of(scope: symtable.SymbolTable) -> list[str]:
    """The names that a function or class, with what is defined in it, takes from the notebook."""
    inner = [name for child in scope.get_children() for name in globals_of(child)]
    return inner + [symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global()]


def text_of(output: NotebookNode) -> str:
    """An output's words; pictures and colour codes left out."""
    if output.output_type == "error":
        text = "\n".join([output.evalue, *output.traceback])
    elif output.output_type == "stream":
        text = output.text
    else:
        data = output.get("data", {})
        text = "\n".join(str(data[mime]) for mime in data if mime.startswith("text/"))
    return re.sub(r"\x1b\[[\d;]*m", "", text)
