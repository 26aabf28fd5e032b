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

from deltafl.torch import _cohort, _embedding, _encode, _functions, _linear  # noqa: E402
from deltafl.torch._memory import DeviceTensors  # noqa: E402


#: A GPU, or the CPU with the interpreter.
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The kernels, which cohorts on the CPU use too."""
    monkeypatch.setattr(_cohort, "has_kernels", lambda device: True)
    return _functions.kernels()


#: Input and output channels, size, kernel, step, padding and dilation. The last one has parts of weight gradients.
LAYERS = [
    (3, 5, 7, 3, 1, 1, 1), (16, 20, 6, 3, 2, 1, 1), (33, 4, 5, 1, 2, 0, 1), (2, 3, 9, 2, 1, 0, 2), (2, 3, 26, 2, 1, 0, 1),
]  # fmt: skip


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
    assert torch.allclose(found, of_weight, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sizes", [(10, 70, 40), (3, 5, 200), (40, 9, 130), (10, 4500, 20)])
def test_products_agree_with_those_of_pytorch(kernels: Any, sizes: tuple[int, int, int]) -> None:
    rows, inner, columns = sizes
    torch.manual_seed(2)
    left, right = torch.randn(2, rows, inner, device=DEVICE), torch.randn(2, columns, inner, device=DEVICE)
    for one, other in ((left, right.mT), (left, right.mT.contiguous()), (left.mT.contiguous().mT, right.mT)):
        found = kernels.multiplied(one, other, "tf32x3")
        assert torch.allclose(found, (one.double() @ other.double()).float(), atol=1e-4)


@pytest.mark.parametrize("sizes", [(2, 10, 40, 70), (3, 3, 9, 130), (1, 20, 33, 64)])
@pytest.mark.parametrize("needs_source", [True, False])
def test_a_dense_step_moves_the_weights_by_the_gradient(
    kernels: Any, sizes: tuple[int, ...], needs_source: bool
) -> None:
    devices, rows, outputs, inputs = sizes
    torch.manual_seed(2)
    slope, source = torch.randn(devices, rows, outputs, device=DEVICE), torch.randn(devices, rows, inputs, device=DEVICE)
    weight = torch.randn(devices, outputs, inputs, device=DEVICE)
    rates, decays = torch.rand(devices, device=DEVICE), torch.rand(devices, device=DEVICE)
    moved = weight.clone()
    found = kernels.dense_step(slope, source, moved, rates, decays, needs_source=needs_source, precision="tf32x3")
    gradient = slope.double().mT @ source.double() + decays[:, None, None] * weight.double()
    assert torch.allclose(moved.double(), weight.double() - rates[:, None, None] * gradient, atol=1e-4)
    if needs_source:
        assert torch.allclose(found.double(), slope.double() @ weight.double(), atol=1e-4)


def test_infinite_slopes_do_not_move_the_weights_of_a_rate_of_zero(kernels: Any) -> None:
    torch.manual_seed(2)
    slope = torch.full((2, 3, 5), float("inf"), device=DEVICE)
    slope[1] = 1.0
    source, weight = torch.randn(2, 3, 7, device=DEVICE), torch.randn(2, 5, 7, device=DEVICE)
    rates, decays = torch.tensor([0.0, 0.5], device=DEVICE), torch.zeros(2, device=DEVICE)
    moved = weight.clone()
    kernels.dense_step(slope, source, moved, rates, decays, needs_source=True)
    assert torch.equal(moved[0], weight[0]) and not torch.equal(moved[1], weight[1])
    moved = weight.clone()
    slopes = slope[:, :, :1].expand(2, 3, 7)
    kernels.rows_step(slopes, torch.tensor([[1, 1, 2]] * 2, device=DEVICE), moved, rates, -1)
    assert torch.equal(moved[0], weight[0]) and not torch.equal(moved[1], weight[1])


@pytest.mark.parametrize("padding", [-1, 2])
def test_a_step_of_an_embedding_adds_equal_tokens_up(kernels: Any, padding: int) -> None:
    torch.manual_seed(2)
    weight = torch.randn(3, 7, 300, device=DEVICE)
    indices = torch.randint(7, (3, 2, 9), device=DEVICE)
    slope, rates = torch.randn(3, 2, 9, 300, device=DEVICE), torch.rand(3, device=DEVICE)
    expected = weight.clone()
    for device in range(3):
        for index, row in zip(indices[device].flatten().tolist(), slope[device].flatten(0, 1)):
            if index != padding:
                expected[device, index] -= rates[device] * row
    kernels.rows_step(slope, indices, weight, rates, padding)
    assert torch.allclose(weight, expected, atol=1e-5)


def test_the_cross_entropy_and_its_gradient_agree_with_those_of_pytorch(kernels: Any) -> None:
    torch.manual_seed(2)
    output = (5 * torch.randn(6, 9, device=DEVICE)).requires_grad_()
    wanted = torch.tensor([0, 8, 3, -100, 3, 1], device=DEVICE)
    expected = torch.nn.functional.cross_entropy(output, wanted, reduction="none")
    (slope,) = torch.autograd.grad(expected.sum(), output)
    losses, gradient = kernels.cross_entropy(output.detach().view(2, 3, 9), wanted.view(2, 3))
    assert torch.allclose(losses.flatten(), expected, atol=1e-6)
    assert torch.allclose(gradient.flatten(0, 1), slope, atol=1e-6)


def test_the_cross_entropy_of_a_target_that_is_no_class_is_not_a_number(kernels: Any) -> None:
    losses, gradient = kernels.cross_entropy(torch.zeros(1, 2, 3, device=DEVICE), torch.tensor([[2, 3]], device=DEVICE))
    assert losses.isnan().tolist() == [[False, True]]
    assert gradient.isnan().all(2).tolist() == [[False, True]]


@pytest.mark.parametrize("tracks", [1, 2])
def test_the_params_of_devices_are_those_of_their_tracks(kernels: Any, tracks: int) -> None:
    shapes: dict[str, tuple[int, ...]] = {"a": (20, 30), "b": (), "c": (7,)}
    types = {"a": torch.float32, "b": torch.float64, "c": torch.float32}
    tensors = DeviceTensors(shapes, types, 11, DEVICE)
    start, which = torch.randn(tracks, 608, device=DEVICE), torch.arange(11, device=DEVICE) % tracks
    tensors.load(start, which)
    found = torch.cat([matrix.float() for matrix in tensors.matrices()], dim=1)
    assert torch.equal(found, start[which])


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
    outputs = _encode.EncodedOutputs(2, 5, 7, DEVICE)
    encoder = _encode.Encoder(DEVICE, by_kernels=True)

    def send(array: Any) -> Any:
        return torch.from_numpy(array).to(DEVICE)

    shapes: dict[str, tuple[int, ...]] = {"a": (2, 2), "b": (3,)}
    tensors = DeviceTensors(shapes, dict.fromkeys(shapes, torch.float32), 5, DEVICE)
    for place, columns in zip(tensors.matrices(), (slice(4), slice(4, 7))):
        place.copy_(send(local[:, columns].copy()))
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


class Twice(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """A module that calls a layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(36, 36), nn.Linear(36, 3)

    def forward(self, rows: Any) -> Any:
        return self.out(torch.tanh(self.inner(torch.tanh(self.inner(rows.flatten(1))))))


class Penalised(Twice):
    """A module that reads the weight of a layer."""

    def forward(self, rows: Any) -> Any:
        return self.out(torch.tanh(self.inner(rows.flatten(1)))) * (self.inner.weight**2).mean()


class Detached(Twice):
    """A module that reads the weight of a layer without a gradient of its own."""

    def forward(self, rows: Any) -> Any:
        return self.out(torch.tanh(self.inner(rows.flatten(1) + self.inner.weight.detach().sum(0))))


class TiedLayers(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """An embedding whose weight is also that of a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.back, self.out = nn.Embedding(9, 8), nn.Linear(8, 9), nn.Linear(9, 3)
        self.back.weight = self.embedding.weight

    def forward(self, rows: Any) -> Any:
        return self.out(torch.tanh(self.back(self.embedding(_tokens(rows)).mean(1))))


class Words(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """Embeddings, a layer norm and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(9, 8, padding_idx=0), nn.LayerNorm(8)
        self.frozen, self.out = nn.Linear(8, 8), nn.Linear(8, 3)
        self.frozen.weight.requires_grad_(False)

    def forward(self, rows: Any) -> Any:
        return self.out(torch.tanh(self.frozen(self.norm(self.embedding(_tokens(rows))).mean(1))))


def _tokens(rows: Any) -> Any:
    return (rows.flatten(1).abs() * 4).long().clamp(max=8)


def layers() -> Any:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 2, 3, stride=2, bias=False),
        nn.Flatten(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3),
    )  # fmt: skip


class ByClass(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """A module whose forward pass depends on the classes of its layers, with a hook."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.Linear(48, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        self.layers = nn.ModuleList(layers)
        self.layers[2].register_forward_hook(lambda layer, inputs, output: 2 * output)

    def forward(self, images: Any) -> Any:
        for layer in self.layers:
            images = layer(images.flatten(1) if isinstance(layer, nn.Linear) else images)
            if isinstance(layer, (nn.Conv2d, nn.GroupNorm, nn.LayerNorm)):
                images = torch.tanh(2 * images)
        return images


def one_round(net: Any, cohort: str, **options: Any) -> Any:
    """Returns the parameters after a round of three small devices."""
    rng = np.random.default_rng(5)
    sizes = [3, 5, 4]
    inputs = rng.standard_normal((sum(sizes), 36)).astype(np.float32)
    devices = np.repeat([f"d{k}" for k in range(len(sizes))], sizes)
    data = dfl.Federation.from_arrays(inputs, rng.integers(3, size=sum(sizes)).astype(np.uint32), devices)
    keywords: dict[str, Any] = {"algorithms": dfl.FedAvg(), "clip": None, "l2": 0.0, **options}
    run = dfl.train(
        data, dfl_torch.Module(net, shape=(1, 6, 6), l2=keywords["l2"], cohort=cohort, device=DEVICE),  # type: ignore[arg-type]
        keywords["algorithms"], rounds=1, cohort=3, clip=keywords["clip"], split={"train": 1.0},
        local=dfl.SGD(lr=0.2, batch=2), progress=False, out=cohort,
    )  # fmt: skip
    return run[0].params()


@pytest.mark.parametrize(
    "make, options, stored",
    [
        (layers, {}, False),
        (layers, {"clip": 0.05}, False),
        (layers, {"l2": 0.1}, False),
        (layers, {"algorithms": dfl.FedProx(mu=0.5)}, False),
        (Words, {}, False),
        (Words, {"l2": 0.1}, False),
        (TiedLayers, {}, False),
        (ByClass, {}, False),
        (Twice, {}, True),
        (Penalised, {}, True),
        (Detached, {}, True),
    ],
)
def test_a_run_by_kernels_agrees_with_one_device_after_another(
    kernels: Any,
    make: Any,
    options: dict[str, Any],
    stored: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Small layers are large enough for the kernels here.
    monkeypatch.setattr(_linear, "LARGE", 64)
    monkeypatch.setattr(_embedding, "LARGE", 64)
    torch.manual_seed(1)
    net = make()
    with caplog.at_level(logging.INFO, logger="deltafl.torch"):
        on, off = (one_round(net, cohort, **options) for cohort in ("on", "off"))
    assert "Triton kernels" in caplog.text, caplog.text
    assert np.linalg.norm(on - off) <= 1e-5 * np.linalg.norm(off)
    assert ("gradients of large weights are stored" in caplog.text) == stored


@pytest.mark.parametrize("make, weight", [(layers, "5.weight"), (Words, "embedding.weight")])
def test_the_gradient_of_a_large_weight_is_not_stored(
    kernels: Any, make: Any, weight: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltafl.torch._step import Step

    monkeypatch.setattr(_linear, "LARGE", 64)
    monkeypatch.setattr(_embedding, "LARGE", 64)
    moved: list[list[str]] = []
    plain = Step._moved

    def step(self: Any) -> None:
        plain(self)
        moved.append(list(self._moved_names))

    monkeypatch.setattr(Step, "_moved", step)
    one_round(make(), "on")
    assert moved and all(names == [weight] for names in moved)


@pytest.mark.parametrize("options", [{"kernel_size": 2}, {"kernel_size": (5, 2)}, {"kernel_size": 3, "stride": 1}])
@pytest.mark.parametrize("before", ["nothing", "relu", "another relu"])
def test_max_pools_of_a_function_agree_with_those_of_pytorch(
    kernels: Any, options: dict[str, Any], before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltafl.torch._pool import PooledByKernels

    torch.manual_seed(2)
    images = torch.randn(3, 2, 4, 5, 6, device=DEVICE)
    images[0, 0, 0, 0, 1] = float("nan")
    images[1, 0, 1] = -1.0
    fused: list[bool] = []
    pooled = kernels.pooled

    def counted(*args: Any, positive: bool) -> Any:
        fused.append(positive)
        return pooled(*args, positive=positive)

    monkeypatch.setattr(kernels, "pooled", counted)

    def total(image: Any) -> Any:
        maps = image * 1.0
        positive = maps if before == "nothing" else torch.nn.functional.relu(maps)
        maps = maps if before == "another relu" else positive
        return (torch.nn.functional.max_pool2d(maps, **options) ** 2).nansum()

    expected = torch.func.vmap(torch.func.grad(total))(images)
    with PooledByKernels():
        found = torch.func.vmap(torch.func.grad(total))(images)
    assert torch.allclose(found, expected, equal_nan=True)
    assert fused == ([] if "stride" in options else [before == "relu"])


@pytest.mark.parametrize("tf32", [False, True])
def test_large_dense_layers_use_kernels_in_full_precision_only(
    monkeypatch: pytest.MonkeyPatch, kernels: Any, tf32: bool
) -> None:
    monkeypatch.setattr(_linear, "uses_tf32", lambda settings: tf32)
    monkeypatch.setattr(_linear, "LARGE", 64)
    calls: list[Any] = []
    multiplied = kernels.multiplied

    def counted(*args: Any) -> Any:
        calls.append(args)
        return multiplied(*args)

    monkeypatch.setattr(kernels, "multiplied", counted)
    layer = nn.Linear(8, 9).to(DEVICE)
    inputs = torch.ones((2, 8), device=DEVICE)
    replaced = _linear.KernelLinear.of(layer)
    assert replaced is not None and torch.allclose(replaced(inputs), layer(inputs), atol=1e-5)
    assert len(calls) == (0 if tf32 else 1)
