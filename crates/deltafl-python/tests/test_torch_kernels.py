"""The Triton kernels of cohorts, on a GPU or with the interpreter of Triton."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import deltafl as dfl

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
dfl_torch = pytest.importorskip("deltafl.torch")
if not hasattr(torch, "func"):
    pytest.skip("torch.func needs PyTorch 2.0", allow_module_level=True)
nn = torch.nn

from deltafl import _torch_cohort, _torch_encode, _torch_functions, _torch_linear  # noqa: E402


#: A GPU, or the CPU with the interpreter.
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The kernels, which cohorts on the CPU use too."""
    monkeypatch.setattr(_torch_cohort, "has_kernels", lambda device: True)
    return _torch_functions.kernels()


#: Input and output channels, size, kernel, step, padding and dilation.
LAYERS = [(3, 5, 7, 3, 1, 1, 1), (16, 20, 6, 3, 2, 1, 1), (33, 4, 5, 1, 2, 0, 1), (2, 3, 9, 2, 1, 0, 2)]


@pytest.mark.parametrize("layer", LAYERS)
def test_convolutions_agree_with_those_of_pytorch(kernels: Any, layer: tuple[int, ...]) -> None:
    torch.backends.cudnn.allow_tf32 = False
    entry, out, size, kernel, step, padding, dilation = layer
    torch.manual_seed(2)
    images = torch.randn(3, 2, entry, size, size, device=DEVICE, requires_grad=True)
    weight = torch.randn(3, out, entry, kernel, kernel, device=DEVICE, requires_grad=True)
    expected = torch.stack(
        [torch.nn.functional.conv2d(i, w, None, step, padding, dilation) for i, w in zip(images, weight)]
    )
    slope = torch.randn_like(expected)
    of_images, of_weight = torch.autograd.grad(expected, (images, weight), slope)
    geometry = ((kernel, kernel), (step, step), (padding, padding), (dilation, dilation))
    given = images.detach(), weight.detach()
    shape = tuple(expected.shape[3:])
    assert torch.allclose(
        kernels.convolved(*given, size=shape, geometry=geometry, transposed=False), expected, atol=1e-4
    )
    assert torch.allclose(
        kernels.convolved(slope, given[1], size=(size, size), geometry=geometry, transposed=True),
        of_images,
        atol=1e-4,
    )
    found = kernels.weight_slopes(given[0], slope, shape=tuple(weight.shape[1:]), geometry=geometry)
    assert torch.allclose(found, of_weight, atol=1e-4)


@pytest.mark.parametrize("sizes", [(10, 70, 40), (3, 5, 200), (40, 9, 130)])
def test_products_agree_with_those_of_pytorch(kernels: Any, sizes: tuple[int, int, int]) -> None:
    rows, inner, columns = sizes
    torch.manual_seed(2)
    left, right = torch.randn(2, rows, inner, device=DEVICE), torch.randn(2, columns, inner, device=DEVICE)
    for one, other in ((left, right.mT), (left, right.mT.contiguous()), (left.mT.contiguous().mT, right.mT)):
        found = kernels.multiplied(one, other, "tf32x3")
        assert torch.allclose(found, (one.double() @ other.double()).float(), atol=1e-4)


def test_group_norms_agree_with_those_of_pytorch(kernels: Any) -> None:
    torch.manual_seed(2)
    images = torch.randn(2, 3, 6, 5, device=DEVICE, requires_grad=True)
    weight, bias = (torch.randn(2, 6, device=DEVICE, requires_grad=True) for _ in range(2))
    expected = torch.stack(
        [torch.nn.functional.group_norm(i, 2, w, b, 1e-5) for i, w, b in zip(images, weight, bias)]
    )
    slope = torch.randn_like(expected)
    slopes = torch.autograd.grad(expected, (images, weight, bias), slope)
    given = [value.detach() for value in (images, weight, bias)]
    output, means, scales = kernels.normalised(*given, 2, 1e-5)
    assert torch.allclose(output, expected, atol=1e-5)
    found = kernels.normalised_slopes(given[0], slope, given[1], means, scales, 2)
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in zip(found, slopes))


@pytest.mark.parametrize("size", [1.0, 1e9])
def test_encoded_sums_are_exact_and_leave_out_refused_devices(kernels: Any, size: float) -> None:
    rng = np.random.default_rng(3)
    start = rng.standard_normal((2, 7)).astype(np.float32)
    which, places = np.array([0, 1, 1, 0, 0]), np.array([0, 1, 1, 0, -1])
    local = (start[which] + size * rng.standard_normal((5, 7))).astype(np.float32)
    local[2, 3], local[4, 0] = np.nan, np.inf
    scales, limit = np.array([1.0, 2.0, 3.0, 0.5, 1.0]) * 2.0**24, 2.0**61
    outputs = _torch_encode.EncodedOutputs(2, 5, 7, DEVICE)
    encoder = _torch_encode.Encoder(DEVICE, by_kernels=True)

    def send(array: Any) -> Any:
        return torch.from_numpy(array).to(DEVICE)

    tensors = [send(local[:, :4].copy()), send(local[:, 4:].copy())]
    given = (send(start), send(which), send(places), send(scales), None, send(np.array([limit])))
    outputs.keep.fill_(1)
    encoder.encode(tensors, *given, outputs)
    assert outputs.received(4) is None, "the sums contain a refused device"
    encoder.encode(tensors, *given, outputs)
    answer = outputs.received(4)
    assert answer is not None
    sums, refused = answer
    assert refused == [False, False, True, False]
    codes = np.rint((local.astype(np.float64) - start[which]) * scales[:, None])
    assert np.array_equal(sums[0], codes[0].astype(np.int64) + codes[3].astype(np.int64))
    assert np.array_equal(sums[1], codes[1].astype(np.int64))
    assert sums[0].dtype == (np.int32 if size == 1.0 else np.int64)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_a_run_by_kernels_agrees_with_one_device_after_another(
    kernels: Any,
    clip: float | None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(5)
    sizes = [3, 5, 4]
    inputs = rng.standard_normal((sum(sizes), 36)).astype(np.float32)
    devices = np.repeat([f"d{k}" for k in range(len(sizes))], sizes)
    data = dfl.Federation.from_arrays(inputs, rng.integers(3, size=sum(sizes)).astype(np.uint32), devices)
    torch.manual_seed(1)
    # Small layers are large enough for the kernels here.
    monkeypatch.setattr(_torch_linear, "_LARGE", 64)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 2, 3, stride=2, bias=False),
        nn.Flatten(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3),
    )  # fmt: skip
    found = []
    with caplog.at_level(logging.INFO, logger="deltafl.torch"):
        for cohort in ("on", "off"):
            run = dfl.train(
                data, dfl_torch.Module(net, shape=(1, 6, 6), cohort=cohort, device=DEVICE), dfl.FedAvg(),
                rounds=1, cohort=3, clip=clip, split={"train": 1.0}, local=dfl.SGD(lr=0.2, batch=2), progress=False,
                out=cohort,
            )  # fmt: skip
            found.append(run[0].params())
    assert "Triton kernels" in caplog.text, caplog.text
    assert np.linalg.norm(found[0] - found[1]) <= 1e-5 * np.linalg.norm(found[1])


@pytest.mark.parametrize("tf32", [False, True])
def test_large_dense_layers_use_kernels_in_full_precision_only(
    monkeypatch: pytest.MonkeyPatch, kernels: Any, tf32: bool
) -> None:
    monkeypatch.setattr(_torch_linear, "uses_tf32", lambda settings: tf32)
    monkeypatch.setattr(_torch_linear, "_LARGE", 64)
    calls: list[Any] = []
    multiplied = kernels.multiplied

    def counted(*args: Any) -> Any:
        calls.append(args)
        return multiplied(*args)

    monkeypatch.setattr(kernels, "multiplied", counted)
    layer = nn.Linear(8, 9).to(DEVICE)
    inputs = torch.ones((2, 8), device=DEVICE)
    replaced = _torch_linear.KernelLinear.of(layer)
    assert replaced is not None and torch.allclose(replaced(inputs), layer(inputs), atol=1e-5)
    assert len(calls) == (0 if tf32 else 1)
