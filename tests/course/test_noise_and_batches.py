"""What the text of lesson 1.5 says of its pictures, and of rates at which no picture is stored, on this machine."""

import json
from itertools import pairwise
from pathlib import Path

import matplotlib
import pytest
import torch

from ddplab.course import moving

matplotlib.use("Agg")
LESSON = Path(__file__).parents[2] / "lessons/1_one_device/1.5_noise_and_batches.ipynb"


@pytest.fixture(scope="module")
def lesson():
    """What the lesson's code cells define, up to its four runs; turns are taken our way, and no slider is drawn."""
    names = {"__name__": "__main__"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(moving, "move", lambda *_, **__: None)
        threads = torch.get_num_threads()
        for cell in json.loads(LESSON.read_text())["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "code" and "your-turn" not in cell["metadata"].get("tags", []):
                exec("\n".join(line for line in source.splitlines() if line != "devices()"), names)
            if "def four_runs" in source:
                break
        torch.set_num_threads(threads)
    return names


def test_more_images_are_calmer_however_they_are_drawn(lesson):
    rms_error, by_lot, fresh, swarm, x = (lesson[name] for name in ("rms_error", "by_lot", "fresh", "swarm", "x"))
    errors = [rms_error(by_lot[batch], fresh) for batch in lesson["sizes"]]
    along = by_lot[8] @ fresh / fresh.norm() ** 2
    assert all(0.4 < after / before < 0.6 for before, after in pairwise(errors))  # half of it
    assert (along < 0).sum() <= 5
    assert (along - 1).pow(2).mean().sqrt() < errors[0] / 3  # the rest: sideways
    drawn = {
        it: [rms_error(swarm(it, lesson[way]), fresh) for way in ("any_images", "dealt_once")] for it in (32, len(x))
    }
    assert drawn[len(x)][0] == pytest.approx(0.23, abs=0.03) and drawn[len(x)][1] < 0.01
    assert 0.8 < drawn[32][1] / drawn[32][0] < 1.2
    assert lesson["batch_for"](0.23, 8, errors[0]) == pytest.approx(len(x), rel=0.1)


def test_which_batch_is_first_depends_on_the_rate(lesson):
    for rate in (0.1, 0.5, 0.6, 0.7, 0.9, 1.0):
        lesson["four_runs"](rate)
    ended = lesson["ended"]
    assert list(ended[0.1].values()) == sorted(ended[0.1].values())
    assert ended[1.0][32] < ended[1.0][512] < ended[1.0][8]
    assert ended[0.6][8] == min(loss for losses in ended.values() for loss in losses.values())
    first = {rate: min(losses, key=losses.get) for rate, losses in ended.items()}
    assert first == {0.1: 8, 0.5: 8, 0.6: 8, 0.7: 32, 0.9: 32, 1.0: 32}
    assert max(ended[0.9], key=ended[0.9].get) == 8 and ended[1.0][8] > 2  # of ten digits, guessing costs 2.3
