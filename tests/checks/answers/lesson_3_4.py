"""Answers to the exercises of lesson 3.4: the right ones, the blanks, and mistakes that people make."""

BROKEN = """
from multiprocessing import get_context

factor = 1

def work(rank):
    print("rank", rank, "multiplies by", factor)

def main():
    global factor
    factor = 3
    context = get_context("spawn")
    children = [context.Process(target=lambda rank=rank: work(rank)) for rank in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()

main()
"""
NAMED = BROKEN.replace("target=lambda rank=rank: work(rank)", "target=work, args=(rank,)")
GUARDED = NAMED.replace("\nmain()\n", '\nif __name__ == "__main__":\n    main()\n')
MENDED = GUARDED.replace("args=(rank,)", "args=(rank, factor)").replace("work(rank):", "work(rank, factor):")

POOL = """
from multiprocessing import get_context

def work(rank):
    print("rank", rank, "multiplies by", 3)

if __name__ == "__main__":
    with get_context('spawn').Pool(2) as pool:
        pool.map(work, range(2))
"""
BY_TORCH = """
import torch.multiprocessing as mp

def work(rank, factor):
    print("rank", rank, "multiplies by", factor)

if __name__ == "__main__":
    mp.spawn(work, args=(3,), nprocs=2)
"""
BY_DEFAULT = """
import multiprocessing as mp

def work(rank):
    print("rank", rank, "multiplies by", 3)

if __name__ == "__main__":
    mp.set_start_method("spawn")
    children = [mp.Process(target=work, args=(rank,)) for rank in range(2)]
    [child.start() for child in children]
    [child.join() for child in children]
"""
CALLED = MENDED.replace("target=work, args=(rank, factor)", "target=work(rank, factor)")
IN_PARENT = MENDED.replace("child.start()", "child.run()").replace("child.join()", "pass")
ENDLESS = MENDED + "    while True:\n        print('again')\n"

RIGHT = (1, 4, 3, "old", "bootstrapping")

ANSWERS = {
    "3.4.1": {
        "correct": RIGHT,
        "wrong": [
            ((*RIGHT[:3], "new", RIGHT[4]), ["`note` is 'new'", "fork"]),
            ((*RIGHT[:3], "both", RIGHT[4]), ["neither 'old' nor 'new'"]),
            ((*RIGHT[:4], "attribute"), ["in no file is not found"]),
        ],
    },
    "3.4.2": {
        "correct": MENDED,
        "accepted": [POOL, BY_TORCH, BY_DEFAULT],
        "wrong": [
            (BROKEN, ["no name in the file"]),
            (NAMED, ["bootstrapping"]),
            (GUARDED, ["multiply by 1"]),
            (MENDED.replace('"spawn"', '"fork"'), ["forked, and not spawned"]),
            (MENDED.replace('"spawn"', '"forkserver"'), ["forked, and not spawned"]),
            (CALLED, ["the parent prints the lines itself", "the children that it spawns print nothing"]),
            (IN_PARENT, ["the parent prints the lines itself, and spawns nothing"]),
            (ENDLESS, ["prints without end"]),
            ('print("rank 0 multiplies by 3")\nprint("rank 1 multiplies by 3")', ["and spawns nothing"]),
            (MENDED.replace("    main()\n", "    pass\n"), ["prints nothing"]),
            (MENDED.replace("range(2)", "range(3)"), ["prints 3 lines"]),
            (MENDED.replace("def work", "def wrok"), ["NameError"]),
            (3, ["`script` is a int, not a text"]),
        ],
    },
}
