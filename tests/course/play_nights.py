"""Plays nights, for test_night.py, in a process whose agents and ranks are forks of a warm one: play_nights IN OUT."""

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from ddplab.course.night import Night, calm, night, patched  # noqa: F401


def main(asked: str, out: str) -> None:
    """asked: a file with {script, functions (a file), nights: {name: [accidents, names of functions]}}."""
    order = json.loads(Path(asked).read_text())
    spec = spec_from_file_location("mended", order["functions"])
    mended = module_from_spec(spec)
    spec.loader.exec_module(mended)
    told = {}
    for name, (accidents, functions) in order["nights"].items():
        board = night(order["script"], *(getattr(mended, it) for it in functions), accidents=accidents)
        told[name] = {"different": board.morning.different, "words": board.morning.words, "frames": board.frames}
        Path(out).write_text(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
