"""`python -m ddplab`: `grade`, `doctor`, `leases` and `room` of this machine, `rehearse`, `why` an error."""

import sys

from ddplab.errors import command as errors
from ddplab.rehearse import command as rehearsal

LIGHT = {"why": errors.main, "rehearse": rehearsal.main}
if __name__ == "__main__" and len(sys.argv) > 1 and sys.argv[1] in LIGHT:  # before anything imports torch
    sys.exit(LIGHT[sys.argv[1]](sys.argv[2:]))

import argparse
from pathlib import Path

from ddplab import lease, room, sharing
from ddplab.checkup import doctor
from ddplab.grading import command as grading
from ddplab.preflight import workshop


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ddplab", description="the companion of the course")
    commands = parser.add_subparsers(required=True, metavar="command", dest="command")
    commands.add_parser("grade", help="run exercise notebooks, report each exercise (also: check)", add_help=False)
    looking = commands.add_parser("doctor", help="what this machine has, what will go wrong on it, and what to do")
    looking.add_argument("--workshop", action="store_true", help="and whether it bears a room of learners")
    looking.add_argument("--learners", type=int, default=20, help="how many learners (20)")
    commands.add_parser("leases", help="who has which GPUs of this machine, and who waits", add_help=False)
    joining = commands.add_parser("join", help="show your progress to the room, under this name")
    joining.add_argument("name")
    commands.add_parser("leave", help="show the room nothing more, and take away what is there")
    watching = commands.add_parser("room", help="for the instructor: who has passed, who is stuck, the pager's board")
    watching.add_argument("folder", type=Path, help="the room's folder; made where it is missing")
    watching.add_argument("--page", type=Path, help="write a page there every two seconds, instead of printing once")
    commands.add_parser("rehearse", help="run a CUDA and DDP script on virtual GPUs", add_help=False)
    commands.add_parser("why", help="what an error or a log means, and how to mend it", add_help=False)
    given = sys.argv[1:] if arguments is None else arguments
    # what follows is theirs to read
    own = {"grade": grading.main, "check": grading.main, "leases": lease.main, **LIGHT}
    if given and given[0] in own:
        return own[given[0]](given[1:])
    asked = parser.parse_args(given)
    if asked.command == "room":
        return room.serve(asked.folder, asked.page)
    if asked.command in ("join", "leave"):
        return join_or_leave(getattr(asked, "name", None))
    return see_the_doctor(asked.learners if asked.workshop else 0)


def join_or_leave(name: str | None) -> int:
    """Join the room under a name, or leave it without one. Returns the exit status."""
    if name is None:
        print("you have left, and your file is gone" if sharing.leave_room() else "you were in no room")
        return 0
    try:
        sharing.join_room(name)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(
        "joined: the instructor sees which exercises you have tried and passed, and your incidents; no code, no answers"
    )
    print("python -m ddplab leave ends it")
    return 0


def see_the_doctor(learners: int = 0) -> int:
    """Print what the doctor finds, and whether so many learners have room. Returns the exit status: 1 for a problem."""
    findings = doctor()
    if learners:
        findings += workshop(learners)
    print(findings)
    return int(any(line.state == "problem" for line in findings))


if __name__ == "__main__":
    sys.exit(main())
