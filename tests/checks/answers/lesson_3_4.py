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
        "wrong": [
            (BROKEN, ["no name in the file"]),
            (NAMED, ["bootstrapping"]),
            (GUARDED, ["multiply by 1"]),
            (MENDED.replace('"spawn"', '"fork"').replace("get_context", "get_context"), ["spawns nothing"]),
            (MENDED.replace("    main()\n", "    pass\n"), ["prints nothing"]),
            (MENDED.replace("range(2)", "range(3)"), ["prints 3 lines"]),
            (MENDED.replace("def work", "def wrok"), ["NameError"]),
            (3, ["`script` is a int, not a text"]),
        ],
    },
}
