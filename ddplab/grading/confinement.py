"""Confine this process, for good, with all that it will start: it writes into one folder, and reads little else.

By Landlock, which Linux has since 5.13 and which needs no rights: https://docs.kernel.org/userspace-api/landlock.html.
Whoever is confined may not open a file for writing, make, rename or remove one outside; may not read what is not
named; may not look into a process that is not confined with it, nor (Linux 6.12) send it a signal.

What Landlock does not hold: the network, Unix sockets that lie in the file system (such as Docker's, for an account
that may use it), and the mode and times of files that are this account's.
"""

import ctypes
import glob
import os
import resource
import struct
import sys
from collections.abc import Iterable

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the system calls' numbers, on every processor
VERSION, PATH_BENEATH, NO_NEW_PRIVS, PARENT_DIES, SUBREAPER, CAPABILITIES = 1, 1, 38, 1, 36, 0x20080522
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
READ = EXECUTE | READ_FILE | READ_DIR
REFER, TRUNCATE = 1 << 13, 1 << 14  # since versions 2 and 3
TO_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE  # what a rule about a file may allow
SIGNALS_AND_SOCKETS = 3  # since version 6: signals, and sockets without a file, reach only what is confined with it

SYSTEM = ["/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/proc", "/sys", "/run/systemd/resolve", "/nix/store"]
DEVICES = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", *glob.glob("/dev/nvidia*")]
SHARED = "/dev/shm"  # where torch and multiprocessing keep what processes share
NEW_USER, NEW_MOUNTS, PRIVATE, NO_DEVICES = 0x10000000, 0x00020000, 1 << 18 | 1 << 14, 1 << 1 | 1 << 2

MEMORY = 8 << 30  # bytes of data that one process may have
FILE = 256 << 20  # bytes of the longest file


def confine(folder: str, readable: Iterable[str], listed: Iterable[str] = ()) -> str:
    """Let this process write in `folder` alone, read that, the system and `readable`, and see the names in `listed`.

    To be called while it has one thread. Returns why it is not confined, or "but for" what: nothing when it is.
    """
    if sys.platform != "linux":
        return f"Landlock is Linux's, and this is {sys.platform}"
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, 0, VERSION)
    if version < 1:
        return "this kernel has no Landlock, or it is switched off"
    alone = _own_shared_memory(libc)
    handled = (1 << 13) - 1 | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    attributes = struct.pack("QQQ", handled, 0, SIGNALS_AND_SOCKETS if version >= 6 else 0)
    attributes = attributes[: 24 if version >= 6 else 8]
    rules = libc.syscall(CREATE_RULESET, attributes, len(attributes), 0)
    everything = [(folder, handled), *((path, READ) for path in [*SYSTEM, *readable])]
    everything += [(path, READ_DIR) for path in listed]
    everything += [(path, READ_FILE | WRITE_FILE) for path in DEVICES]
    everything.append((SHARED, handled & ~EXECUTE))
    for path, access in everything:
        if not os.path.exists(path):
            continue
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        access &= handled if os.path.isdir(path) else handled & TO_A_FILE
        failed = libc.syscall(ADD_RULE, rules, PATH_BENEATH, struct.pack("=Qi", access, place), 0)
        os.close(place)
        if failed:
            return f"Landlock refused {path}: {os.strerror(ctypes.get_errno())}"
    libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.capset(struct.pack("Ii", CAPABILITIES, 0), bytes(24))  # root looks into any process by one of its capabilities
    failed = libc.syscall(RESTRICT_SELF, rules, 0)
    os.close(rules)
    if failed:
        return f"Landlock refused: {os.strerror(ctypes.get_errno())}"
    return "" if alone else f"but for {SHARED}, which this system does not let it have to itself"


def _own_shared_memory(libc: ctypes.CDLL) -> bool:
    """Give this process an empty /dev/shm that it shares with those that it starts alone. Returns whether it has one.

    It takes a user namespace, which some systems keep from programs that they do not know (Ubuntu, since 23.10).
    """
    user, group = os.getuid(), os.getgid()
    if libc.unshare(NEW_USER | NEW_MOUNTS):
        return False
    try:
        for name, words in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(words)
    except OSError:
        return False
    if libc.mount(None, b"/", None, PRIVATE, None):
        return False
    return libc.mount(b"tmpfs", SHARED.encode(), b"tmpfs", NO_DEVICES, b"size=1g,mode=1777") == 0


def limit() -> None:
    """Limit what this process and those that it starts may take: memory each, the length of a file, no core dumps.

    No memory where there is a GPU: what CUDA asks of a system under such a limit was never tried.
    """
    limits = {resource.RLIMIT_DATA: MEMORY, resource.RLIMIT_FSIZE: FILE, resource.RLIMIT_CORE: 0}
    if os.path.exists("/dev/nvidiactl"):
        del limits[resource.RLIMIT_DATA]
    for what, most in limits.items():
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def die_with_parent() -> None:
    """Have this process killed when its parent ends, where the system can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DIES, 9, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of whatever descends from this process and loses its own, where the system can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
