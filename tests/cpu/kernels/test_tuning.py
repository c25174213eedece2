"""Which devices take a prompt's chunk on tensor cores."""

import pytest
import torch

from hotset.kernels.tuning import has_tensor_cores


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), False), ((8, 0), True), ((9, 0), True), ((12, 0), True)])
def test_tensor_cores_are_used_from_ampere_on(capability, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    assert has_tensor_cores.__wrapped__(torch.device("cuda", 0)) == expected
