"""Run by test_rehearse.py on two rehearsed ranks, or on two GPUs: torchrun --nproc-per-node 2 run.py FILE."""

import json
import sys

import table

table.start()

import between_ranks  # noqa: E402, F401
import on_devices  # noqa: E402, F401
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import works  # noqa: E402, F401


def main(file: str) -> None:
    wrong = {}
    for name, (function, words, _) in table.MISTAKES.items():
        torch.cuda.set_device(table.rank)
        try:
            function()
            wrong[name] = "nothing was raised"
        except Exception as error:
            if not table.fits(words, str(error)):
                wrong[name] = f"{type(error).__name__}: {error}"
    for name, (function, _) in table.WORKS.items():
        torch.cuda.set_device(table.rank)
        try:
            function()
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {error}"
    with open(f"{file}.{table.rank}", "w") as out:
        json.dump({"wrong": wrong, "mistakes": len(table.MISTAKES), "works": len(table.WORKS)}, out)
    dist.destroy_process_group()


main(sys.argv[1])
