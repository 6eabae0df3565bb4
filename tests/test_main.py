"""`python -m ddplab`: the template that rehearses. What its commands do is tested with them."""

from pathlib import Path

import yaml

from ddplab import __main__ as cli

ROOT = Path(__file__).parent.parent


def test_the_template_for_a_pull_request_rehearses_strictly_what_a_line_of_it_names():
    workflow = yaml.safe_load((ROOT / "workshop" / "github-rehearsal.yml").read_text())
    words = workflow["jobs"]["rehearse"]["steps"][-1]["run"].split()
    ours, rest = cli.rehearsal.parsed(words[4:])
    assert words[:4] == "python -m ddplab rehearse".split() and ours["strict"] and ours["gpus"] == 2
    assert rest == "--nproc-per-node=2 train.py --steps 2".split()
