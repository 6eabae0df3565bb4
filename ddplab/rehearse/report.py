"""The report at the end of a rehearsal: from what each process wrote down to a dictionary, and from that to lines."""

import json
import mmap
import os
import struct
from collections import Counter, defaultdict
from pathlib import Path

PROCESSES = 8192  # that a rehearsal has room for: a test run starts thousands
OUTCOME = "hangs there until NCCL's timeout, or goes on with wrong numbers"  # of ranks that do not match
ROWS = 4  # of one cause, that a report has room for
PART = ", gathered"  # so end the names of what may be a part of a model: see weights.py
NOT_REHEARSED = (
    "not rehearsed: times, overlap, races between streams, NCCL's own scratch memory, GPUs' rounding, CUDA graphs, "
    "your own kernels, waits for the GPU that no line asks for, as in a copy to it from memory that is not pinned"
)


def readable(n: int) -> str:
    """A number of bytes as torch's own messages write it."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n >= size:
            return f"{n / size:.2f} {unit}"
    return f"{n} bytes"


class Book:
    """Rows of 64-bit integers, one a process: pid, rank, whether it goes on (0), then (held, peak) for each GPU."""

    def __init__(self, path: str, gpus: int):
        self.path, self.gpus, self.width = path, gpus, 8 * (3 + 2 * gpus)
        if not os.path.exists(path):
            Path(path).write_bytes(bytes(PROCESSES * self.width))
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), PROCESSES * self.width)

    def rows(self) -> list[tuple[int, int, list[tuple[int, int]]]]:
        """(pid, rank, [(held, peak) for each GPU]) of every process that has held something."""
        out = []
        for at in range(0, PROCESSES * self.width, self.width):
            pid, rank, _, *values = struct.unpack_from(f"{3 + 2 * self.gpus}q", self.map, at)
            if pid == 0:
                break
            out.append((pid, rank, [*zip(values[::2], values[1::2], strict=True)]))
        return out


def read(book: str, gpus: int) -> dict:
    """What was found: GPUs with their users and peaks, traffic, copies to the CPU, the dead and those who wait."""
    found: dict = {"gpus": [{"device": f"cuda:{gpu}", "users": []} for gpu in range(gpus)]}
    said = {int(path.suffixes[-2][1:]): json.loads(path.read_text()) for path in Path(book).parent.glob("book.*.json")}
    traffic, lines, skipped, steps = Counter(), {}, set(), 0
    digests: dict = defaultdict(dict)  # of each model or optimizer: rank -> what it looks like, digest
    found |= {"raised": {}, "waits": {}, "apart": False, "past_ddp": [], "not_compared": set()}
    # by rank, and within one in the order of the book: pids begin anew, and a rank that is started again may have less
    for pid, rank, held in sorted(Book(book, gpus).rows(), key=lambda row: row[1]):
        data, who = said.get(pid), f"rank {rank}" if rank >= 0 else f"process {pid}"
        for gpu, (_, peak) in enumerate(held):
            if peak:
                name = f"cuda:{gpu}"
                kinds = _apart((data or {}).get("kinds", {}).get(name, {}), peak)
                _, made, large = (data or {}).get("peaks", {}).get(name, (0, [], []))  # none of one that was killed
                file, line, _ = made[-1] if made else ("", 0, "")
                user = {"who": who, "peak": peak, "file": file, "line": line, "of which": kinds}
                user["stack"] = _frames(made)
                user["largest"] = [{"bytes": nbytes, "stack": _frames(stack)} for stack, nbytes in large]
                if peak < max(most for _, most in held) and data and name in data["loads"]:  # its own is another
                    user["loaded"] = dict(zip(("file", "line", "how"), data["loads"][name], strict=True))
                found["gpus"][gpu]["users"].append(user)
        if data is None:
            continue
        for cause, source, target, copies, nbytes in data["rows"]:
            link = cause, source, target
            traffic.update({(*link, "copies"): copies, (*link, "bytes"): nbytes})
        for file, line, what, *often in data["lines"]:
            lines[file, line, what] = max(lines.get((file, line, what), [0, 0]), often)
        steps = max(steps, data["steps"])
        skipped |= {*data["skipped"]}
        if data["error"]:
            found["raised"][who] = data["error"]
        elif who in found["raised"]:  # torchrun has started it again, which is to look at how it ended
            found["raised"][who]["again"] = True
        apart = len(data["waits"]) > 1  # who knows of others knows why
        less, more = (found, data) if apart else (data, found)
        found |= {"waits": less["waits"] | more["waits"], "apart": apart or found["apart"]}
        past = [{"file": file, "line": line} for file, line in data["past"]]
        found["past_ddp"] += [row for row in past if row not in found["past_ddp"]]
        for name, like, digest in data["digests"]:
            digests[name][who] = like, digest  # a rank that was started again is the last one
        found["not_compared"] |= {*data["left_out"]}
    links = sorted({key[:3] for key in traffic})
    found["traffic"] = [
        {"cause": c, "from": a, "to": b, "copies": traffic[c, a, b, "copies"], "bytes": traffic[c, a, b, "bytes"]}
        for c, a, b in links
    ]
    found["copies_to_cpu"] = [
        {"file": file, "line": line, "what": what, "times": times, "every_step": between >= steps}
        for (file, line, what), (times, between) in sorted(lines.items(), key=lambda item: item[1], reverse=True)
    ]  # what copies in a loop of n steps does so before, between or after n of them
    found["steps"], found["skipped"] = steps, sorted(skipped)
    for name in [name for name in digests if name.endswith(PART) and len({*digests[name].values()}) > 1]:
        found["not_compared"].add("what ranks gather after a step, as they do with parts of a model")
        del digests[name]
    alike = [{*each.values()} for each in digests.values() if len({like for like, _ in each.values()}) == 1]
    if len(alike) < len(digests):
        found["not_compared"].add("what is of other shapes on each rank")
    found["parameters"] = "differ" if any(len(each) > 1 for each in alike) else "equal" if alike else "not compared"
    found["not_compared"] = sorted(found["not_compared"])
    return found


def stood(book: str, gpus: int) -> dict[str, str]:
    """Where each rank stood when it was stopped, as faulthandler wrote it then."""
    from ddplab.diagnosis import learners, location, parse_stacks, source_of, waits_in

    found = {}
    for pid, rank, _ in sorted(Book(book, gpus).rows(), key=lambda row: row[1:2] + row[:1]):
        path = Path(f"{book}.{pid}.stood")
        frames = parse_stacks(path.read_text()) if path.exists() else []
        if own := learners(frames):
            inside = f"in {waits_in(frames)} " if waits_in(frames) else ""
            where = f"{inside}at {location(own[-1], {})}: {source_of(own[-1])}"
            found[f"rank {rank}" if rank >= 0 else f"process {pid}"] = where
    return found


def _frames(stack: list) -> list[dict]:
    return [dict(zip(("file", "line", "function"), frame, strict=True)) for frame in stack]


def _way(stack: list[dict]) -> str:
    """Where the innermost two calls of a stack stand, in half a line."""
    *before, last = stack
    inside = f", in {last['function']}" * (last["function"] != "<module>")
    called = f", called at {os.path.basename(before[-1]['file'])}, line {before[-1]['line']}" if before else ""
    return f"{last['file']}, line {last['line']}{inside}{called}"


def _links(traffic: list[dict]) -> list[tuple[str, str, int, int, bool]]:
    """(cause, link, copies, bytes, of each of several links?): those that carried the same are one row.

    Of a cause that would have more than a few rows, all are one, and the JSON has each.
    """
    targets, sources, rows = defaultdict(list), defaultdict(list), defaultdict(list)
    for row in traffic:
        targets[row["cause"], row["from"], row["copies"], row["bytes"]].append(row["to"])
    for (cause, source, *carried), to in targets.items():
        sources[cause, *carried, *to].append(source)
    for (cause, copies, nbytes, *to), of in sources.items():
        link = f"{_together(of)} -> {_together(to)}"
        rows[cause].append((cause, link, copies, nbytes, len(of) * len(to) > 1))
    for cause in rows:
        if len(rows[cause]) > ROWS:
            mine = [row for row in traffic if row["cause"] == cause]
            copies, nbytes = (sum(row[what] for row in mine) for what in ("copies", "bytes"))
            rows[cause] = [(cause, f"{len(mine)} links, in all", copies, nbytes, False)]
    return sorted(row for some in rows.values() for row in some)


def _together(places: list[str]) -> str:  # cuda:0, cuda:1 -> cuda:0,1
    first, *others = sorted(places, key=lambda name: (len(name), name))
    return ",".join([first, *(name.partition(":")[2] or name for name in others)])


def _apart(kinds: dict[str, int], peak: int) -> dict[str, int]:
    """Bytes by kind, where that can be told; "activations and others" is what is left of the peak."""
    out: dict[str, int] = {}
    for name, nbytes in kinds.items():
        name = name.rstrip(" 012")
        out[name] = max(out.get(name, 0), nbytes)
    return out | {"activations and others": max(0, peak - sum(out.values()))} if out else {}


def every_step(found: dict) -> list[dict]:
    """The lines that copy to the CPU in every step, index from there, or wait for a GPU without a copy."""
    return [row for row in found["copies_to_cpu"] if found["steps"] > 1 and row["every_step"]]


def objections(found: dict, copies_per_step: int) -> list[str]:
    """What --strict does not let pass."""
    out = [
        f"{gpu['device']} is used by {len(users)} processes"
        for gpu in found["gpus"]
        if len(users := {user["who"] for user in gpu["users"]}) > 1  # one that was started again is the same
    ]
    often = sum(max(1, row["times"] // found["steps"]) for row in every_step(found) if "synchronize" not in row["what"])
    if often > copies_per_step:
        out.append(f"blocking copies in every step: {often}, and {copies_per_step} are allowed")
    if found["parameters"] == "differ":
        out.append("the ranks' parameters differ at the end")
    if not found["exit_status"]:
        unseen = (who for who, error in found["raised"].items() if "again" not in error)
        out += [f"{who} raised an error, and the script ended as if nothing had been" for who in unseen]
    return out


def text(found: dict) -> str:
    """The report in lines."""
    n = len(found["gpus"])
    out = ["", f"rehearsed on {n} virtual GPU{'s' * (n > 1)} (CPU memory; no GPU has run this)"]
    for who, error in found["raised"].items():
        said, _, last = error["what"].partition("\nLast error:\n")  # NCCL's own words stand below torch's
        if "\nOriginal Traceback" in said:  # of a DataLoader's worker, or of a replica
            last = said.splitlines()[-1]
        out.append(f"  {who} raised {said.splitlines()[0][:160]}" + f"\n      {last}" * bool(last))
        out.append(f"      at {error['where']}" + ", and was started again" * ("again" in error))
    if any("again" not in error for error in found["raised"].values()) and found.get("exit_status") == 0:
        out.append("  nobody looked at how it ended: the script's exit status is 0")
    for who, where in found["waits"].items():
        out.append(f"  {who} was left waiting {where}: on GPUs it {OUTCOME if found['apart'] else 'hangs there'}")
    out += [f"  {who} stood {where}" for who, where in found.get("stood", {}).items()]
    for gpu in found["gpus"]:
        for user in gpu["users"]:
            kinds = ", ".join(f"{kind} {readable(nbytes)}" for kind, nbytes in user["of which"].items())
            at = f" at {user['file']}, line {user['line']}" * bool(user["file"])
            most = f"  {gpu['device']}  {user['who']} held at most {readable(user['peak'])}{at}"
            out.append(most + f" ({kinds})" * bool(kinds))
            for row in user["largest"][:1]:
                out.append(f"      {readable(row['bytes'])} of it were made at {_way(row['stack'])}")
        if len(gpu["users"]) > 1:
            out.append(f"  {gpu['device']}  <- {len(gpu['users'])} processes use this GPU")
            for user in gpu["users"]:
                if "loaded" in user:
                    at = f"{user['loaded']['file']}, line {user['loaded']['line']}"
                    out.append(f"      {user['who']} loaded onto it at {at}: {user['loaded']['how']}")
        if not gpu["users"]:
            out.append(f"  {gpu['device']}  nothing was held")
    for cause, link, copies, nbytes, each in _links(found["traffic"]):
        out.append(f"  {cause:16} {link:18} {copies:>8,} x  {readable(nbytes):>11}" + " each" * each)
    steps = found["steps"]
    if every := every_step(found):
        out.append(f"  in each of {steps} steps, copies to the CPU and the like, where a GPU's queue stops and waits:")
        often = "{what} {times:,} x in the whole run of one process, at {file}, line {line}"
        out += [f"      {often.format(**row)}" for row in every]
    but = "".join(f"; left out: {what}" for what in found.get("not_compared", []))
    out.append(f"  parameters of the ranks at the end: {found['parameters']}{but}")
    if found["parameters"] == "differ":
        why = "trains the module past DDP, which averages gradients only after a forward of its own"
        out += [f"      {row['file']}, line {row['line']} {why}" for row in found["past_ddp"]]
    out += [f"  objection: {objection}" for objection in found["objections"]]
    out.append(f"  {NOT_REHEARSED}" + "".join(f", {name} (skipped)" for name in found["skipped"]))
    return "\n".join(out)


def markdown(found: dict) -> str:
    """The report for a page, such as a workflow's summary."""
    state = "failed" if found["exit_status"] or found["objections"] else "passed"
    return f"### Rehearsal {state}: on virtual GPUs, no GPU has run this\n\n```text\n{text(found).strip()}\n```\n"
