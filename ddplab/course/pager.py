"""The pager's page: an incident as a widget, with a button for each probe and the script to read, select and patch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddplab.course.controls import widget

if TYPE_CHECKING:
    from ddplab.course.incidents import Incident

BUTTONS = ("stack", "flight", "memory", "rows", "weights", "detail", "hint", "accuse", "patch", "run", "share")


def page_of(incident: Incident, prices: dict[str, int], budget: int, shut: str) -> Any:
    """Return the widget of an incident. What its buttons ask, the incident's own methods answer, one at a time."""
    live = widget("pager", prices=prices, budget=budget, shut=shut, state=_state(incident), asked={"n": 0})

    def answer(change: dict[str, Any]) -> None:  # with its number: what is told as before is an answer too
        name, *arguments = change["new"]["call"]
        if name in BUTTONS:
            try:
                said = str(getattr(incident, name)(*arguments))
            except ValueError as error:  # a rank or a line that is not there
                said = str(error)
            except (Exception, KeyboardInterrupt) as error:  # a message from the page has no cell to raise in
                said = f"{type(error).__name__}: {error}"
            call = f"{name}({', '.join(map(repr, arguments))})"
            live.state = _state(incident) | {"said": said, "call": call, "asked": change["new"]["n"]}

    live.observe(answer, "asked")
    return live


def _state(incident: Incident) -> dict[str, Any]:
    return {
        "page": str(incident.page()),
        "script": [[f"{mark}{n:3}  {text}".replace("\n", " ⏎ "), text] for n, mark, text in incident.lines()],
        "log": incident.log,
        "left": incident.left,
        "closed": incident.closed,
        "said": "",
        "call": "",
    }
