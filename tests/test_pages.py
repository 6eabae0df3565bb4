"""What tools/make_pages.py reads off the lessons, and where it writes it."""

import base64

import pytest
from make_pages import BEGIN, END, WAYS, made
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from run_notebooks import normalise, read, write

SHORTEST = next(iter(WAYS))


@pytest.fixture
def course(tmp_path):
    """A course of one lesson for each stop on the ways, with exercises for the first."""

    def page(kind, number, title, *sources, minutes=0):
        path = tmp_path / kind / f"{number[0]}_part" / f"{number}_it.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        first = f"# {title}\n\n**Time:** {minutes} minutes" if minutes else f"# {title}"
        notebook = new_notebook(cells=[new_markdown_cell(text) for text in (first, *sources)])
        for cell in notebook.cells:
            cell.id = ""
        normalise(notebook)
        write(notebook, path)
        return path

    (tmp_path / "README.md").write_text(f"{BEGIN}\n{END}\n\n## The lessons\n\n{BEGIN}\n{END}\n")
    part = page("lessons", "1.0", "Part 1 · The first", f"{BEGIN}\nold\n{END}")
    numbers = sorted({number for numbers in WAYS.values() for number in numbers})
    lessons = {number: page("lessons", number, f"{number} · Its `title`", "The end.", minutes=10) for number in numbers}
    page("exercises", "1.1", "Exercises")
    return tmp_path, part, lessons


def test_a_parts_page_lists_its_lessons_with_minutes_and_exercises(course):
    root, part, _ = course
    part.write_bytes(made(root)[part])
    row = "| 1.1 | [Its `title`](1.1_it.ipynb) | 10 | [exercises](../../exercises/1_part/1.1_it.ipynb) |"
    assert row in read(part).cells[-1].source and "old" not in read(part).cells[-1].source


def test_the_readme_has_the_ways_with_their_minutes_and_the_map(course):
    root, _, _ = course
    text = made(root)[root / "README.md"].decode()
    minutes = f"{10 * len(WAYS[SHORTEST])} minutes of lessons, two to three times that with every turn"
    assert f"**In {SHORTEST}** ({minutes}): [1.1](lessons/1_part/1.1_it.ipynb) → " in text
    assert text.index("## The lessons") < text.index("### Part 1 · [The first](lessons/1_part/1.0_it.ipynb)")


def test_a_lesson_says_once_where_each_way_goes_on(course):
    root, _, lessons = course
    first, second = WAYS[SHORTEST][:2]
    for _ in range(2):  # writing twice changes nothing
        for path, text in made(root).items():
            path.write_bytes(text)
    last = read(lessons[first]).cells[-1].source
    assert last.count(f"With {SHORTEST} for the course, go on with [{second} · Its `title`](") == 1
    assert last.startswith("The end.")
    assert BEGIN not in read(lessons[WAYS["half a day"][-1]]).cells[-1].source
    assert made(root) == {path: path.read_bytes() for path in made(root)}


def test_a_lesson_whose_next_page_is_that_of_a_way_does_not_say_it_again(course):
    root, _, lessons = course
    first, second = WAYS[SHORTEST][:2]
    notebook = read(lessons[first])
    notebook.cells[-1].source = f"**Next:** [{second}](../x/{lessons[second].name})."
    write(notebook, lessons[first])
    assert f"With {SHORTEST}" not in made(root)[lessons[first]].decode()


def test_the_readme_shows_the_picture_that_a_lesson_has_stored(course):
    root, _, lessons = course
    notebook = read(lessons["4.1"])
    stored = new_output("display_data", {"image/png": base64.b64encode(b"a picture").decode(), "text/plain": ""})
    notebook.cells.append(new_code_cell("draw()", outputs=[stored], metadata={"tags": ["in-readme"]}))
    write(notebook, lessons["4.1"])
    assert made(root)[root / "pictures" / "4.1.png"] == b"a picture"
