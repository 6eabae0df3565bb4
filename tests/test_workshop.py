"""What a room is set up from: setup's own promises, and that server, image, Kubernetes and Slurm agree.

The whole of it, with the real hub, is rehearsed by stress/hub.py.
"""

import argparse
import json
import os
import runpy
from pathlib import Path
from types import SimpleNamespace

import hub
import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKSHOP = ROOT / "workshop"
setup = SimpleNamespace(**runpy.run_path(str(WORKSHOP / "hub" / "setup"), run_name="setup"))


def load(path, monkeypatch, **environment):
    """Run a configuration file as Jupyter does; returns what it has set."""
    from traitlets.config import Config

    config = Config()
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))
    umask = os.umask(0o022)
    try:
        runpy.run_path(str(path), init_globals={"get_config": lambda: config})
    finally:
        os.umask(umask)
    return config


# ------------------------------------------------------------------ setup


def test_a_second_setup_keeps_what_a_learner_changed_and_updates_the_rest(tmp_path):
    old, new, mine = (tmp_path / name for name in ("old", "new", "mine"))
    for folder, texts in {old: "same stale gone", new: "same fresh gone"}.items():
        for name, text in zip(("a/same", "a/updated", "a/removed"), texts.split(), strict=True):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    setup.update(mine, old, tmp_path / "nothing")
    (mine / "a/same").write_text("what ana wrote")
    (mine / "a/own").write_text("ana's own file")
    (mine / "a/removed").unlink()
    setup.update(mine, new, old)
    found = {path.name: path.read_text() for path in mine.rglob("*") if path.is_file()}
    assert found == {"same": "what ana wrote", "updated": "fresh", "removed": "gone", "own": "ana's own file"}


@pytest.mark.parametrize("name", ["Ana", "../root", "ana ben", "-f", "1st", "a" * 40, "ana\tben"])
def test_a_name_that_is_no_account_is_refused_before_anything_is_made(name, tmp_path):
    (tmp_path / "names").write_text(f"ben\n{name}\n")
    with pytest.raises(SystemExit, match="no account can have this name"):
        setup.names_of(argparse.Namespace(names=tmp_path / "names", learners=None), [])


def test_settings_keep_what_an_instructor_set(tmp_path):
    options = argparse.Namespace(names=None, learners=2)
    assert setup.write_settings(tmp_path, options)["learners"] == ["learner01", "learner02"]
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"memory_gib": 9}))
    later = setup.write_settings(tmp_path, argparse.Namespace(names=None, learners=None))
    assert later["memory_gib"] == 9 and later["learners"] == ["learner01", "learner02"]


def test_a_prefix_that_learners_cannot_reach_is_refused(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o700)
    with pytest.raises(SystemExit, match="closed to other users"):
        setup.open_to_all(tmp_path / "closed")


def test_what_is_handed_out_exists_here_and_in_the_image():
    lines = (WORKSHOP / "image" / "Dockerfile").read_text().splitlines()
    copied = [name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]]
    for name in [*setup.HANDED_OUT, *copied]:
        assert (ROOT / name).exists(), name
    assert set(setup.HANDED_OUT) <= {*copied}, "the image hands out what setup does"


# ------------------------------------------------------------------ the configurations


def test_a_kernel_has_sockets_and_no_ports_and_goes_when_idle(monkeypatch):
    config = load(WORKSHOP / "image" / "jupyter_server_config.py", monkeypatch, DDPLAB_IDLE_MINUTES="0.5")
    assert config.KernelManager.transport == "ipc"
    assert config.MappingKernelManager.cull_idle_timeout == 30


def test_the_hub_gives_each_learner_what_settings_say(monkeypatch, tmp_path):
    pytest.importorskip("jupyterhub", reason="the workshop extra is not installed here")
    settings = setup.SETTINGS | {"learners": ["ana"], "environment": {"DDPLAB_LEASE_WAIT": "60"}}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    config = load(WORKSHOP / "hub" / "jupyterhub_config.py", monkeypatch, DDPLAB_HUB=tmp_path)
    assert config.Authenticator.allowed_users == {"ana"} and not config.JupyterHub.admin_access
    environment = config.Spawner.environment
    assert environment["DDPLAB_LEASES"] == settings["leases"] and environment["DDPLAB_LEASE_WAIT"] == "60"
    assert config.JupyterHub.bind_url.startswith("https://")
    assert config.ConfigurableHTTPProxy.api_url.startswith("http://127.0.0.1:")


def test_slurm_starts_servers_with_the_same_privacy(monkeypatch):
    pytest.importorskip("batchspawner", reason="batchspawner is not installed here")
    config = load(WORKSHOP / "slurm" / "jupyterhub_config.py", monkeypatch, DDPLAB_LEARNERS="ana ben")
    assert config.Authenticator.allowed_users == {"ana", "ben"}
    assert "umask 077" in config.SlurmSpawner.req_prologue


def test_kubernetes_runs_the_image_and_has_room_in_shared_memory():
    values = yaml.safe_load((WORKSHOP / "kubernetes" / "values.yaml").read_text())["singleuser"]
    mounts = {it["name"]: it["mountPath"] for it in values["storage"]["extraVolumeMounts"]}
    assert mounts == {"shm": "/dev/shm"}
    assert [it["emptyDir"]["medium"] for it in values["storage"]["extraVolumes"]] == ["Memory"]
    assert values["defaultUrl"].startswith("/lab/tree/course/lessons/")
    assert (ROOT / values["defaultUrl"].removeprefix("/lab/tree/course/")).exists()
    assert values["startTimeout"] == 300


# ------------------------------------------------------------------ the figures


def test_the_page_shows_the_figures_of_the_rehearsal():
    if not (stored := WORKSHOP / "hub" / "rehearsed.json").exists():
        pytest.skip("no rehearsal has stored figures yet: python stress/hub.py --write")
    figures = json.loads(stored.read_text())
    assert hub.table(figures) in (WORKSHOP / "hub" / "README.md").read_text()
