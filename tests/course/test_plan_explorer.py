"""The planner as a widget: text where nobody can press, and lists where somebody can."""

import re
from math import ceil, log, sqrt

import pytest

import ddplab.screen
from ddplab.course.plan_explorer import CHOICES, SHOWN, planner
from ddplab.course.plan_formula import UNITS


def test_text_where_nobody_can_press(capsys):
    found = planner(gpus=64)
    found._ipython_display_()
    assert capsys.readouterr().out == str(found) + "\n"
    lines = str(found).splitlines()
    assert lines[0].startswith("1.3 B parameters, 8 x 1024 tokens a GPU, adam, bf16, 1 GB of activations a sample, on")
    assert [line.split()[0] for line in lines[2:6]] == ["1", "8", "→", "512"] and len(set(map(len, lines[1:6]))) == 1
    slower = str(planner(gpus=64, machine="8 A100, PCIe, 100 Gb Ethernet")).splitlines()
    assert lines[7:] == [f"→ 64 GPUs, 543 ms: {30 * '█'}"]
    assert slower[7:] == [f"→ 64 GPUs, 817 ms: {20 * '█'}{10 * '░'}"]  # 275 ms of it are exposed


def test_every_choice_can_be_planned():
    for field, options in CHOICES.items():
        for option in options:
            found = planner(**{field: option})
            assert found.plan().step.seconds > 0 and str(found)


def test_more_memory_than_a_gpu_has_does_not_fit():
    assert planner(model="1.3 B").plan().fits and planner(model="7 B").plan().fits is False


def test_what_has_no_room_for_buckets_fits_barely_and_says_why():
    found = str(planner(model="1.3 B", optimizer="momentum", precision="fp32", activations=8.0))
    assert found.count("79.6  barely") == 4 and found.count("fits barely: no room for DDP's buckets") == 1
    roomy = str(planner(model="1.3 B", optimizer="momentum", precision="fp32", activations=4.0))
    assert roomy.count("yes") == 4 and "barely" not in roomy


def test_the_lists_change_the_table(monkeypatch):
    monkeypatch.setattr(ddplab.screen, "live", lambda: True)
    found = planner()
    box = found._widget()
    lists, page, steps = box.children

    def pick(name, text):
        lists.chosen = {**lists.chosen, name: lists.options[name].index(text)}

    assert len(lists.options) == len(CHOICES) and "→ 64" in page.value and "1.3 B" in page.value
    pick("GPUs", "256")
    assert "→ 256" in page.value and found.gpus == 256
    name, unknown, parts, _ = steps.shown["rows"][steps.shown["chosen"]]
    whole = sum(parts.values()) - parts["hidden"]
    assert (name, unknown) == ("256 GPUs", None) and whole == pytest.approx(1e3 * found.plan().step.seconds)
    assert parts["hidden"] + parts["exposed"] == pytest.approx(1e3 * found.plan().step.communication)
    pick("model", "13 B")
    assert "<td>no</td>" in page.value
    pick("machine", "8 A100, PCIe, 10 Gb Ethernet")
    assert "10 Gb Ethernet" in page.value and found.plan().efficiency < 0.5
    assert "<td>do not know</td>" in page.value and "do not know: the network decides" in page.value
    assert steps.shown["rows"][steps.shown["chosen"]][1] == "the network decides: measure it"


def redone(sum_: str) -> float:
    """A sum of the formula, done once more; amounts in seconds, bytes, and their quotients."""
    for symbol, python in {"×": "*", "÷": "/", "−": "-", "√": "sqrt", "⌈": "ceil(", "⌉": ")"}.items():
        sum_ = sum_.replace(symbol, python)
    sum_ = re.sub(r"(?<=\d),(?=\d{3})", "", sum_)
    units = "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))
    sum_ = re.sub(rf"([\d.]+) ({units})(?![\w/])", lambda it: f"{float(it[1]) * UNITS[it[2]]!r}", sum_)
    sum_ = re.sub(r"ln (\d+)", r"log(\1)", sum_)
    words = r"\b(operations/s|operations|parameters|samples/s|samples|tokens|messages|bytes|GPUs?)\b"
    return eval(re.sub(words, "", sum_), {"sqrt": sqrt, "log": log, "ceil": ceil, "max": max})


@pytest.mark.parametrize("machine", CHOICES["machine"])
def test_the_formula_can_be_redone_by_hand(machine):
    """Each line gives what it says, and the step, the speed and the days are the plan's."""
    levels = set()
    for gpus in SHOWN:
        found = planner(machine=machine, gpus=gpus, batch=16)
        lines = found.formula()
        for line in lines:
            wanted = redone(re.sub(r", each .*", "", line.result))
            assert redone(line.sum) == pytest.approx(wanted, rel=5e-3, abs=1e-7), line
        results = {line.name: redone(re.sub(r", each .*", "", line.result)) for line in lines}
        plan = found.plan()
        assert results["a step"] == pytest.approx(plan.step.seconds, rel=1e-3)
        assert results["speed"] == pytest.approx(plan.throughput, rel=1e-2)
        levels.add("inside each node" in results)
    assert machine != CHOICES["machine"][0] or levels == {True, False}


def test_a_row_that_is_not_known_says_so_and_has_no_speed():
    lines = str(planner(model="124 M", batch=1)).splitlines()
    assert all("do not know" in line and line.count("?") == 4 for line in lines[2:6])
    assert lines[6:] == ["do not know: 6 ms a step may be Python starting kernels"]
    assert "do not know" not in str(planner())


def test_the_text_stands_in_where_the_widget_is_gone(monkeypatch):
    import IPython.display

    monkeypatch.setattr(ddplab.screen, "live", lambda: True)
    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda data, _=None, raw=False: shown.append(data))
    found = planner()
    found._ipython_display_()
    assert shown[0]["text/plain"] == str(found) and "application/vnd.jupyter.widget-view+json" in shown[0]
