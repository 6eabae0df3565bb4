"""A sweep: many runs in one stack, each of which must end where it would have ended alone."""

import pytest
import torch
import torch.nn.functional as F

from ddplab.course.data import digits
from ddplab.course.trials import sweep


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_each_run_of_a_sweep_ends_where_a_training_with_its_rate_alone_ends(kind):
    rates = torch.tensor([0.01, 0.1])
    (images, labels), (test_images, test_labels) = digits().tensors, digits(train=False).tensors
    mean = images.mean(dim=0)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    alone = []
    for rate in rates.tolist():
        weight = torch.zeros(64, 10, requires_grad=True)
        optimizer = kind([weight], lr=rate)
        for pick in order.split(256)[:5]:  # full batches only
            optimizer.zero_grad()
            F.cross_entropy((images[pick] - mean).flatten(1) @ weight, labels[pick]).backward()
            optimizer.step()
        alone.append(F.cross_entropy((test_images - mean).flatten(1) @ weight, test_labels).item())
    assert sweep(kind, 256, rates, orders=1).tolist() == pytest.approx(alone, rel=1e-4)
