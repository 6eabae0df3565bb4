"""The hub on a cluster: the real hub starts a learner's server as a job of a real Slurm, both on this machine.

Skipped where JupyterHub, batchspawner or Slurm's programs are missing, and so in CI. To run it: pip install
'.[workshop]' batchspawner, and npm install configurable-http-proxy.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from test_slurm import slurm  # noqa: F401

from ddplab.course.played_servers import free_port

CONFIG = Path(__file__).parent.parent / "workshop" / "slurm" / "jupyterhub_config.py"
CHANGED = """
load_subconfig({config!r})
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allowed_users = {{"root"}}
c.JupyterHub.hub_ip = "127.0.0.1"
c.JupyterHub.hub_port = {ports[0]}
c.JupyterHub.bind_url = "http://127.0.0.1:{ports[1]}"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{ports[2]}"
c.ConfigurableHTTPProxy.command = {proxy!r}
c.JupyterHub.services.append({{"name": "test", "api_token": "{token}", "admin": True}})
c.BatchSpawnerBase.exec_prefix = ""  # the hub is the learner here, and needs no sudo
c.Spawner.args = ["--allow-root"]
c.Spawner.ip = "127.0.0.1"
c.SlurmSpawner.req_memory = ""  # this Slurm keeps no books of memory
"""
TOKEN = "0123456789abcdef" * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="the learner of this test is root")
def test_a_learners_server_is_a_job(slurm, tmp_path):  # noqa: F811
    pytest.importorskip("jupyterhub", reason="the workshop extra is not installed here")
    pytest.importorskip("batchspawner", reason="batchspawner is not installed here")
    if not (proxy := os.environ.get("DDPLAB_PROXY") or shutil.which("configurable-http-proxy")):
        pytest.skip("no configurable-http-proxy here; DDPLAB_PROXY can hold its command")
    environment = tmp_path / "environment" / "bin"
    environment.mkdir(parents=True)
    for name, module in {
        "jupyterhub-singleuser": "jupyterhub.singleuser",
        "batchspawner-singleuser": "batchspawner.singleuser",
    }.items():
        (environment / name).write_text(f"#!{sys.executable}\nfrom {module} import main\nmain()\n")
        (environment / name).chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    ports = [free_port() for _ in range(3)]
    config = tmp_path / "jupyterhub_config.py"
    config.write_text(CHANGED.format(config=str(CONFIG), ports=ports, proxy=proxy.split(), token=TOKEN))
    log = tmp_path / "hub.log"

    def ask(path, method="GET"):
        headers = {"Authorization": f"token {TOKEN}"}
        request = urllib.request.Request(f"http://127.0.0.1:{ports[1]}{path}", method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()

    def until(look, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if found := look():
                    return found
            except OSError:
                pass
            time.sleep(0.5)
        pytest.fail(log.read_text()[-4000:])

    env = {**os.environ, **slurm.env, "DDPLAB_ENVIRONMENT": str(environment.parent), "HOME": str(home)}
    env["PATH"] = f"{environment}{os.pathsep}{env['PATH']}"
    with open(log, "wb") as out:
        hub = subprocess.Popen(
            [sys.executable, "-m", "jupyterhub", "-f", str(config)], cwd=tmp_path, env=env, stdout=out, stderr=out
        )
    try:
        until(lambda: ask("/hub/api/")[0] == 200, 60)
        try:
            ask("/hub/api/users/root", "POST")
        except urllib.error.HTTPError as error:
            assert error.code == 409  # allowed, and so there already
        ask("/hub/api/users/root/server", "POST")
        until(lambda: json.loads(ask("/hub/api/users/root")[1])["servers"].get("", {}).get("ready"), 120)
        assert "spawner-jupyterhub" in slurm.run("squeue", "-h", "-o", "%j %t")
        assert ask("/user/root/api")[0] == 200, "through the proxy, its own server answers"
        ask("/hub/api/users/root/server", "DELETE")
        until(lambda: not slurm.run("squeue", "-h"), 60)
    finally:
        hub.terminate()
        hub.wait(60)
