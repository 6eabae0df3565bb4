"""The ten bets of lesson 9.5: what can be bet, what each run shows, and that no page tells it before."""

import inspect
import json
import re
from pathlib import Path

import torch.distributed as dist

from ddplab import claim
from ddplab.course.advice import bets
from ddplab.course.bets import STAKES

LESSON = Path(__file__).parents[2] / "lessons/9_folklore/9.5_a_guide.ipynb"


def test_each_run_shows_what_its_verdict_says():
    boxes = [claim(**bets.settled(row)) for row in bets.cards]
    assert len(boxes) == STAKES.total() and "the file notes beside each tensor: vgpu:0" in boxes[-1].measured


def test_each_has_three_ends_and_no_place_wins_by_itself():
    """Whoever always says the first, the second or the last end wins half of the bets at most."""
    places = []
    for card in bets.cards.values():
        [end] = re.findall(r'return "(.*?)" if ', inspect.getsource(card.run))
        places.append(card.ends.index(end))
        assert len(card.ends) == 3
    assert max(places.count(n) for n in range(3)) <= 5


def test_between_the_bets_and_their_record_nothing_in_the_stored_lesson_tells_an_end():
    cells = json.loads(LESSON.read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells]
    record = next(n for n, source in enumerate(sources) if "bets.settled(" in source)
    told = json.dumps(cells[:record])
    assert [row for row, card in bets.cards.items() if card.because in told or "@bets.on" in told] == []


def test_torch_says_of_nccl_what_the_advice_says_it_does():
    assert "rather than the normal lazy" in dist.init_process_group.__doc__
