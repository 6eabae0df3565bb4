"""The planner as a widget: text where nobody can press, and lists where somebody can."""

import subprocess
import sys

import ddplab.screen
from ddplab.course.plan_explorer import CHOICES, planner


def test_text_where_nobody_can_press(capsys):
    found = planner(gpus=64)
    found._ipython_display_()
    assert capsys.readouterr().out == str(found) + "\n"
    lines = str(found).splitlines()
    assert lines[0].startswith("1.3 B parameters, 8 x 1024 tokens a GPU, adam, bf16, on 8 A100")
    assert [line.split()[0] for line in lines[2:]] == ["1", "8", "→", "512"] and len(set(map(len, lines[1:]))) == 1


def test_every_choice_can_be_planned():
    for field, options in CHOICES.items():
        for option in options:
            found = planner(**{field: option})
            assert found.plan().step.seconds > 0 and str(found)


def test_more_memory_than_a_gpu_has_does_not_fit():
    assert planner(model="1.3 B").plan().fits and planner(model="7 B").plan().fits is False


def test_the_lists_change_the_table(monkeypatch):
    monkeypatch.setattr(ddplab.screen, "live", lambda: True)
    found = planner()
    box = found._widget()
    lists, page = box.children

    def pick(name, text):
        lists.chosen = {**lists.chosen, name: lists.options[name].index(text)}

    assert len(lists.options) == len(CHOICES) and "→ 64" in page.value and "1.3 B" in page.value
    pick("GPUs", "256")
    assert "→ 256" in page.value and found.gpus == 256
    pick("model", "13 B")
    assert "<td>no</td>" in page.value
    pick("machine", "8 A100, PCIe, 10 Gb Ethernet")
    assert "10 Gb Ethernet" in page.value and found.plan().efficiency < 0.5
    assert "<td>do not know</td>" in page.value and "do not know: the network decides" in page.value


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


def test_importing_it_loads_no_widgets():
    code = "import sys, ddplab.course.plan_explorer; assert not {'ipywidgets', 'matplotlib'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
