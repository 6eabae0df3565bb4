"""Answers to the exercises of lesson 3.4: the right ones, the blanks, and mistakes that people make."""

from functools import partial

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

# your turn


def end_with_a_main():
    return """
def main():
    context = get_context("spawn")
    process = context.Process(target=hello, args=[0])
    process.start()
    process.join()

if __name__ == '__main__':
    main()
"""


def end_with_a_pool():
    return """
if "__main__" == __name__:
    with get_context("spawn").Pool(1) as pool:
        pool.apply(hello, (0,))
"""


def end_with_a_number_for_args():
    return """
if __name__ == "__main__":
    process = get_context("spawn").Process(target=hello, args=(0))
    process.start()
    process.join()
"""


def number_by_keyword():
    return """
def say(it):
    print("the number is", it, flush=True)

if __name__ == "__main__":
    child = get_context("spawn").Process(target=say, kwargs={"it": number})
    child.start()
    child.join()
"""


def number_by_a_queue():
    return """
def child(queue):
    print(queue.get())

if __name__ == "__main__":
    queue = get_context("spawn").Queue()
    process = get_context("spawn").Process(target=child, args=(queue,))
    process.start()
    queue.put(number)
    process.join()
"""


def launcher_by_reading(start, ranks):
    every = [{"RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": str(ranks)} for r in range(ranks)]
    processes = [start(who) for who in every]
    printed = tuple(process.stdout.read() for process in processes)
    for process in processes:
        process.wait()
    return printed


def launcher_on_a_port(start, ranks):
    everybody = {"WORLD_SIZE": f"{ranks}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    processes = []
    for rank in range(ranks):
        processes += [start(everybody | {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}"})]
    return [process.communicate()[0] for process in processes]


def launcher_with_numbers(start, ranks):
    return [start({"RANK": rank}).communicate() for rank in range(ranks)]


def end_with_a_name_unquoted():
    return end_with_a_pool().replace('"__main__"', "__main__")


def number_and_a_greeting():
    return number_by_keyword().replace("    print", '    print("here I am")\n    print')


def number_rounded():
    return number_by_keyword().replace("it, flush", "round(it, 3), flush")


def number_nearby():
    return number_by_keyword().replace("it, flush", "it + 0.01, flush")


def number_returned():
    return number_by_keyword().replace('print("the number is", it, flush=True)', "return it")


def number_twice():
    return number_by_keyword().replace("it, flush=True", 'it, "\\n again", it')


def launcher_in_small_letters(start, ranks):
    every = [{"rank": str(r), "local_rank": str(r), "world_size": str(ranks)} for r in range(ranks)]
    return [process.communicate()[0] for process in [start(who) for who in every]]


def launcher_of_one_text(start, ranks):
    return "\n".join(launcher_by_reading(start, ranks))


RIGHT = (1, 4, 3, "old", "bootstrapping")


def end_by_torch():
    return '\nif __name__ == "__main__":\n    mp.spawn(hello, nprocs=1)\n'


def end_saying_it_at_the_margin():
    return end_with_a_main() + "\n\nhello(0)\n"


def launcher_told(start, ranks, who=dict, listed=slice(None), what=lambda process: process.communicate()[0]):
    """A launcher; who: makes of what a rank is told what it is told instead."""
    told = [{"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks} for rank in range(ranks)]
    processes = [start({name: str(number) for name, number in who(it).items()}) for it in told]
    return [what(process) for process in processes][listed]


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
    "3.4.a": {
        "accepted": [end_with_a_main, end_with_a_pool],
        "wrong": [
            (end_with_a_name_unquoted, ["it names `__main__`, which the file does not know"]),
            (end_by_torch, ["it names `mp`, which the file does not know"]),
            (lambda: get_context("spawn").Process(), ["NameError", "Return the lines as a *text*"]),  # noqa: F821
            (lambda: end_by_torch().replace("mp.spawn(", "Process(target="), ["it names `Process`, which the file"]),
            (lambda: end_by_torch().replace("mp.spawn(", "get_contxt("), ['error: "NameError: get_contxt"']),
            (end_saying_it_at_the_margin, ["each process that reads the file says hello"]),
            (end_with_a_number_for_args, ["`args` is a number"]),
        ],
    },
    "3.4.b": {
        "accepted": [number_by_keyword, number_by_a_queue, number_and_a_greeting],
        "wrong": [
            (lambda: number_by_keyword().replace("target=say", "target=hello"), ["it names `hello`, which the file"]),
            (lambda: number_by_keyword().replace("get_context", "mp.get_context"), ["it names `mp`, which the file"]),
            (lambda: number_by_keyword().replace("it, flush", "its, flush"), ['"NameError: its"']),
            (number_rounded, ["the child prints the number, and not as it came"]),
            (number_nearby, ["the child prints another number than the first process has"]),
            (number_returned, ["prints nothing"]),
            (number_twice, ["it is printed twice"]),
        ],
    },
    "3.4.c": {
        "accepted": [launcher_by_reading, launcher_on_a_port],
        "wrong": [
            (launcher_with_numbers, ["2 ranks raised TypeError", "not int"]),
            (launcher_in_small_letters, ["told nothing"]),
            (launcher_of_one_text, ["one text is returned"]),
            (
                partial(launcher_told, who=lambda it: it | {"RANK": it["WORLD_SIZE"], "WORLD_SIZE": it["RANK"]}),
                ["`RANK` and `WORLD_SIZE` are mixed up"],
            ),
            (partial(launcher_told, who=lambda it: it | {"RANK": it["RANK"] + 1}), ["the ranks are counted from 1"]),
            (
                partial(launcher_told, who=lambda it: it | {"LOCAL_RANK": it["WORLD_SIZE"]}),
                ["all are told the same GPU"],
            ),
            (partial(launcher_told, listed=slice(-1, None)), ["only the last rank is in the list"]),
            (partial(launcher_told, what=lambda process: process.returncode), ["None is in the list"]),
            (
                partial(launcher_told, what=lambda process: process.communicate()[0].split()),
                ["each text is cut into words"],
            ),
        ],
    },
}
