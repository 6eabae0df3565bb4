"""One way to draw a table, as text, as HTML or as Markdown: what stands in a cell is escaped here and nowhere else."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any

# In the theme's own colours; numbers under each other, rows no taller than a line of code.
CSS = (
    ".ddplab {font-family: var(--jp-code-font-family, monospace); font-size: 12px; line-height: 1.6}"
    ".ddplab th, .ddplab td {text-align: left; padding-right: 16px; white-space: nowrap}"
    ".ddplab td {min-width: 3.5em; font-variant-numeric: tabular-nums}"
    ".ddplab th[scope=row], .ddplab th[scope=col] {font-weight: normal; color: var(--jp-ui-font-color1)}"
    ".ddplab th[scope=col] {border-bottom: 1px solid var(--jp-border-color1)}"
    ".ddplab.prose td, .ddplab.prose th {text-align: left; white-space: normal}"
)


class HTML(str):
    """Text that is HTML already and is put into a table as it stands."""


def marked(text: str) -> str:
    """Return text as HTML: escaped, and what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def brief(value: Any) -> str:
    """Return a value as a table shows it: four digits of a number that is not whole."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def html_table(
    heads: Sequence[Any],
    rows: Iterable[Sequence[Any]],
    label: str = "",
    row_heads: bool = False,
    bold: int | None = None,
    prose: bool = False,
) -> str:
    """Return a table as HTML, in a block of its own with the course's look.

    Args:
        heads: the columns' names. rows: their cells; text is escaped, `HTML` stays as it is.
        label: what a screen reader calls the table. row_heads: the first cell of each row names the row.
        bold: the number of a row to set off. prose: cells hold sentences, which may be broken into lines and in which
            what stands between backticks is code.
    """
    body = ""
    for number, row in enumerate(rows):
        cells = [_cell(value, prose) for value in row]
        first = f'<th scope="row">{cells.pop(0)}</th>' if row_heads else ""
        look = ' style="font-weight:bold"' if number == bold else ""
        body += f"<tr{look}>{first}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    head = "".join(f'<th scope="col">{_cell(value, prose)}</th>' if value else "<td></td>" for value in heads)
    name = f' aria-label="{html.escape(label)}"' if label else ""
    kind = "ddplab prose" if prose else "ddplab"
    return f'<style>{CSS}</style><div class="{kind}"><table{name}><tr>{head}</tr>{body}</table></div>'


def _cell(value: Any, prose: bool) -> str:
    if isinstance(value, HTML):
        return value
    return marked(str(value)) if prose else html.escape(str(value))


def text_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as lines of text, the columns flush right."""
    table = [list(heads), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join("  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in table)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown; the cells may hold Markdown of their own."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in (heads, *rows)]
    return "\n".join([lines[0], "|---" * len(heads) + "|", *lines[1:]])
