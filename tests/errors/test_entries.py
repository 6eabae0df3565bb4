"""Each page of `why` is held: its lesson is there, its words are in the installed torch, its error is caused."""

import importlib
import io
import json
import os
import re
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import causes
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from ddplab import RankError, RankTimeoutError, device, launch
from ddplab.diagnosis import _HINTS, _VICTIM
from ddplab.errors import find, index
from ddplab.errors.book import LEVELS, entries, symptoms
from ddplab.errors.patterns import holds

ROOT = Path(__file__).parents[2]
ENTRIES = entries()
OWN = {entry.caused_by for entry in ENTRIES.values() if entry.caused_by and entry.caused_by != "lesson"}
OWN = {name for name in OWN if not name.startswith("rehearse:")}


def found_in(text):
    """The entries that an answer to this text leads to: the first, and those that it also names."""
    answer = find.answer(io.BytesIO(text.encode()))
    return [event.entry.name for event in [answer.event, *answer.also] if event and event.entry]


@cache
def lesson(number):
    return json.loads(next((ROOT / "lessons").glob(f"*/{number}_*.ipynb")).read_text(encoding="utf-8"))


def said_in(number):
    """The texts that a lesson's cells have stored: what they printed, what they raised, what they showed."""
    for cell in lesson(number)["cells"]:
        for out in cell.get("outputs", ()):
            if out["output_type"] == "error":
                yield f"{out['ename']}: {out['evalue']}"
            yield "".join(out.get("text", ())) + "".join(out.get("data", {}).get("text/plain", ()))
        yield "".join(cell["source"]) if cell["cell_type"] == "markdown" else ""


@pytest.mark.parametrize("name", ENTRIES)
def test_a_page_says_what_to_look_at_and_what_to_do(name):
    entry = ENTRIES[name]
    assert entry.means and entry.causes and all(all(cause) for cause in entry.causes)
    assert bool(entry.caused_by) != bool(entry.only), "caused by a test, or said why not"
    assert entry.level in LEVELS
    if entry.lesson:
        heads = [
            line.lstrip("# ") for cell in lesson(entry.lesson)["cells"] for line in "".join(cell["source"]).split("\n")
        ]
        assert entry.heading in heads, f"lesson {entry.lesson} has no heading {entry.heading!r}"
    for cause in entry.causes:
        for number in re.findall(r"lesson (\d\.\d)", " ".join(cause)):
            assert lesson(number)


@pytest.mark.parametrize("symptom", symptoms(), ids=lambda symptom: symptom.name)
def test_a_symptom_is_found_by_its_words_and_leads_somewhere(symptom):
    assert symptom.entries and all(name in ENTRIES for name in symptom.entries)
    for words in [symptom.title, *symptom.words]:
        answer = find.answer(io.BytesIO(f"my training: {words}".encode()))
        if len(words.split()) > 1:
            assert answer.symptom, words
            assert answer.symptom == symptom or set(answer.symptom.entries) & set(symptom.entries), words


def test_the_words_are_those_of_the_installed_torch():
    missing = []
    for name, entry in ENTRIES.items():
        if not entry.string or entry.only or entry.until:
            continue
        if entry.source.endswith(".py"):
            if ", line " not in index.raised_at(entry.source, entry.string):
                missing.append((name, entry.source, entry.string))
        elif not index.in_a_library(entry.string) and "third_party" not in entry.source:
            missing.append((name, "libraries", entry.string))
    assert not missing


def test_what_the_verdicts_of_launch_know_is_known_here_too():
    for words in _HINTS:
        assert found_in(f"RuntimeError: {words}" if ":" not in words and words != "BdbQuit" else words), words
    for words in re.sub(r"\((.*?)\)", lambda m: m[1].split("|")[0], _VICTIM.pattern).split("|"):
        answer = find.answer(io.BytesIO(f"[rank1]: RuntimeError: {words}".encode()))
        assert answer.entry and answer.entry.level == "follower" and not answer.sure, words


@pytest.mark.parametrize(
    "name", [n for n, e in ENTRIES.items() if e.caused_by == "lesson" and e.says and e.level != "note"]
)
def test_its_lesson_has_stored_the_error(name):
    said = [text for text in said_in(ENTRIES[name].lesson) if text]
    hit = any(name in found_in(text) for text in said)
    assert hit or any(
        all(holds(text, part.split("…")) for part in parts) for text in said for parts in ENTRIES[name].says
    )


def test_the_lessons_own_errors_are_known():
    """Every error that a lesson has stored leads to a page, save those that are the learner's own."""
    own = ("ValueError: ouch", "Tensor-likes are not close", "the GPU is gone", "EOFError: ")
    unknown = []
    for path in sorted((ROOT / "lessons").glob("*/*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for out in cell.get("outputs", ()):
                words = f"{out['ename']}: {out['evalue']}" if out["output_type"] == "error" else ""
                if words and not any(it in words for it in own) and not found_in(words):
                    unknown.append((path.name, words[:120]))
    assert not unknown


def rehearsed(monkeypatch):
    """The mistakes that tests/rehearse/suite makes on virtual GPUs: the function's name, the words it raises."""
    monkeypatch.syspath_prepend(ROOT / "tests" / "rehearse" / "suite")
    for name in ("on_devices", "between_ranks"):
        importlib.import_module(name)
    return {name: words for name, (_, words, _) in importlib.import_module("table").MISTAKES.items()}


def test_what_is_rehearsed_leads_to_its_page(monkeypatch):
    words = rehearsed(monkeypatch)
    for name, entry in ENTRIES.items():
        if entry.caused_by.startswith("rehearse:"):
            said = words[entry.caused_by.removeprefix("rehearse:")].replace("…", "2")
            assert name in found_in(f"RuntimeError: {said}"), name


# ------------------------------------------------------------------ causes of our own


def shapes_differ():
    DDP(nn.Linear(2, 2 + dist.get_rank()))


def die(number):
    if dist.get_rank() == 1:
        os.kill(os.getpid(), number)
    dist.barrier()


def counts_inside_join():
    model = DDP(nn.Linear(1, 1, bias=False))
    with Join([model]):
        for _ in range(3 - dist.get_rank()):
            model(torch.ones(1, 1)).sum().backward()
            dist.all_reduce(torch.ones(1))


RANKS = {
    "shapes_differ": (shapes_differ,),
    "counts_inside_join": (counts_inside_join,),
    "segfault": (die, 11),
    "bus_error": (die, 7),
    "arithmetic": (die, 8),
    "aborted": (die, 6),
}


@pytest.mark.parametrize("name", RANKS)
def test_two_ranks_cause_it(name):
    with pytest.raises(RankError) as caught:
        launch(*RANKS[name], device="cpu", quiet=True)
    wanted = next(entry for entry in ENTRIES.values() if entry.caused_by == name)
    assert wanted.name in found_in(str(caught.value))


def test_one_process_causes_the_others(tmp_path):
    ended = subprocess.run(
        [sys.executable, causes.__file__, str(tmp_path)], capture_output=True, text=True, timeout=240
    )
    said = json.loads((tmp_path / "found.json").read_text())
    said["found_nothing_unused"] += ended.stderr  # what C++ warns of
    said["store_unreachable"] += ended.stderr
    assert set(said) | set(RANKS) == OWN
    wrong = {}
    for name, entry in ENTRIES.items():
        text = said.get(entry.caused_by, "")
        if entry.level == "note":  # it is outweighed by what else is said, as it should be
            found = any(holds(text, part.split("…")) for parts in entry.says for part in parts)
        else:
            found = name in found_in(text)
        if entry.caused_by in said and not found:
            wrong[name] = said[entry.caused_by][-300:] or "nothing was raised"
    assert not wrong


# ------------------------------------------------------------------ what has no words: a symptom, caused


def same_data():
    torch.manual_seed(0)
    return next(iter(DataLoader(range(8), 4, shuffle=True))).tolist()  # no sampler


def drift():
    model = DDP(nn.Linear(1, 1, bias=False))
    model.module(torch.ones(1, 1) + dist.get_rank()).sum().backward()  # past DDP
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    return model.module.weight.item()


def summed(weight=1.0):
    for _ in range(2000):
        gradient = torch.tensor(1.5 * weight)
        dist.all_reduce(gradient)  # a sum, at the rate of one rank
        weight -= gradient.item()
    return weight * 0.0  # nan, where it is infinite


def waits_for_the_late(mark):
    if dist.get_rank() == 1:
        Path(mark).touch()  # the last thing that it does before
    dist.all_reduce(torch.ones(1))
    return Path(mark).exists()


def loads(file):
    if dist.get_rank() == 0:
        torch.save({"w": torch.ones(1000, device=device())}, file)
    dist.barrier()
    torch.load(file)  # no map_location


def fewer_batches():
    model = DDP(nn.Linear(1, 1))
    for _ in range(3 - dist.get_rank()):
        model(torch.ones(1, 1)).sum().backward()


def one_alone():
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))
        return
    while True:  # it has other things to do
        time.sleep(1)


def hangs(function):
    with pytest.raises(RankTimeoutError):
        launch(function, quiet=True, timeout=1.5)
    return True


def twice(results):
    return results[0] == results[1]


SYMPTOMS = {
    "same-data-on-all-ranks": lambda folder: twice(launch(same_data, quiet=True).results),
    "ranks-drift": lambda folder: not twice(launch(drift, quiet=True).results),
    "nan-on-two": lambda folder: (
        [launch(summed, nproc_per_node=n, quiet=True).results[0] == 0.0 for n in (1, 2)] == [True, False]
    ),
    "slower-with-more": lambda folder: (
        launch(waits_for_the_late, str(folder / "mark"), quiet=True).results == [True] * 2
    ),
    "gpu0-memory": lambda folder: (
        "2 processes use this GPU" in launch(loads, str(folder / "file"), device="virtual", quiet=True).rehearsal
    ),
    "hangs-at-end": lambda folder: hangs(fewer_batches),
    "hangs-in-first-step": lambda folder: hangs(one_alone),
}


def test_every_page_without_words_is_a_symptom_that_is_caused():
    assert SYMPTOMS.keys() == {name for name, entry in ENTRIES.items() if not entry.says and not entry.only}


@pytest.mark.parametrize("name", SYMPTOMS)
def test_it_is_caused(name, tmp_path):
    assert SYMPTOMS[name](tmp_path)
