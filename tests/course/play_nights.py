"""Plays nights for test_nights.py, in a process whose agents and ranks are forks of a warm one: play_nights IN OUT."""

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from ddplab.course import nights


def main(asked: str, out: str) -> None:
    """asked: a file with {script, functions: a file, nights: {name: [accidents, names of functions]}}."""
    order = json.loads(Path(asked).read_text())
    spec = spec_from_file_location("mended", order["functions"])
    mended = module_from_spec(spec)
    spec.loader.exec_module(mended)
    nights.PATIENCE = 6.0
    told = {}
    for name, (accidents, functions) in order["nights"].items():
        board = nights.night(order["script"], *(getattr(mended, it) for it in functions), accidents=accidents)
        frames = [{key: frame[key] for key in ("servers", "disk", "said")} for frame in board.frames]
        told[name] = {"different": board.morning.different, "words": board.morning.words, "frames": frames}
    Path(out).write_text(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
