"""What somebody who looks at a notebook is told while they wait."""

import re
import threading

import IPython.display

from ddplab import screen


class Line(list):
    """A line of a page, as `display` hands it out: all that it has said."""

    def __init__(self):
        super().__init__()
        self.counted = threading.Event()

    def update(self, data, raw):
        self.append(data["text/plain"])
        if "so far" in self[-1]:
            self.counted.set()


def test_seconds_are_counted_while_it_goes_on_and_told_at_its_end(monkeypatch):
    line = Line()

    def display(data, raw, display_id):
        line.append(data["text/plain"])
        return line

    monkeypatch.setattr(screen, "live", lambda: True)
    monkeypatch.setattr(IPython.display, "display", display)
    with screen.counting("train.py runs,"):
        assert line[0] == "train.py runs,", "nothing is seen during the first second"
        assert line.counted.wait(60)
    assert re.fullmatch(r"train.py runs, \d+ s so far", line[1])
    assert line[-1].startswith("train.py runs, ") and line[-1].endswith(" s in all")
