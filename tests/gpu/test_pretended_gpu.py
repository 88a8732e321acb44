"""The pretended GPU itself finds what a real one would refuse, or wait for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.support import federation as hospitals

pytestmark = pytest.mark.gpu


FAULTS: dict[str, Callable[[torch.Tensor], object]] = {
    "an input that is left on the CPU": lambda x: x @ torch.ones(3, 3),
    "noise that is left on the CPU": lambda x: x + torch.ones(3, 3),
    "a generator of the CPU": lambda x: x.normal_(generator=torch.Generator()),
    "moments that are left on the CPU": lambda x: torch._fused_adam_(
        [x], [x], [torch.zeros(3, 3)], [torch.zeros(3, 3)], [], [torch.zeros(())],
        lr=0.1, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.0, amsgrad=False, maximize=False,
    ),
    "a number of the GPU among those of the CPU": lambda x: torch.ones(3).index_select(0, x[0].long()),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_mixed_devices_are_an_error(fault: str, gpu) -> None:
    from tests.support.pretended_gpu import DevicesMixed

    with gpu():
        x = torch.zeros(3, 3, device="cuda")
        assert str(x.device) == "cuda:0"
        with pytest.raises(DevicesMixed):
            FAULTS[fault](x)


def test_numpy_cannot_read_the_device(gpu) -> None:
    with gpu(), pytest.raises((TypeError, RuntimeError)):
        torch.zeros(3, device="cuda").numpy()


WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda x: x[0].item(),
    "bool": lambda x: bool(x.any()),
    "mask": lambda x: x[x > 0],
    "nonzero": lambda x: x.nonzero(),
    "cpu": lambda x: x.cpu(),
    "a copy from plain memory": lambda x: x.copy_(torch.ones(3)),
    "an index of the CPU": lambda x: x[torch.tensor([0, 1])],
}


@pytest.mark.parametrize("wait", WAITS)
def test_waits_are_counted_once(wait: str, gpu) -> None:
    with gpu() as counts:
        x = torch.zeros(3, device="cuda")
        WAITS[wait](x)
        assert sum(counts.waits.values()) == 1


def test_a_copy_from_pinned_memory_is_queued_and_a_kernel_is_neither(gpu) -> None:
    with gpu() as counts:
        x = torch.ones(3).pin_memory().to("cuda", non_blocking=True)
        (x * 2 + 1).sum()
        assert sum(counts.waits.values()) == 0 and sum(counts.queued.values()) == 1


def test_the_place_of_a_wait_is_named(gpu) -> None:
    with gpu() as counts:
        hospitals.model(device="cuda").read()
        assert any(place.startswith("models/flat.py:") for _, place in counts.waits)
