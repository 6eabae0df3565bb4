"""The course as a whole: nothing is used before it is taught, no answer stands in the open, a lesson stays short."""

import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest
from make_pages import WAYS
from nbformat import NotebookNode
from run_notebooks import code_cells, fold, read

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "lessons").glob("*/*.ipynb"))
ROOMS = [path for path in PAGES if path.parent.name.startswith("9_")]  # where the folklore is settled
LESSONS = [path for path in PAGES if path not in ROOMS and not re.match(r"\d\.0_", path.name)]
AT_FIRST = 868  # code cells in the lessons of the first edition
LONGER = {"4.8": 75, "4.9": 75, "5.7": 75}  # minutes, turns included: six puzzles each, and a night to be won
# Names in code that are their own term; the words of the glossary come from GLOSSARY.md.
NAMES = """DataParallel DistributedDataParallel DistributedSampler SyncBatchNorm launch log predict torchrun %%torchrun
    init_process_group all_reduce all_gather reduce_scatter broadcast barrier send recv isend irecv new_group
    monitored_barrier no_sync join device_ids bucket_cap_mb find_unused_parameters static_graph register_comm_hook
    set_epoch fully_shard ZeroRedundancyOptimizer autocast GradScaler --nproc-per-node --nnodes --node-rank
    --rdzv-endpoint --rdzv-id --rdzv-backend --max-restarts --master-port sbatch srun""".split()
# Entries of the glossary that are everyday words as well: a text may use those as such, so only code is searched.
EVERYDAY = """agent alpha atomic batch bubble buffer chunk clipping efficiency fork gather hook in place join launch
    launcher local loss meter metric metrics milestone node overlap padding panel pass through port prediction process
    race reduce registered restart scalar schedule scheduler seed send shard stage step store sweep synchronise thread
    timeout update victim warm-up watchdog worker launcher fingerprint scatter stage memorising accuracy epoch zero
    """.split()


@cache
def notebook(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def number(path: Path) -> str:
    return path.name.split("_")[0]


def about(path: Path) -> dict:
    return notebook(path).metadata.get("ddplab", {})


def name(path: Path) -> str:
    return path.stem


def glossary() -> list[str]:
    text = (ROOT / "GLOSSARY.md").read_text()
    entries = re.findall(r"^- \*\*(.+?):\*\*", text, re.MULTILINE)
    return [word.split(" (")[0].lower() for entry in entries for word in entry.split(", ")]


def taught() -> dict[str, int]:
    """Each term, in lower case for words and as it is for names, with the place in the course of its lesson."""
    return {
        term: place for place, path in reversed(list(enumerate(LESSONS))) for term in about(path).get("teaches", [])
    }


def visible(cell: NotebookNode) -> str:
    """What a page shows of its source: of a folded one the first line, beside the dots."""
    return cell.source.partition("\n")[0] if cell.metadata.get("jupyter", {}).get("source_hidden") else cell.source


@pytest.mark.parametrize("path", LESSONS, ids=name)
def test_a_lesson_says_what_it_teaches_and_needs_and_its_first_cell_says_the_same(path):
    told, first = about(path), notebook(path).cells[0].source
    assert told.keys() == {"minutes", "needs", "teaches"}, f"metadata: {dict(told)}"
    turns = len(set(re.findall(r'check\("\d\.\d+\.([a-z])"', " ".join(cell.source for cell in notebook(path).cells))))
    writing = "" if number(path) in LONGER else f", and some {round(turns * 12 / 5) * 5} for your turns"
    assert f"**Time:** {told['minutes']} minutes{writing}\n" in first
    assert told["minutes"] <= LONGER.get(number(path), 25)
    needs = re.search(r"\*\*You need first:\*\*(.*?)(?:\n\n|\Z)", first, re.DOTALL)
    links = re.findall(r"\[(\d\.\d+)[^\]]*\]\(", needs[1]) if needs else []
    assert links == told["needs"] and all(need < number(path) for need in links)


def test_every_word_and_name_is_taught_by_one_lesson():
    everywhere = [term for path in LESSONS for term in about(path).get("teaches", [])]
    assert sorted({term for term in everywhere if everywhere.count(term) > 1}) == []
    assert sorted(set(NAMES) - set(everywhere)) == []
    assert sorted(set(glossary()) - set(everywhere)) == []
    assert sorted(set(everywhere) - set(glossary()) - set(NAMES)) == [], "neither in the glossary nor in NAMES"


@pytest.mark.parametrize("path", LESSONS, ids=name)
def test_nothing_is_used_before_it_is_taught(path):
    later = {term for term, place in taught().items() if place > LESSONS.index(path)}
    found = []
    for n, cell in enumerate(notebook(path).cells[1:], 2):
        words = re.sub(r"`[^`]*`", "", cell.source) if cell.cell_type == "markdown" else ""
        ahead = re.search(r"\]\((\.\./\d_\w+/)?\d\.\d+_", cell.source)  # a pointer says where it will be taught
        for term in later:
            if cell.cell_type == "code" and term in NAMES:
                name = re.escape(term)
                seen = re.search(rf"(?<![\w.-]){name}(?![\w-])|(?<![\"'])\.{name}\(", visible(cell))
            elif term not in EVERYDAY and term not in NAMES and not ahead:
                seen = re.search(rf"\b{re.escape(term)}\b", words, re.IGNORECASE)
            else:
                seen = None
            if seen:
                found.append(f"cell {n} uses {term!r}, which lesson {number(LESSONS[taught()[term]])} teaches")
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("way", "minutes"), [("an hour and a quarter", 75), ("half a day", 240)])
def test_a_way_through_is_whole_short_and_leads_from_page_to_page(way, minutes):
    """Its links, or those of `Next`, lead from the first lesson to a script under torchrun; all that is needed on it
    comes before, on it."""
    at, passed = LESSONS[0], []
    while at is not None:
        assert set(about(at)["needs"]) <= set(passed), f"{number(at)} needs {about(at)['needs']}; passed: {passed}"
        passed.append(number(at))
        last = notebook(at).cells[-1].source.partition("**Next:**")[2]
        further = re.search(rf"With {way} for the course, go on with \[[^\]]*\]\((.+?)\)", last)
        links = [further[1]] if further else re.findall(r"\]\(([^)]+\.ipynb)\)", last.partition("<!--")[0])
        ahead = [path for path in LESSONS if path in {(at.parent / link).resolve() for link in links}]
        at = next((path for path in ahead if number(path) in WAYS[way][len(passed) :]), None)
    assert passed == WAYS[way] and sum(about(path)["minutes"] for path in LESSONS if number(path) in passed) <= minutes
    assert any(
        "%%torchrun" in cell.source for path in LESSONS if number(path) == "5.1" for cell in notebook(path).cells
    )
    assert "5.1" in passed


def test_each_lesson_leads_to_the_next():
    for path, after in pairwise(LESSONS):
        further = re.search(r"\*\*Next:\*\* \[[^\]]*\]\((.+?)\)", notebook(path).cells[-1].source)
        assert further and (path.parent / further[1]).resolve() in (after, *after.parent.glob("?.0_*.ipynb"))


# Unspoiled


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_what_settles_something_is_stored_folded(path):
    stored, folded = notebook(path), read(path)
    for cell in folded.cells:
        cell.metadata.pop("jupyter", None), cell.metadata.pop("collapsed", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("data") != {}]
    fold(folded)
    for is_, should in zip(stored.cells, folded.cells, strict=True):
        assert is_.metadata == should.metadata and is_.get("outputs") == should.get("outputs"), is_.source[:200]


def predictions(path: Path) -> list[tuple[int, int, str, str, list[str]]]:
    """Each prediction: the cells of question and answer, the question, the answer, and the other options."""
    cells, found = notebook(path).cells, []
    for asked, cell in enumerate(cells):
        for guess in re.findall(r"^(\w+) = predict\(", cell.source, re.MULTILINE):
            after = [n for n in range(asked + 1, len(cells)) if re.search(rf"\bsettle\(\s*{guess}\b", cells[n].source)]
            assert after, f"nothing settles the prediction {guess!r}"
            answer = "\n".join(output.get("data", {}).get("text/plain", "") for output in cells[after[0]].outputs)
            question, said = re.search(r"^Question +(.*)\nAnswer +(.*)", answer, re.MULTILINE).groups()
            asked_text = "".join(output.get("text", "") for output in cell.outputs if output.output_type == "stream")
            options = re.findall(r"^  \(\w\) (.*)$", asked_text, re.MULTILINE)
            right = next(option for option in options if said.startswith(option + ": "))
            found.append((asked, after[0], question, right, [option for option in options if option != right]))
    return found


def telling(answer: str, others: list[str], question: str) -> set[str]:
    """The words that only the right option has."""
    words = lambda text: set(re.findall(r"[a-z]{4,}", text.lower()))  # noqa: E731
    return words(answer) - words(" ".join([question, *others]))


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_no_prediction_can_be_read_off_the_page(path):
    found = []
    for asked, settled, question, answer, others in predictions(path):
        cells = notebook(path).cells
        start = max(
            [0, *(n for n in range(asked) if cells[n].cell_type == "markdown" and "\n#" in f"\n{cells[n].source}")]
        )
        for n in range(start, settled + 1):
            text = visible(cells[n]).lower() if n != asked else ""
            given = {word for word in telling(answer, others, question) if re.search(rf"\b{word}\b", text)}
            if given or answer.lower() in text:
                found.append(f"cell {n + 1}, before the answer {answer!r}: {sorted(given) or answer}")
    assert not found, "\n".join(found)


# Short


@pytest.mark.parametrize("path", LESSONS, ids=name)
def test_a_lesson_has_at_most_two_claim_boxes_and_they_stand_at_its_end(path):
    boxes = [bool(re.search(r"^claim\(", cell.source, re.MULTILINE)) for cell in code_cells(notebook(path))]
    assert sum(boxes) <= 2 and not any(boxes[: len(boxes) - sum(boxes)])


def test_the_lessons_have_a_fifth_fewer_code_cells_than_at_first():
    """One way to write what the learner is to write is there for who is stuck: it does not count."""
    cells = [cell for path in LESSONS for cell in code_cells(notebook(path))]
    assert sum("one-way" not in cell.metadata.get("tags", []) for cell in cells) <= 0.8 * AT_FIRST


@pytest.mark.parametrize("path", LESSONS, ids=name)
def test_a_second_cup_is_three_cells_at_most_and_asks_for_nothing(path):
    """The minutes leave it out, so a learner may too: no turn and no prediction of the lesson stands in it."""
    sources = [cell.source for cell in notebook(path).cells]
    cups = [n for n, text in enumerate(sources) if "## For a second cup\n" in text]
    cells = [cell for n in cups for cell in notebook(path).cells[n:] if cell.cell_type == "code"]
    assert len(cups) <= 1 and len(cells) <= 3
    assert not any(re.search(r"(?<!\.)\b(check|predict|settle)\(", cell.source) for cell in cells)


# Your turn


@pytest.mark.parametrize("path", LESSONS, ids=name)
def test_every_lesson_has_three_turns_or_more_and_each_is_blank_checked_and_followed_by_one_way(path):
    """CI runs both: it judges our way where it stands, see `with_our_way_judged`."""
    cells, ids = code_cells(notebook(path)), []
    for cell, after in pairwise(cells):
        tags = cell.metadata.get("tags", [])
        assert ("one-way" in after.metadata.get("tags", [])) == ("your-turn" in tags), after.source
        if "your-turn" in tags:
            defined = re.match(r"(?:def|class) (\w+)", cell.source)[1]
            call = re.search(r'\n\n\ncheck\("(\d\.\d+\.[a-z])", (\w+)\)$', cell.source)
            assert call and call[2] == defined and re.search(rf"^(def|class) {defined}\b", after.source, re.MULTILINE)
            assert re.search(r"^ +# your turn: .*\n +\.\.\.$", cell.source, re.MULTILINE), "the hole says what to write"
            ids.append(call[1])
    assert ids == [f"{number(path)}.{letter}" for letter in "abcdef"[: len(ids)]] and 3 <= len(ids)
