"""A room, rehearsed: the real hub and proxy on loopback, real accounts, each learner in a browser of their own.

    python stress/hub.py [--learners 10] [--prefix /opt/ddplab-hub-rehearsal] [--write]

All at once log in, run a lesson to its end, then its exercises: blank, and filled in until each check says "correct".
Then: nobody reaches another's files, server, sockets; who takes too much memory or too many processes is stopped alone;
a second setup keeps what people wrote; idle servers go; nothing is left of the hub. --write stores the figures in
workshop/hub/rehearsed.json and on the page beside it.

It makes accounts on this machine and removes them, so it needs root; and Chromium, and a Python that all may run.
"""

import argparse
import asyncio
import datetime
import json
import os
import pwd
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import nbformat
import psutil

ROOT = Path(__file__).resolve().parent.parent
SETUP = ROOT / "workshop" / "hub" / "setup"
LESSON = "lessons/3_processes/3.1_processes_and_collectives.ipynb"
EXERCISE = "exercises/3_processes/3.1_processes_and_collectives.ipynb"
FIRST = """import time; began = time.time()
from ddplab import launch
import torch.distributed as dist
one = launch(lambda: dist.get_rank(), nproc_per_node=2).results; first = time.time() - began
began = time.time(); launch(lambda: dist.get_rank(), nproc_per_node=2)
print('SECONDS', first, time.time() - began, one)"""
AGAIN = "print('RANKS', launch(lambda: dist.get_rank(), nproc_per_node=2).results)"
MUCH_MEMORY = "print('TOOK', len(b'x' * (6 << 30)))"
MANY_TASKS = """import subprocess
many = []
try:
    for _ in range(2000): many.append(subprocess.Popen(['sleep', '60']))
    print('NO LIMIT')
except OSError as error: print('REFUSED', len(many), error.strerror)
finally: [(it.kill(), it.wait()) for it in many]"""

# What a person does in the page: `lab` is JupyterLab's own application object.
OPEN = """async path => {
    const lab = window.jupyterapp;
    const panel = await lab.commands.execute('docmanager:open', {path, factory: 'Notebook'});
    await panel.context.ready; await panel.revealed; await panel.sessionContext.ready;
    window.panel = panel;
    for (let i = 0; i < 3000; i++) {
        const kernel = panel.sessionContext.session?.kernel;
        if (kernel && kernel.connectionStatus === 'connected' && kernel.status === 'idle') return kernel.id;
        await new Promise(done => setTimeout(done, 100));
    }
    throw new Error('the kernel did not become idle');
}"""
# Lesson 1.1 opens by itself, and late on a busy machine: it would take the focus from what is run.
CLOSE_FIRST = """async () => {
    const opened = () => [...window.jupyterapp.shell.widgets('main')].find(it => it.context?.path?.includes('1.1_'));
    for (let i = 0; i < 3000 && !opened(); i++) await new Promise(done => setTimeout(done, 100));
    const panel = opened();
    await panel.context.ready; await panel.sessionContext.ready;
    await panel.sessionContext.shutdown(); panel.dispose();
}"""
RUN_ALL = """async () => {
    window.jupyterapp.shell.activateById(window.panel.id);
    const kernel = window.panel.sessionContext.session.kernel;
    await window.jupyterapp.commands.execute('notebook:run-all-cells').catch(() => 0);
    await kernel.requestExecute({code: '', silent: true, stop_on_error: false}).done;
    await window.panel.context.save();
    return window.panel.content.model.sharedModel.toJSON();
}"""
FILL = (
    """sources => sources.forEach((source, i) => window.panel.content.model.sharedModel.getCell(i).setSource(source))"""
)
ASK = """async ([code, seconds]) => {
    const kernel = window.panel.sessionContext.session.kernel;
    const future = kernel.requestExecute({code, stop_on_error: false});
    let text = '';
    future.onIOPub = ({content: it}) => { text += it.text ?? (it.ename ? it.ename + ': ' + it.evalue : ''); };
    const died = new Promise(done => kernel.statusChanged.connect((_, s) => {
        if (['restarting', 'autorestarting', 'dead'].includes(s)) done('KERNEL DIED'); }));
    const late = new Promise(done => setTimeout(() => done('LATE'), 1000 * seconds));
    const how = await Promise.race([future.done.then(() => ''), died, late]);
    return text + how;
}"""
CLOSE = """async () => { await window.panel.sessionContext.shutdown(); window.panel.dispose(); }"""


def missing() -> str:
    """Return why this machine cannot rehearse, or nothing."""
    if os.geteuid() != 0:
        return "needs root, to make accounts"
    if not next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None):
        return "needs Chromium"
    if not Path("/usr/bin/python3").exists() or not shutil.which("openssl"):
        return "needs openssl and a Python that every account may run (Debian: python3-venv)"
    return ""


class Room:
    """A hub in a prefix of its own, with `n` learners; `with` brings it up and takes all of it away."""

    def __init__(self, n: int, prefix: Path, folder: Path):
        self.learners, self.prefix, self.folder = [f"rehearse{i:02}" for i in range(1, n + 1)], prefix, folder
        self.everyone = [*self.learners, "rehearseadmin"]
        self.process: subprocess.Popen | None = None

    def settings(self, **changed) -> None:
        path = self.prefix / "settings.json"
        now = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(now | changed, indent=2))

    def setup(self, *words: str) -> list[str]:
        # not the Python of this script's environment, which need not be open to others
        return ["/usr/bin/python3", str(SETUP), "--prefix", str(self.prefix), "--homes", str(self.folder), *words]

    def prepare(self) -> None:
        for name in self.everyone:
            try:
                pwd.getpwnam(name)
                sys.exit(f"this machine has an account {name} already; the rehearsal makes and removes its own")
            except KeyError:
                pass
        (self.folder / "names").write_text("\n".join(self.learners))
        self.prefix.mkdir(exist_ok=True)
        self.prefix.chmod(0o755)
        (self.prefix / "passwords.txt").unlink(missing_ok=True)
        ports = free_ports(3)
        self.address = f"https://127.0.0.1:{ports[0]}"
        names = {"admins": ["rehearseadmin"], "leases": str(self.folder / "leases")}
        ports = {"port": ports[0], "hub_port": ports[1], "proxy_port": ports[2]}
        self.settings(address="127.0.0.1", memory_gib=3, tasks=400, idle_minutes=60, **names, **ports)
        subprocess.run(self.setup("--names", str(self.folder / "names"), "--no-start"), check=True)
        page = self.prefix / "venv" / "etc" / "jupyter" / "labconfig" / "page_config.json"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text('{"exposeAppInBrowser": true}')  # so that the page can be driven
        quiet = self.prefix / "venv" / "share" / "jupyter" / "lab" / "settings" / "overrides.json"
        quiet.parent.mkdir(parents=True, exist_ok=True)  # a save of its own beside ours ends in a question to a person
        quiet.write_text('{"@jupyterlab/docmanager-extension:plugin": {"autosave": false}}')
        lines = (self.prefix / "passwords.txt").read_text().splitlines()
        self.passwords = dict(line.split("\t") for line in lines)

    def start(self) -> float:
        """Start the hub as a person does, by setup's one command; returns the seconds until it answers."""
        began = time.monotonic()
        log = open(self.folder / "hub.log", "ab")
        self.process = subprocess.Popen(self.setup(), stdout=log, stderr=log, start_new_session=True)
        trust = ssl._create_unverified_context()  # the certificate is its own
        while time.monotonic() - began < 300:
            try:
                urllib.request.urlopen(f"{self.address}/hub/health", context=trust, timeout=5)
                return time.monotonic() - began
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.5)
        raise RuntimeError(f"the hub did not come up:\n{(self.folder / 'hub.log').read_text()[-3000:]}")

    def stop(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(120)

    def remove(self, keep_prefix: bool) -> None:
        self.stop()
        if not keep_prefix:
            subprocess.run(self.setup("--remove"), check=False)
        for name in self.everyone:
            for process in processes_of(name):
                process.kill()
            subprocess.run(["userdel", "--remove", name], stderr=subprocess.DEVNULL, check=False)
            group = Path("/sys/fs/cgroup/memory/ddplab-hub") / name
            if group.exists():
                group.rmdir()
        (self.prefix / "passwords.txt").unlink(missing_ok=True)


def free_ports(n: int) -> list[int]:
    sockets = [socket.socket() for _ in range(n)]
    for it in sockets:
        it.bind(("127.0.0.1", 0))
    ports = [it.getsockname()[1] for it in sockets]
    for it in sockets:
        it.close()
    return ports


def processes_of(name: str) -> list[psutil.Process]:
    try:
        uid = pwd.getpwnam(name).pw_uid
    except KeyError:
        return []
    found = []
    for process in psutil.process_iter():
        try:
            if process.uids().real == uid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            pass
    return found


def memory_of(name: str) -> int:
    """Return what a learner's processes hold, in bytes: each page shared by n processes counts 1/n (PSS)."""
    total = 0
    for process in processes_of(name):
        try:
            text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            total += 1024 * int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1])
        except (OSError, StopIteration):
            pass
    return total


class Scale(threading.Thread):
    """Weighs every learner every few seconds; `most` is the most of each, `together` of all at one time, in bytes."""

    def __init__(self, names: list[str]):
        super().__init__(daemon=True)
        self.names, self.most, self.together, self.ended = names, dict.fromkeys(names, 0), 0, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(5):
            now = {name: memory_of(name) for name in self.names}
            self.most = {name: max(self.most[name], now[name]) for name in self.names}
            self.together = max(self.together, sum(now.values()))


async def log_in(browser, room: Room, name: str):
    """Log in as a person does, and wait until JupyterLab is there; returns the page and the seconds that it took.

    The hub's waiting page gives up on its own scripts after 7 s on a machine as busy as this, and then stands still:
    a person reloads it.
    """
    from playwright.async_api import TimeoutError

    context = await browser.new_context(ignore_https_errors=True)
    page = await context.new_page()
    page.set_default_timeout(600_000)
    began = time.monotonic()
    await page.goto(f"{room.address}/hub/login")
    await page.fill("#username_input", name)
    await page.fill("#password_input", room.passwords[name])
    await page.click("#login_submit")
    for _ in range(10):
        try:
            await page.wait_for_function("() => window.jupyterapp?.restored.then(() => true)", timeout=60_000)
            seconds = time.monotonic() - began
            await page.evaluate(CLOSE_FIRST)
            return page, seconds
        except TimeoutError:
            await page.goto(f"{room.address}/hub/spawn")
    raise AssertionError(f"{name} never saw JupyterLab")


def texts(notebook: dict) -> list[str]:
    """Return what each code cell has printed or shown as plain text."""
    found = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            outputs = [nbformat.from_dict(it) for it in cell["outputs"]]
            found.append("".join(str(it.get("text") or it.get("data", {}).get("text/plain", "")) for it in outputs))
    return found


def errors(notebook: dict) -> list[str]:
    """Return the errors of cells that are not there to show one."""
    return [
        f"{out['ename']}: {out['evalue']}"
        for cell in notebook["cells"]
        if cell["cell_type"] == "code" and "raises-exception" not in cell["metadata"].get("tags", [])
        for out in cell["outputs"]
        if out["output_type"] == "error"
    ]


async def learn(browser, room: Room, name: str, figures: dict) -> tuple:
    """One learner's hour: first launch, the lesson, the exercises blank and filled in. Returns the page."""
    page, seconds = await log_in(browser, room, name)
    figures["login"].append(seconds)
    await page.evaluate(OPEN, LESSON)
    said = await page.evaluate(ASK, [FIRST, 600])
    assert "SECONDS" in said, f"{name}'s first launch: {said}"
    first, second = map(float, said.split("SECONDS")[1].split()[:2])
    figures["first_launch"].append(first)
    figures["second_launch"].append(second)
    began = time.monotonic()
    lesson = await page.evaluate(RUN_ALL)
    figures["lesson"].append(time.monotonic() - began)
    assert not errors(lesson), f"{name}'s lesson: {errors(lesson)}"
    await page.evaluate(CLOSE)
    await page.evaluate(OPEN, EXERCISE)
    began = time.monotonic()
    blank = " ".join(texts(await page.evaluate(RUN_ALL)))
    assert "not filled in yet" in blank and "correct" not in blank.lower(), f"{name}'s blank exercises: {blank}"
    solution = nbformat.read(ROOT / EXERCISE.replace("exercises/", "solutions/"), as_version=4)
    await page.evaluate(FILL, [cell.source for cell in solution.cells])
    solved = await page.evaluate(RUN_ALL)
    figures["exercises"].append(time.monotonic() - began)
    checks = sum("check(" in cell.source for cell in solution.cells)
    right = sum("correct" in text.lower() for text in texts(solved))
    assert not errors(solved) and right >= checks > 0, f"{name}: {right} of {checks} correct, {texts(solved)}"
    figures["checks_correct"] += right
    assert "SECONDS" in await page.evaluate(ASK, [FIRST, 600])
    print(f"  {name}: lesson run, {right} exercises correct, first launch after {first:.1f} s", flush=True)
    return page


def as_user(name: str, code: str, *words: str) -> str:
    """Run Python in another's name, and return what it prints."""
    done = subprocess.run(
        ["/usr/bin/python3", "-c", code, *words],
        user=name,
        group=name,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


TRY = """import os, socket, sys
for path in sys.argv[1:]:
    try:
        if '-ipc-' in path: socket.socket(socket.AF_UNIX).connect(path)
        else: os.listdir(path)
        print('REACHED', path)
    except OSError as error: print('refused', error.strerror)"""


async def nobody_reaches_another(room: Room, pages: list) -> dict:
    """Ben, with a shell and with a browser, tries what is Ana's. Returns what was tried."""
    ana, ben = room.learners[:2]
    home = Path(pwd.getpwnam(ana).pw_dir)
    runtime = home / ".cache" / "run"
    sockets = [str(path) for path in runtime.rglob("*-ipc-*")]
    assert sockets, f"no kernel sockets in {runtime}"
    runs = [str(path) for path in (home / ".cache" / "tmp").iterdir()]
    said = as_user(ben, TRY, str(home), str(home / "course"), str(runtime), *sockets, *runs)
    assert "REACHED" not in said and said.count("refused") == 3 + len(sockets) + len(runs), said
    assert "REACHED" in as_user(ana, TRY, str(home)), "ana reaches her own, so the question is a fair one"
    listening = [
        (name, " ".join(process.cmdline()), it.laddr)
        for name in room.learners
        for process in processes_of(name)
        for it in process.net_connections("tcp")
        if it.status == psutil.CONN_LISTEN
    ]
    assert all(it[2].ip in ("127.0.0.1", "::1") for it in listening), listening
    kernels = [it for it in listening if "ipykernel" in it[1]]
    port = next(it[2].port for it in listening if it[0] == ana and "jupyterhub-singleuser" in it[1])
    status = as_user(
        ben,
        "import sys, urllib.request, urllib.error\n"
        "try: print(urllib.request.urlopen(sys.argv[1], timeout=20).status)\n"
        "except urllib.error.HTTPError as e: print(e.code)",
        f"http://127.0.0.1:{port}/user/{ana}/api/contents",
    ).strip()
    assert status in ("403", "404"), f"ana's own port answered ben with {status}"
    answer = await pages[1].request.get(f"{room.address}/user/{ana}/api/contents", max_redirects=5)
    assert answer.status in (403, 404), f"ben's browser got {answer.status} of ana's server"
    admin = await pages[1].request.get(f"{room.address}/hub/admin")
    assert admin.status == 403, f"a learner's browser got {admin.status} of the admin page"
    return {"sockets_refused": len(sockets), "folders_refused": 3 + len(runs), "kernel_tcp_ports": len(kernels)}


async def limits_bite_one(room: Room, pages: list) -> dict:
    """Ana takes too much, of one and of the other; Ben's runs go on meanwhile."""
    ana, ben = pages[:2]
    tasks, fine = await asyncio.gather(ana.evaluate(ASK, [MANY_TASKS, 300]), ben.evaluate(ASK, [AGAIN, 300]))
    assert "REFUSED" in tasks and "RANKS [0, 1]" in fine, (tasks, fine)
    memory, fine = await asyncio.gather(ana.evaluate(ASK, [MUCH_MEMORY, 300]), ben.evaluate(ASK, [AGAIN, 300]))
    assert "TOOK" not in memory and ("MemoryError" in memory or "KERNEL DIED" in memory), memory
    assert "RANKS [0, 1]" in fine, fine
    group = Path("/sys/fs/cgroup/memory/ddplab-hub").exists()
    return {
        "tasks": tasks.strip(),
        "memory": memory.strip()[:80],
        "memory_by": "control group" if group else "RLIMIT_DATA",
    }


async def admin_sees_all(browser, room: Room) -> None:
    context = await browser.new_context(ignore_https_errors=True)
    page = await context.new_page()
    await page.goto(f"{room.address}/hub/login?next=/hub/admin")
    await page.fill("#username_input", "rehearseadmin")
    await page.fill("#password_input", room.passwords["rehearseadmin"])
    await page.click("#login_submit")
    for name in room.learners[:2]:
        await page.get_by_text(name, exact=True).first.wait_for(timeout=60_000)
    await context.close()


async def morning(room: Room, figures: dict) -> None:
    from playwright.async_api import async_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        scale = Scale(room.learners)
        scale.start()
        pages = await asyncio.gather(*(learn(browser, room, name, figures) for name in room.learners))
        scale.ended.set()
        scale.join()
        figures["memory_each"] = list(scale.most.values())
        figures["memory_together"] = scale.together
        figures["memory_at_rest"] = [memory_of(name) for name in room.learners]
        figures["isolation"] = await nobody_reaches_another(room, pages)
        print("  nobody reached another:", figures["isolation"], flush=True)
        figures["limits"] = await limits_bite_one(room, pages)
        print("  limits stopped one alone:", figures["limits"], flush=True)
        await admin_sees_all(browser, room)
        await browser.close()


async def one_goes_idle(room: Room) -> float:
    """A learner logs in and leaves; returns the seconds until nothing of theirs runs any more."""
    from playwright.async_api import async_playwright

    name = room.learners[0]
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page, _ = await log_in(browser, room, name)
        await page.evaluate(OPEN, LESSON)
        assert "SECONDS" in await page.evaluate(ASK, [FIRST, 300])
        await browser.close()
    began = time.monotonic()
    while processes_of(name):
        assert time.monotonic() - began < 300, f"still there: {[it.cmdline() for it in processes_of(name)]}"
        time.sleep(1)
    return time.monotonic() - began


def gone(room: Room, seconds: float = 20) -> list:
    """Return which processes of the hub and of learners are still there when that time is over."""
    deadline = time.monotonic() + seconds
    while True:
        left = [*hub_processes(room), *(it for name in room.everyone for it in processes_of(name))]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.5)


def hub_processes(room: Room) -> list[psutil.Process]:
    """Return what still runs of the hub, its proxy and its services."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and f"{room.prefix}/" in " ".join(process.cmdline()[:3]):
                found.append(process)
        except psutil.NoSuchProcess:
            pass
    return found


def spread(values: list[float], digits: int = 1) -> dict:
    ordered = sorted(values)
    return {"median": round(ordered[len(ordered) // 2], digits), "most": round(ordered[-1], digits)}


def rehearse(room: Room) -> dict:
    """Play the day through; returns the figures."""
    figures = {name: [] for name in ("login", "first_launch", "second_launch", "lesson", "exercises")} | {
        "checks_correct": 0
    }
    room.prepare()
    try:
        print(f"the hub is up after {room.start():.1f} s at {room.address}", flush=True)
        asyncio.run(morning(room, figures))
        print({name: value for name, value in figures.items() if isinstance(value, list)}, flush=True)
        room.stop()
        assert not (left := gone(room)), f"the hub has gone, and these have not: {left}"
        print("  nothing is left when the hub stops", flush=True)
        written = Path(pwd.getpwnam(room.learners[0]).pw_dir) / "course" / EXERCISE
        before = written.read_bytes()
        room.settings(idle_minutes=1)
        room.start()  # by setup, a second time
        assert written.read_bytes() == before, "a second setup changed what a learner wrote"
        idle = asyncio.run(one_goes_idle(room))
        print(f"  an idle server was gone {idle:.0f} s after its browser", flush=True)
        room.stop()
        assert not (left := gone(room)), f"the hub has gone, and these have not: {left}"
    except BaseException:
        print((room.folder / "hub.log").read_text()[-4000:] if (room.folder / "hub.log").exists() else "no log")
        raise
    mib = [value / 2**20 for value in figures["memory_each"]]
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB, no GPU used",
        "learners_at_once": len(room.learners),
        "lesson": LESSON,
        "exercises_correct": figures["checks_correct"],
        "memory_of_a_learner_at_most_mib": spread(mib, 0),
        "memory_of_a_learner_at_rest_mib": spread([value / 2**20 for value in figures["memory_at_rest"]], 0),
        "memory_of_all_together_at_most_mib": round(figures["memory_together"] / 2**20),
        "seconds_from_login_to_jupyterlab": spread(figures["login"]),
        "seconds_to_the_first_launch": spread(figures["first_launch"]),
        "seconds_of_a_second_launch": spread(figures["second_launch"], 2),
        "seconds_of_the_lesson": spread(figures["lesson"], 0),
        "seconds_of_the_exercises": spread(figures["exercises"], 0),
        "seconds_from_idle_to_gone": round(idle),
        "isolation": figures["isolation"],
        "limits": figures["limits"],
    }


def table(figures: dict) -> str:
    """Return the figures as a table in Markdown."""
    rows = [("", "median", "most")]
    for name, value in figures.items():
        if isinstance(value, dict) and "median" in value:
            rows.append((name.replace("_", " "), str(value["median"]), str(value["most"])))
    for name in ("memory_of_all_together_at_most_mib", "seconds_from_idle_to_gone"):
        rows.append((name.replace("_", " "), "", str(figures[name])))
    head = f"{figures['learners_at_once']} learners at once, {figures['date']}, on {figures['machine']}:"
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, "", lines[0], "|-|-:|-:|", *lines[1:]])


def write(figures: dict) -> None:
    """Store the figures, and show them on the hub's page."""
    (ROOT / "workshop" / "hub" / "rehearsed.json").write_text(json.dumps(figures, indent=2) + "\n")
    page = ROOT / "workshop" / "hub" / "README.md"
    begin, end = "<!-- figures -->\n", "\n<!-- end of figures -->"
    before, rest = page.read_text().split(begin)
    page.write_text(before + begin + table(figures) + end + rest.split(end)[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", type=int, default=10)
    parser.add_argument("--prefix", type=Path, help="keep the environment here, for the next time")
    parser.add_argument("--write", action="store_true", help="store the figures in workshop/hub/rehearsed.json")
    options = parser.parse_args()
    if options.learners < 2:
        parser.error("two learners at least, or nobody is there to be kept out")
    if why := missing():
        print(f"skipped: {why}")
        return 0
    folder = Path(tempfile.mkdtemp(prefix="ddplab-hub-", dir="/var/tmp"))
    folder.chmod(0o755)
    room = Room(options.learners, options.prefix or folder / "prefix", folder)
    try:
        figures = rehearse(room)
    finally:
        room.remove(keep_prefix=options.prefix is not None)
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(figures, indent=2))
    if options.write:
        write(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
