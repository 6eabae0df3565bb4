"""The game of fitting of lesson 1.3: how a try is told, and all that its end says."""

from pathlib import Path

import nbformat
import pytest

from ddplab import device
from ddplab.course.fitting import DEAR, Fitting


def game():
    def held(what, devices):
        return {"model": {"large": 30, "small": 10}[what], "activations": 40 / devices}

    levers = {"what": ["large", "small"], "devices": [1, 2, 4, 100]}
    return Fitting(held, lambda what, devices: (what == "small") + devices - 1, (60, 30, 9), levers)


def test_a_try_is_told_beside_the_best_of_all():
    play = game()
    words, figure = play.draw(what="large", devices=4)
    assert words.splitlines() == [
        "price 3, 40.0 GB on each GPU",
        "60 GB  ✓ 20.0 to spare    you have fitted it for 3; there is a cheaper way",
        "30 GB  ✗ 10.0 too much    your nearest: 10.0 too much",
        "9 GB   ✗ 31.0 too much    your nearest: 31.0 too much",
    ]
    words, figure = play.draw(what="small", devices=1)
    assert "60 GB  ✓ 10.0 to spare    you have fitted it for 1, the least there is; 1 of its 2 ways found" in words
    assert play.draw(what="large", devices=2)[0].splitlines()[1].endswith("2 of its 2 ways found")
    bar, dots = figure.axes
    assert [(part.get_y(), part.get_height()) for part in bar.patches] == [(0, 10), (10, 40)]
    assert [[*map(tuple, line.get_xydata())] for line in dots.get_lines()[:2]] == [[(3, 40)], [(1, 50)]]
    assert sorted(line.get_ydata()[0] for line in dots.get_lines()[2:]) == [9, 30, 60]


def test_a_try_made_again_is_one_dot_and_a_dear_one_stays_in_the_picture():
    play = game()
    for devices in (100, 1, 100):
        words, figure = play.draw(what="small", devices=devices)
    assert [it["devices"] for it in play.tried] == [
        1,
        100,
    ] and "30 GB  ✓ 19.6 to spare    you have fitted it for 100;" in words
    assert figure.axes[1].get_lines()[1].get_xdata() == [DEAR]


def test_where_nothing_fits_whoever_has_tried_the_least_there_is_is_told_that_it_is_the_end():
    play = game()
    last = [play.draw(what="small", devices=devices)[0].splitlines()[3] for devices in (4, 100, 1)]
    assert last[0] == "9 GB   ✗ 11.0 too much    your nearest: 11.0 too much"
    assert last[1] == "9 GB   ✗ 1.4 too much     it goes onto none: no setting needs less than 10.4 GB. Why?"
    assert last[2].endswith("it goes onto none: no setting needs less than 10.4 GB. Why?")


def test_tries_stay_where_a_game_with_another_price_is_given_them():
    tries = []
    first, then = (
        Fitting(lambda n: {"model": n}, lambda n, by=by: by * n, (9,), {"n": [1, 2]}, tries) for by in (1, 5)
    )
    first.draw(n=2)
    _, figure = then.draw(n=1)
    assert tries == then.tried == [{"n": 2}, {"n": 1}]
    assert [line.get_xdata()[0] for line in figure.axes[1].get_lines()[:2]] == [10, 5]


def test_the_cheapest_ways_are_all_told_and_none_where_nothing_fits():
    play = game()
    assert play.ways(60) == [{"what": "large", "devices": 2}, {"what": "small", "devices": 1}]
    assert play.ways(30) == [{"what": "small", "devices": 2}] and play.ways(9) == []


def test_a_price_that_is_no_number_is_told():
    play = Fitting(lambda n: {"model": n}, lambda n: None, (9,), {"n": [1, 2]})
    for ask in (lambda: play.draw(n=1), lambda: play.ways(9)):
        with pytest.raises(ValueError, match="`price` returned None, and a number is wanted"):
            ask()


def test_what_can_be_had_in_lesson_1_3_and_for_how_much():
    lesson = Path(__file__).parents[2] / "lessons/1_one_device/1.3_where_the_memory_goes.ipynb"
    names = {}
    for cell in nbformat.read(lesson, as_version=4).cells:
        tags = cell.metadata.get("tags", [])
        needed = cell.source.startswith(("from functools", "def memory_with", "size = ", "def price"))
        if cell.cell_type == "code" and (needed or "one-way" in tags):
            exec(cell.source, names)
    play = names["game"]
    ways = {room: play.ways(room) for room in (80, 40, 24)}
    assert {room: {play.price(**it) for it in them} for room, them in ways.items()} == {80: {2}, 40: {4}, 24: set()}
    assert all(way["numbers"] == "bfloat16" for way in ways[80] + ways[40])
    assert sorted(way["optimiser"] for way in ways[40]) == ["Adafactor", "SGD"]
    if device().type == "cpu":  # on a GPU, bfloat16 may leave a little more of the activations
        assert [len(them) for them in ways.values()] == [4, 2, 0]
    assert min(play.gb(**setting) for setting in play.settings) > 28 and len(play.settings) == 560
    plain = {"optimiser": "Adam", "numbers": "float32", "checkpointing": "off", "parts": 1, "devices": 1}
    assert play.gb(**plain) == 172 and play.gb(**plain | {"devices": 1000}) > 112
    assert not any(play.gb(**it) <= 80 for it in play.settings if play.price(**it) == 1)
    assert play.held(**plain)["batch"] == 60
    assert play.dear() == DEAR
    play._asked = cheap_devices  # as the text has it for another go
    ways = {room: play.ways(room) for room in (80, 40)}
    assert {room: {play.price(**it) for it in them} for room, them in ways.items()} == {80: {6}, 40: {17}}
    assert all(way["devices"] > 1 for them in ways.values() for way in them)
    assert play.dear() == 30, "the winners are apart in the picture"
    ticks = play.draw(**ways[40][0])[1].axes[1].get_xticklabels()
    assert [it.get_text() for it in ticks] == ["0", "5", "10", "15", "20", "25", "30, or more"]


def cheap_devices(optimiser, numbers, checkpointing, parts, devices):
    given_up = {"Adam": 0, "SGD with momentum": 1, "SGD": 2, "Adafactor": 2}[optimiser]
    return 5 * (given_up + (numbers == "bfloat16") + (checkpointing == "on") + parts - 1) + devices - 1
