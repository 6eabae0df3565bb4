"""What holds for every picture that a test here draws: it stands on a light page as well as on a dark one."""

from io import BytesIO

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import same_color

from ddplab.plots import INK


@pytest.fixture(autouse=True)
def no_white_slab(monkeypatch):
    """Each figure that the test draws has no background, and what stands around its axes is ink."""
    figures, create = [], plt.figure
    monkeypatch.setattr(plt, "figure", lambda *args, **options: figures.append(create(*args, **options)) or figures[-1])
    yield
    for figure in figures:
        figure.savefig(png := BytesIO(), format="png", dpi=40)
        png.seek(0)
        pixels = plt.imread(png)
        assert pixels[0, 0, 3] == pixels[-1, -1, 3] == 0 and pixels[..., 3].any(), "it has a background, or is empty"
        for axis in figure.axes:
            ticks = [*axis.get_xticklabels(which="both"), *axis.get_yticklabels(which="both")]
            legend = axis.get_legend().get_texts() if axis.get_legend() else []
            for text in [*ticks, *legend, axis.title, axis.xaxis.label, axis.yaxis.label]:
                assert same_color(text.get_color(), INK), text
