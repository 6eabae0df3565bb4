"""What torch keeps of a job for the day that it hangs: the flight recorder's list, and the debug server's page."""

from __future__ import annotations

import html
import pickle
import re
import threading
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from ddplab.course.bare import BareTorchrun


def write_down_after(seconds: float, folder: str | Path = "records") -> None:
    """Write this rank's flight recorder, in so many seconds, into `folder/rank_N`, and print "written down".

    To be called in a rank. NCCL has torch write that file by itself, when a collective times out.
    """
    timer = threading.Timer(seconds, _write_down, [Path(folder)])
    timer.daemon = True
    timer.start()


def _write_down(folder: Path) -> None:
    import torch
    import torch.distributed as dist

    record = pickle.loads(torch._C._distributed_c10d._dump_fr_trace())
    ranks = str(list(range(dist.get_world_size())))
    record["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}  # torch 2.13: empty with gloo
    folder.mkdir(exist_ok=True)
    file = folder / f"rank_{dist.get_rank()}"
    half = folder / f".{file.name}"
    half.write_bytes(pickle.dumps(record))
    half.rename(file)  # who sees it sees all of it
    print("written down")


def read_records(folder: str | Path = "records") -> list[list[dict[str, Any]]]:
    """Return for each rank what `write_down_after` has written: a dictionary for each collective, the oldest first.

    `number`, counted from 1; `call`, such as "broadcast"; `shape`, of its first input; and `frames`, the Python stack
    of the call, the innermost first, each a dictionary with `name`, `filename` and `line`.
    """
    files = sorted(Path(folder).glob("rank_*"), key=lambda path: int(path.name[5:]))
    return [[_call(entry) for entry in pickle.loads(file.read_bytes())["entries"]] for file in files]


def _call(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        "number": entry["collective_seq_id"],
        "call": entry["profiling_name"].split(":")[-1],
        "shape": tuple(entry["input_sizes"][0]) if entry["input_sizes"] else (),
        # in a rehearsal ours stand between the script's and torch's
        "frames": [it for it in entry["frames"] if not re.search("/ddplab/(rehearse|vgpu)/", it["filename"])],
    }


def debug_stacks(job: BareTorchrun) -> str:
    """Return, as text, the page of all ranks' stacks that torch's debug server serves; the job has started it.

    Of frames of torch's that follow each other the innermost stands for all.
    """
    port = re.search(r"Frontend server started on port (\d+)", job.output)[1]
    page = urlopen(f"http://localhost:{port}/stacks").read().decode()
    tags = r"<(?!module>)[^>]*>"  # the page does not escape Python's name for a script's own level
    text = html.unescape(re.sub(tags, "", page[page.index("<h2") :]))
    text = re.sub(r'"[^"]*/(?=torch/)', '"', text).replace(f"{Path.cwd()}/", "")
    text = re.sub(r" *(Current t|T)hread 0x.*\n", "", text)  # a heading; of the server's own nothing follows
    text = re.sub(r'(?m)(^ *File "torch/.*\n)( *)File "torch/.*\n( *File "torch/.*\n)*', r"\1\2…\n", text)
    return re.sub(r"(?m)^ +(?=Rank \d)", "", re.sub(r"\n\s*\n", "\n", text)).rstrip()
