"""The rows that ranks logged, as one table."""

from __future__ import annotations

from typing import Any

from ddplab.pointer import pointing
from ddplab.tables import brief, html_table


class Metrics(list):
    """The rows that ranks logged, as dicts: `rank`, `step`, `time` (seconds since the launch) and the logged columns.

    It is a list, so `pandas.DataFrame(run.metrics)` works.
    """

    @pointing
    def column(self, name: str, rank: int | None = None) -> list[Any]:
        """Return the logged values of one column, in order; of one rank, or rank after rank.

        Raises KeyError, naming the columns there are, when nothing of that name was logged.
        """
        found = [row[name] for row in self if name in row and rank in (None, row["rank"])]
        if not found:
            raise KeyError(f"nothing called {name!r} was logged{'' if rank is None else f' by rank {rank}'}; "
                           f"there is: {', '.join(self.columns()) or 'nothing at all'}")  # fmt: skip
        return found

    def columns(self) -> list[str]:
        """Return the names of the logged columns, in the order in which they first appeared."""
        return [
            name for name in dict.fromkeys(name for row in self for name in row) if name not in ("rank", "step", "time")
        ]

    def numeric_columns(self) -> list[str]:
        """Return the names of the columns that hold numbers (booleans and text are not drawn)."""
        return [
            name
            for name in self.columns()
            if any(isinstance(row.get(name), int | float) and not isinstance(row.get(name), bool) for row in self)
        ]

    def _repr_html_(self) -> str:
        names = ["rank", "step", "time", *self.columns()]
        shown = self if len(self) <= 20 else [*self[:10], *self[-10:]]
        more = f"<p>{len(self)} rows, the first and last ten shown</p>" if len(self) > 20 else ""
        return html_table(names, [[brief(row.get(name, "")) for name in names] for row in shown]) + more
