"""The hub on a cluster: each learner's server is a Slurm job, with batchspawner. Runs on a node that can `sbatch`.

The course with its `workshop` extra, batchspawner and configurable-http-proxy are in an environment on a shared disk
(DDPLAB_ENVIRONMENT), with workshop/image/jupyter_server_config.py in its etc/jupyter. Accounts, homes and the network
between the hub and the nodes are the cluster's. TLS: give the hub the cluster's certificate.

What is checked, and what is not, stands in workshop/hub/README.md.
"""

import os
import sys

c = get_config()  # noqa: F821
ENVIRONMENT = os.environ.get("DDPLAB_ENVIRONMENT", "/shared/ddplab/venv")
IDLE_MINUTES = float(os.environ.get("DDPLAB_IDLE_MINUTES", "60"))

c.JupyterHub.authenticator_class = "pam"
c.PAMAuthenticator.open_sessions = False
c.Authenticator.allowed_users = set(os.environ.get("DDPLAB_LEARNERS", "").split())
c.Authenticator.admin_users = set(os.environ.get("DDPLAB_ADMINS", "instructor").split())
c.JupyterHub.admin_access = False
c.JupyterHub.hub_ip = os.environ.get("DDPLAB_HUB_IP", "0.0.0.0")  # where the nodes reach the hub
if "DDPLAB_CERTIFICATE" in os.environ:
    c.JupyterHub.ssl_cert, c.JupyterHub.ssl_key = os.environ["DDPLAB_CERTIFICATE"], os.environ["DDPLAB_KEY"]

c.JupyterHub.spawner_class = "batchspawner.SlurmSpawner"
c.Spawner.cmd = [f"{ENVIRONMENT}/bin/jupyterhub-singleuser"]
c.BatchSpawnerBase.batchspawner_singleuser_cmd = f"{ENVIRONMENT}/bin/batchspawner-singleuser"
c.Spawner.env_keep = ["PATH", "LANG", "LC_ALL", "SLURM_CONF"]  # what sbatch needs
c.Spawner.notebook_dir = "~/course"
c.Spawner.default_url = "/lab/tree/lessons/1_one_device/1.1_start_here.ipynb"
c.Spawner.ip = "0.0.0.0"  # the proxy comes from another node; the server asks the hub who is there
c.Spawner.start_timeout = 600  # a job may wait in the queue
c.Spawner.http_timeout = 120
c.SlurmSpawner.req_partition = os.environ.get("DDPLAB_PARTITION", "")
c.SlurmSpawner.req_runtime = "04:00:00"
c.SlurmSpawner.req_memory = "4G"
c.SlurmSpawner.req_nprocs = "2"
c.SlurmSpawner.req_gres = os.environ.get("DDPLAB_GRES", "")  # "gpu:2": the scheduler leases them, not DDPLAB_LEASES
# Within a job the temporary folder is the learner's own, and so are the sockets of the kernels.
c.SlurmSpawner.req_prologue = f"""
export PATH={ENVIRONMENT}/bin:$PATH OMP_WAIT_POLICY=PASSIVE DDPLAB_IDLE_MINUTES={IDLE_MINUTES:g}
umask 077
export TMPDIR=$HOME/.cache/tmp JUPYTER_RUNTIME_DIR=$HOME/.cache/run
mkdir -p "$TMPDIR" "$JUPYTER_RUNTIME_DIR" "$HOME/course"
"""

c.JupyterHub.load_roles = [
    {
        "name": "idle-culler",
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
        "services": ["idle-culler"],
    }
]
culler = [sys.executable, "-m", "jupyterhub_idle_culler", f"--timeout={round(60 * IDLE_MINUTES)}"]
c.JupyterHub.services = [{"name": "idle-culler", "command": culler}]
