from __future__ import annotations

import torch
from torch import nn

from fdamed.config.study import Model, Recipe
from fdamed.models import backbone, heads
from fdamed.models.flat import FlatModel, layout_of, named_tensors, vector_from
from fdamed.training.optimizer import Optimizer

SMALL = Model(width=0.0625)


def small_net() -> backbone.Net:
    net = backbone.build(SMALL)
    backbone.initialize(net, torch.Generator().manual_seed(3))
    return net


def test_the_papers_network_has_the_papers_parameter_counts() -> None:
    model = Model(heads=("sex", "age", "view"))
    h = sum(p.numel() for p in backbone.build(model).parameters())
    extra = sum(p.numel() for p in heads.build(model).parameters())
    assert h == 11_242_434
    assert 5 * h == 56_212_170
    assert 5 * (h + extra) == 56_221_200


def test_parameters_come_first_and_integer_buffers_do_not_travel() -> None:
    net = small_net()
    layout = layout_of(net)
    names = [s.name for s in layout]
    assert names[: len(list(net.parameters()))] == [n for n, _ in net.named_parameters()]
    assert not any(n.endswith("num_batches_tracked") for n in names)
    assert layout.size - layout.trainable == sum(b.numel() for b in net.buffers() if b.is_floating_point())
    assert [s.start for s in layout][1:] == [s.stop for s in layout][:-1]


def test_a_flat_model_computes_what_the_module_computed() -> None:
    net = small_net().eval()
    x = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    expected = net(x).detach().clone()
    FlatModel(net)
    torch.testing.assert_close(net(x), expected, rtol=1e-5, atol=1e-5)


def test_gradients_and_buffers_live_in_the_vectors() -> None:
    net = small_net()
    model = FlatModel(net)
    before = model.read()
    net.train()
    net(torch.rand(4, 1, 32, 32)).square().sum().backward()
    assert model.grad.norm() > 0
    assert torch.equal(model.trainable, before[: model.layout.trainable])
    assert not torch.equal(model.theta[model.layout.trainable :], before[model.layout.trainable :])
    model.trainable.zero_()
    assert all(float(p.detach().abs().sum()) == 0 for p in net.parameters())


def test_names_and_vector_are_inverse() -> None:
    model = FlatModel(small_net())
    tensors = named_tensors(model.theta, model.layout)
    torch.testing.assert_close(tensors["trunk.conv1.weight"], model.module.trunk.conv1.weight.detach().contiguous())
    assert torch.equal(vector_from(tensors, model.layout), model.theta)


def test_kernels_are_channels_last_except_where_that_is_unsafe() -> None:
    resnet, small = small_net(), nn.Sequential(nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5), nn.Conv2d(16, 4, 3))
    before = [p.detach().clone() for p in small.parameters()]
    FlatModel(resnet), FlatModel(small)
    assert resnet.trunk.conv1.weight.shape[1] == 3
    assert resnet.trunk.conv1.weight.stride() == (7 * 7 * 3, 1, 7 * 3, 3)
    assert all(layer.weight.is_contiguous() for layer in small)
    assert all(p.grad is not None and p.grad.stride() == p.stride() for p in small.parameters())
    assert all(torch.equal(p, b) for p, b in zip(small.parameters(), before, strict=True))


def test_the_flat_adam_is_torchs_adam() -> None:
    ours, theirs = nn.Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    recipe = Recipe(lr=0.05, weight_decay=0.01)
    model = FlatModel(ours)
    adam, reference = Optimizer(model, recipe), torch.optim.Adam(theirs.parameters(), lr=0.05, weight_decay=0.01)
    for k in range(5):
        x = torch.rand(7, 5, generator=torch.Generator().manual_seed(k))
        model.grad.zero_()
        ours(x).square().sum().backward()
        adam.step()
        reference.zero_grad()
        theirs(x).square().sum().backward()
        reference.step()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.bias, theirs.bias, rtol=1e-5, atol=1e-6)


def test_plain_sgd_takes_the_step_of_the_textbook() -> None:
    layer = nn.Linear(1, 1, bias=False)
    model = FlatModel(layer)
    model.trainable.fill_(2.0)
    model.grad.fill_(0.5)
    Optimizer(model, Recipe(lr=0.1, optimizer="sgd", weight_decay=0.25)).step()
    assert layer.weight.item() == torch.tensor(2.0 - 0.1 * (0.5 + 0.25 * 2.0)).item()


def test_initialization_is_seeded() -> None:
    a, b = FlatModel(small_net()), FlatModel(small_net())
    assert torch.equal(a.theta, b.theta)


def test_unknown_auxiliary_labels_are_masked_not_imputed() -> None:
    logits = torch.tensor([[0.0, 0.0], [5.0, -5.0], [0.0, 0.0]])
    loss = heads.masked_cross_entropy(logits, torch.tensor([1, -1, 0]))
    assert float(loss) == float(torch.log(torch.tensor(2.0)))
    assert float(heads.masked_cross_entropy(logits, torch.tensor([-1, -1, -1]))) == 0.0


def test_an_mlp_takes_feature_vectors_and_its_heads_read_the_last_layer() -> None:
    model = Model(backbone="mlp", inputs=7, layers=(5, 3), classes=2, heads=("sex",))
    net = backbone.build(model)
    assert sum(p.numel() for p in net.parameters()) == (7 * 5 + 5) + (5 * 3 + 3) + (3 * 2 + 2)
    x = torch.rand(4, 7)
    assert net(x).shape == (4, 2) and net.features(x).shape == (4, 3) and bool((net.features(x) >= 0).all())
    assert heads.build(model)["sex"].in_features == 3
