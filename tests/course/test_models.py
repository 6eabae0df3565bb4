"""The models: what they return, their size, and that they learn."""

import pytest
import torch
from torch import nn

from ddplab.course.data import digits
from ddplab.course.models import CNN, MLP, with_weights


@pytest.mark.parametrize("model", [MLP(), MLP(hidden=8), CNN(), CNN(channels=4), CNN(batch_norm=True)], ids=str)
def test_models_give_ten_scores(model):
    assert model(torch.zeros(5, 1, 8, 8)).shape == (5, 10)


def test_models_have_the_sizes_their_docstrings_name():
    assert "4,810" in MLP.__doc__ and sum(p.numel() for p in MLP().parameters()) == 4810
    assert "6,090" in CNN.__doc__ and sum(p.numel() for p in CNN().parameters()) == 6090


def test_batch_norm_is_there_only_when_asked():
    def norms(model):
        return sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())

    assert norms(CNN()) == 0 and not list(CNN().buffers())
    assert norms(CNN(batch_norm=True)) == 2


@pytest.mark.parametrize("make", [MLP, CNN, lambda: CNN(batch_norm=True)], ids=["MLP", "CNN", "CNN with BatchNorm"])
def test_models_learn_the_digits_in_seconds(make):
    torch.manual_seed(0)
    model, (x, y) = make(), digits().tensors
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(5):
        for batch in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimiser.step()
    model.eval()
    x, y = digits(train=False).tensors
    assert (model(x).argmax(1) == y).float().mean() > 0.93


def test_a_copy_with_other_weights_computes_with_them_and_leads_back_to_what_they_were_made_from():
    net, x = MLP(), torch.randn(3, 1, 8, 8)
    twin = with_weights(net, {name: 2 * weight for name, weight in net.named_parameters()})
    assert not list(twin.parameters()) and len(list(net.parameters())) == 4
    doubled = MLP()
    doubled.load_state_dict({name: 2 * weight for name, weight in net.state_dict().items()})
    assert torch.equal(twin(x), doubled(x))
    twin(x).sum().backward()
    assert all(weight.grad is not None for weight in net.parameters())


def test_a_copy_cannot_have_a_weight_that_the_module_has_not():
    with pytest.raises(AttributeError):
        with_weights(MLP(), {"layers.9.weight": torch.zeros(1)})
