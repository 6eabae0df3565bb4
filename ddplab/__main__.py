"""`python -m ddplab`: `grade` exercises; `doctor`, this machine; `leases` on it; `rehearse`; `why`, an error."""

import sys

from ddplab.errors import command as errors

if __name__ == "__main__" and sys.argv[1:2] == ["why"]:  # before anything imports torch
    sys.exit(errors.main(sys.argv[2:]))

import argparse

from ddplab import lease
from ddplab.checkup import doctor
from ddplab.grading import command as grading
from ddplab.rehearse import command as rehearsal


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ddplab", description="the companion of the course")
    commands = parser.add_subparsers(required=True, metavar="command", dest="command")
    commands.add_parser("grade", help="run exercise notebooks, report each exercise (also: check)", add_help=False)
    commands.add_parser("doctor", help="what this machine has, what will go wrong on it, and what to do")
    commands.add_parser("leases", help="who has which GPUs of this machine, and who waits", add_help=False)
    commands.add_parser("rehearse", help="run a CUDA and DDP script on virtual GPUs", add_help=False)
    commands.add_parser("why", help="what an error or a log means, and how to mend it", add_help=False)
    given = sys.argv[1:] if arguments is None else arguments
    # what follows is theirs to read
    own = {"grade": grading, "check": grading, "leases": lease, "rehearse": rehearsal, "why": errors}
    if given and given[0] in own:
        return own[given[0]].main(given[1:])
    parser.parse_args(given)
    return see_the_doctor()


def see_the_doctor() -> int:
    """Print what the doctor finds. Returns the exit status: 1 where there is a problem, else 0."""
    findings = doctor()
    print(findings)
    return int(any(line.state == "problem" for line in findings))


if __name__ == "__main__":
    sys.exit(main())
