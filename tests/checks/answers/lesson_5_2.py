"""Answers to the exercises of lesson 5.2: the right one, the blank, and mistakes that people make."""

from functools import partial

from torch.nn.functional import cross_entropy


def my_loss(model, images, labels, rank, size):
    return loss_of(model, images, labels, rank, size) * size / len(images)


def loss_of(model, images, labels, rank, size, share=None, reduction="sum"):
    mine = share(rank, size) if share else slice(rank, None, size)
    return cross_entropy(model(images[mine]), labels[mine], reduction=reduction)


mean_of_share = partial(loss_of, reduction="mean")
everything = partial(mean_of_share, share=lambda rank, size: slice(None))
rest_lost = partial(mean_of_share, share=lambda rank, size: slice(rank * (10 // size), (rank + 1) * (10 // size)))

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


ANSWERS = {
    "5.2.1": {
        "correct": (32, 16, "gpu03", 0, 21),
        "wrong": [
            ((32, 16, "gpu01", 0, 21), ["`store` is 'gpu01'", "does not hold it"]),
            ((32, 16, 3, 0, 21), ["`store` is 3", "not a name"]),
        ],
    },
    "5.2.2": {
        "correct": my_loss,
        "wrong": [
            (mean_of_share, ["on 3 ranks", "4, 3, 3 images", "not that of the whole batch"]),
            (lambda *given: loss_of(*given) / 10, ["on 2 ranks", "0.5 times"]),
            (loss_of, ["on 1 rank ", "10 times"]),
            (everything, ["on 2 ranks", "takes all 10 images"]),
            (rest_lost, ["on 3 ranks", "3 + 3 + 3 images"]),
            (lambda *given: my_loss(*given).item(), ["returns a float, not a tensor"]),
            (0.5, ["not a function"]),
        ],
    },
    "5.2.3": {
        "correct": MENDED,
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
            (but(("10000 + SLURM_JOB_ID % 20000", "60000 + SLURM_JOB_ID * 7")), ["the port is 89694"]),
            (["srun", "torchrun"], ["a list, not a text"]),
        ],
    },
}
