"""Answers to the exercises of lesson 5.3: the right one, the blank, and mistakes that people make."""

MENDED = r"""#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
srun torchrun \
    --nnodes 2 \
    --nproc-per-node 4 \
    --rdzv-backend c10d \
    --rdzv-endpoint "$(hostname):$((10000 + SLURM_JOB_ID % 20000))" \
    --rdzv-id "$SLURM_JOB_ID" \
    train.py
"""


def but(*changes):
    text = MENDED
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def from_the_host():
    return r"""
srun --kill-on-bad-exit=1 \
  torchrun --nproc-per-node="$SLURM_GPUS_ON_NODE" --nnodes="$SLURM_JOB_NUM_NODES" --rdzv-id "$SLURM_JOB_ID" \
    --rdzv-backend=c10d --rdzv-endpoint="$(hostname):$port" train.py --epochs 3 &
wait
"""


def agents(
    srun="srun torchrun", nodes="$SLURM_NNODES", gpus="$gpus", at="$first:$port", script="train.py", end=""
):  # fmt: skip
    return (
        f"{srun} --nnodes {nodes} {end}--nproc-per-node {gpus} --rdzv-backend c10d {end}--rdzv-endpoint {at} {script}"
    )


ANSWERS = {
    "5.3.a": {
        "accepted": [
            lambda nodes, gpus: f"#!/bin/bash\n#SBATCH -N {nodes}  # nodes\n\n#SBATCH --gres=gpu:a100:{gpus}",
            lambda nodes, gpus: f"#SBATCH -N{nodes} -n {nodes} --gpus-per-task {gpus}\nset -eu",
        ],
        "wrong": [
            (lambda nodes, gpus: None, ["AttributeError"]),
            (
                lambda nodes, gpus: f"#SBATCH --nnodes={nodes}\n#SBATCH --ntasks-per-node=1 --gpus-per-node={gpus}",
                ["unrecognized option '--nnodes'"],
            ),
            (lambda nodes, gpus: "#SBATCH --nodes={nodes} --gpus-per-node={gpus}", ["the check met ValueError"]),
            (
                lambda nodes, gpus: f"#SBATCH -N{nodes} -n {nodes} --gpus {nodes * gpus}\nset -eu",
                ["`--gpus` counts those of all nodes", "need not deal them evenly"],
            ),
            (
                lambda nodes, gpus: f"#SBATCH --nodes={nodes} --ntasks_per_node=1 --gpus_per_node={gpus}",
                ["unrecognized option '--ntasks_per_node'"],
            ),
            (lambda nodes, gpus: f"#SBATCH --nodes={nodes} --gpu-per-node={gpus}", ["option '--gpu-per-node'"]),
            (lambda nodes, gpus: f"#SBATCH -N {nodes} #SBATCH --gpus-per-node={gpus}", ["a second #SBATCH"]),
            (lambda nodes, gpus: f"#SBATCH -N {gpus} --gpus-per-node={nodes}", ["have changed places"]),
            (
                lambda nodes, gpus: f"#SBATCH -N {nodes} --ntasks-per-node={nodes} --gpus-per-node={gpus}",
                ["as many agents as there are nodes"],
            ),
            (lambda nodes, gpus: f"#SBATCH nodes={nodes}\n#SBATCH gpus-per-node={gpus}", ["Invalid directive"]),
        ],
    },
    "5.3.b": {
        "accepted": [
            from_the_host,
            lambda: (
                "srun torchrun --nnodes $SLURM_NNODES --nproc-per-node $gpus "
                "--rdzv-backend c10d --rdzv-endpoint $first:$port train.py"
            ),
            lambda: (
                "srun torchrun --nnodes $SLURM_NNODES --nproc-per-node gpu "
                "--rdzv-backend c10d --rdzv-endpoint $first:$port train.py"
            ),
            lambda: (
                "srun torchrun --nnodes $SLURM_NTASKS --nproc-per-node $SLURM_GPUS_PER_NODE --rdzv-id $SLURM_JOBID "
                "--rdzv-backend c10d --rdzv-endpoint $SLURMD_NODENAME:$port train.py"
            ),
            lambda: (
                "srun -N ${SLURM_NNODES} --kill-on-bad-exit=1 python -m torch.distributed.run --nnodes ${SLURM_NNODES} "
                "--nproc-per-node ${gpus} --rdzv-backend c10d --rdzv-endpoint ${first}:${port} train.py"
            ),
        ],
        "wrong": [
            (lambda: "srun torchrun --nnodes $NODES train.py", ["nobody has set NODES"]),
            (
                lambda: (
                    "srun torchrun --nnodes $SLURM_NNODES --nproc-per-node $gpus --node-rank $SLURM_NODEID "
                    "--master-addr $first --master-port $port train.py"
                ),
                ["static", "each agent needs a number of its own"],
            ),
            (
                lambda: (
                    "srun torchrun train.py --nnodes $SLURM_NNODES --nproc-per-node $gpus --rdzv-backend c10d "
                    "--rdzv-endpoint $first:$port"
                ),
                ["no option of its own"],
            ),
            (lambda: "srun python train.py", ["it is no torchrun"]),
            (lambda: from_the_host().replace("srun", "srun --nodes=1 --ntasks=1"), ["one agent for all nodes"]),
            (lambda: "torchrnu train.py", ["bash knows no torchrnu"]),
            (lambda: "if true; then train.py; fi", ["bash knows no train.py"]),
            (lambda: agents(srun="sbatch torchrun"), ["hands over a script"]),
            (lambda: agents(srun="srun --nnodes $SLURM_NNODES torchrun"), ["srun knows no --nnodes"]),
            (lambda: agents(at="'$first:$port'", nodes="'$SLURM_NNODES'"), ["bash leaves a `$` as it is"]),
            (lambda: agents(at="\\$first:$port"), ["bash leaves a `$` as it is"]),
            (lambda: agents(at="$SLURM_JOB_NODELIST:$port"), ["the list of all nodes"]),
            (lambda: agents(at="$first"), ["a machine and no port"]),
            (lambda: agents(at="{first}:{port}"), ["to the letter"]),
            (lambda: agents(at="first:$port"), ["the machine is called first"]),
            (lambda: agents(at=f"{first}:$port"), ["raised NameError"]),  # noqa: F821
            (lambda: agents(nodes="$gpus", gpus="$SLURM_NNODES"), ["have changed places"]),
            (lambda: agents(nodes="$SLURM_NODEID"), ["the number of one node"]),
            (lambda: agents(gpus="1"), ["one rank, whatever it has"]),
            (lambda: agents(script="python train.py"), ["takes `python` for the script"]),
            (lambda: agents(script=""), ["no script is named"]),
            (lambda: agents().replace("--nnodes $SLURM_NNODES", ""), ["nobody says how many nodes"]),
            (lambda: agents(nodes="1:$SLURM_NNODES"), ["may begin with one node"]),
            (lambda: agents(end="\n"), ["the line ends too early"]),
        ],
    },
    "5.3.c": {
        "accepted": [
            lambda: "--checkpoint=/shared/$SLURM_JOB_ID/last.pt --rdzv-id=$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-first}",
            lambda: "--rdzv-id $(date +%s) --checkpoint $SLURM_JOB_ID.pt",
            lambda: "--rdzv-id=$SLURM_JOB_ID-$((${SLURM_RESTART_COUNT:-0} + 1)) --checkpoint=/home/$USER/$SLURM_JOB_ID",
            lambda: "--rdzv-id $SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0} --checkpoint $SLURM_SUBMIT_DIR/$SLURM_JOB_ID.pt",
            lambda: "--rdzv_id $SLURM_JOBID.${SLURM_RESTART_COUNT:-0} --checkpoint $SLURM_JOBID.pt",
            lambda: (
                '--rdzv-id "$SLURM_JOB_ID${SLURM_RESTART_COUNT:+.again$SLURM_RESTART_COUNT}" '
                '--checkpoint "train-${SLURM_JOB_ID}.pt"'
            ),
        ],
        "wrong": [
            (lambda: '--rdzv-id "$SLURM_JOB_ID"', ["ValueError"]),
            (
                lambda: "--rdzv-id $SLURM_JOB_ID_${SLURM_RESTART_COUNT:-0} --checkpoint $SLURM_JOB_ID.pt",
                ["takes the underscore for a part of the name"],
            ),
            (
                lambda: "--rdzv-id $SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0} --checkpoint $SLURM_JOB_ID_last.pt",
                ["nobody has set SLURM_JOB_ID_last"],
            ),
            (lambda: "--rdzv-id '$SLURM_JOB_ID' --checkpoint '$SLURM_JOB_ID.pt'", ["bash leaves a `$` as it is"]),
            (
                lambda: "--rdzv-id $SLURM_JOB_ID --checkpoint $SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}.pt",
                ["the other way round"],
            ),
            (
                lambda: '--rdzv-id "$SLURM_JOB_ID.$(SLURM_RESTART_COUNT:-0)" --checkpoint "$SLURM_JOB_ID.pt"',
                ["runs a command"],
            ),
            (lambda: f"--rdzv-id {SLURM_JOB_ID}", ["raised NameError"]),  # noqa: F821
            (lambda: '--rdzv-id "$HOME" --checkpoint "$SLURM_JOB_ID.pt"', ["all runs have one name"]),
            (
                lambda: "--rdzv-id $SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0} --checkpoint /shared/train.pt",
                ["another job goes on from this one's checkpoint"],
            ),
        ],
    },
    "5.3.1": {
        "correct": MENDED,
        "accepted": [
            but(("$(hostname)", '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)')),
            but(("$(hostname)", "$HOSTNAME")),
            but(("srun torchrun", "srun --kill-on-bad-exit=1 torchrun")),
            but(("--nproc-per-node 4", "--nproc-per-node gpu"), ("#SBATCH --ntasks-per-node=1\n", "")),
        ],
        "wrong": [
            (but(("node=1", "node=4")), ["start 4 agents on each node"]),
            (but(("srun torchrun", "torchrun")), ["on the first node only"]),
            (but(("c10d \\", "c10d")), ["takes `--rdzv-endpoint` for a command"]),
            (but(("$((10000 + SLURM_JOB_ID % 20000))", "29500")), ["both meet at port 29500"]),
            (but((":$((10000 + SLURM_JOB_ID % 20000))", "")), ["both meet at port 29400"]),
            (but(("    --rdzv-backend c10d \\\n", "")), ["'static'", "number of its own"]),
            (but(("--rdzv-id", "--rdzv-job")), ["torchrun refuses it"]),
            (but(("train.py", "")), ["torchrun refuses it", "training_script"]),
            (but(("--nnodes 2", "--nnodes 4")), ["nnodes as '4'"]),
            (but(("20000))", "20000)")), ["bash cannot read it"]),
            (but(("#!/bin/bash\n", "")), ["first line"]),
            (but(("$(hostname)", "")), ["names no machine"]),
            (but(("$(hostname)", "localhost")), ["the store is always on 'localhost'"]),
            (but(("$(hostname)", "gpu01")), ["the store is always on 'gpu01'"]),
            (but(("10000 + SLURM_JOB_ID % 20000", "60000 + SLURM_JOB_ID * 7")), ["the port of job 4242 is 89694"]),
            (but(("10000 + SLURM_JOB_ID % 20000", "10000 + SLURM_JOB_ID")), ["the port of job 4194304 is 4204304"]),
            (but(("10000 + SLURM_JOB_ID % 20000", "SLURM_JOB_ID % 65536")), ["the port of job 4194304 is 0"]),
            (but(("--ntasks-per-node=1", "--ntasks=8")), ["4 agents on each node"]),
            (but(("--ntasks-per-node=1", "--ntasks=1")), ["one agent for both nodes"]),
            (but(('"$(hostname):$((10000', "'$(hostname):'\"$((10000")), ["'$(hostname)', to the letter"]),
            (but(("$((10000 + SLURM_JOB_ID % 20000))", "")), ["both meet at port 29400"]),
            (["srun", "torchrun"], ["a list, not a text"]),
        ],
    },
}
