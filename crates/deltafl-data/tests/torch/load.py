"""Loads a checkpoint into torch modules with load_state_dict and computes the loss of each example.

    python3 load.py CHECKPOINT CASE.json

Prints the losses as JSON, one per example, and the gradients of a stack. The program parses the safetensors format itself: a length,
a JSON header and the entries.
"""
import json
import struct
import sys

import torch
from torch import nn
from torch.nn import functional


class Linear(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.fc = nn.Linear(case["inputs"], case["classes"], bias=case["bias"])

    def forward(self, x):
        return self.fc(x)


class Perceptron(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.fc1 = nn.Linear(case["inputs"], case["hidden"])
        self.fc2 = nn.Linear(case["hidden"], case["classes"])

    def forward(self, x):
        return self.fc2(functional.relu(self.fc1(x)))


class ConvNet(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.side = case["side"]
        first, second = case["channels"]
        self.conv1 = nn.Conv2d(1, first, 5)
        self.conv2 = nn.Conv2d(first, second, 5)
        left = ((case["side"] - 4) // 2 - 4) // 2
        self.fc = nn.Linear(second * left * left, case["classes"])

    def forward(self, x):
        x = x.reshape(-1, 1, self.side, self.side)
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


class Lstm(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.vectors = torch.tensor(case["vectors"])
        self.lstm = nn.LSTM(self.vectors.shape[1], case["hidden"], batch_first=True)
        self.fc = nn.Linear(case["hidden"], 1)

    def forward(self, tokens):
        outputs, _ = self.lstm(self.vectors[tokens])
        return self.fc(outputs[:, -1])


class Gru(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.alphabet, dim = case["alphabet"], case["embedding"]
        if dim:
            self.embedding = nn.Embedding(self.alphabet, dim)
        self.gru = nn.GRU(dim or self.alphabet, case["hidden"], batch_first=True)
        self.fc = nn.Linear(case["hidden"], case["classes"])

    def forward(self, tokens):
        embed = getattr(self, "embedding", None)
        inputs = embed(tokens) if embed else functional.one_hot(tokens, self.alphabet).float()
        outputs, _ = self.gru(inputs)
        return self.fc(outputs[:, -1])


class OverTime(nn.Module):
    """The last word or the mean over all words, without padding."""

    def __init__(self, stack, kind):
        super().__init__()
        self.stack, self.kind = [stack], kind

    def forward(self, x):
        is_word = self.stack[0].tokens > 0
        steps = torch.arange(x.shape[1])
        if self.kind == "last":
            last = (steps * is_word).max(1).values
            return x[torch.arange(len(x)), last]
        count = is_word.sum(1, keepdim=True).clamp(min=1)
        return (x * is_word[:, :, None]).sum(1) / count


class Outputs(nn.Module):
    """A recurrent layer without its last state."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


class Stack(nn.Module):
    """A stack of layers, from the description that an experiment contains."""

    def __init__(self, case):
        super().__init__()
        self.case, self.numbers, self.tokens = case, {}, None
        self.named = {}
        self.layers = self.sequence(case["layers"])
        # The modules are found by their names, and the list only holds their order.
        for name, module in self.named.items():
            self.add_module(name, module)

    def sequence(self, layers):
        modules = [self.module(layer) for layer in layers]
        return [module for module in modules if module is not None]

    def register(self, stem, module):
        self.numbers[stem] = self.numbers.get(stem, 0) + 1
        total = self.case["counts"].get(stem, 1)
        numbered = stem in ("conv", "norm") or total > 1
        self.named[f"{stem}{self.numbers[stem]}" if numbered else stem] = module
        return module

    def module(self, layer):
        kind, shape = layer["kind"], layer["input"]
        if kind == "dense":
            return self.register("fc", nn.Linear(shape[-1], layer["units"], bias=layer.get("bias", True)))
        if kind == "conv2d":
            options = {"stride": layer.get("stride", 1), "padding": layer.get("padding", 0)}
            return self.register("conv", nn.Conv2d(shape[0], layer["channels"], layer["size"], **options))
        if kind in ("max-pool", "avg-pool"):
            pool = nn.MaxPool2d if kind == "max-pool" else nn.AvgPool2d
            return pool(layer["size"], layer.get("stride", layer["size"]))
        if kind == "group-norm":
            return self.register("norm", nn.GroupNorm(layer["groups"], shape[0]))
        if kind == "layer-norm":
            return self.register("norm", nn.LayerNorm(shape if len(shape) == 3 else shape[-1:]))
        if kind == "embedding":
            return self.register("embedding", nn.Embedding(shape[1], layer["entries"], padding_idx=0))
        if kind in ("lstm", "gru"):
            recurrent = nn.LSTM if kind == "lstm" else nn.GRU
            return Outputs(self.register(kind, recurrent(shape[-1], layer["hidden"], batch_first=True)))
        if kind in ("last", "mean"):
            return OverTime(self, kind)
        if kind == "residual":
            return lambda x, inner=self.sequence(layer["layers"]): x + self.run(inner, x)
        return {"relu": nn.ReLU(), "gelu": nn.GELU(), "tanh": nn.Tanh(), "flatten": nn.Flatten()}[kind]

    def run(self, modules, x):
        for module in modules:
            x = module(x)
        return x

    def forward(self, x):
        self.tokens = x
        if self.case["image"]:
            x = x.reshape(-1, *self.case["image"])
        return self.run(self.layers, x)


MODELS = {
    "linear": Linear, "perceptron": Perceptron, "conv-net": ConvNet, "lstm": Lstm, "gru": Gru, "stack": Stack,
}


def tensors(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        entries = bytearray(file.read())
    for name, about in header.items():
        if name != "__metadata__":
            start, end = about["data_offsets"]
            assert about["dtype"] == "F32", name
            values = torch.frombuffer(entries[start:end], dtype=torch.float32)
            yield name, values.reshape(about["shape"])


def main():
    checkpoint, case = sys.argv[1], json.load(open(sys.argv[2], encoding="utf-8"))
    prefix = "track-0."
    state = {name[len(prefix):]: tensor for name, tensor in tensors(checkpoint) if name.startswith(prefix)}
    module = MODELS[case["kind"]](case)
    module.load_state_dict(state, strict=True)
    module.eval()
    dense = case.get("dense", case["kind"] in ("linear", "perceptron", "conv-net"))
    inputs = torch.tensor(case["inputs_of_examples"], dtype=torch.float32 if dense else torch.int64)
    labels = torch.tensor(case["labels"])
    logits = module(inputs)
    if logits.shape[1] == 1:
        losses = functional.binary_cross_entropy_with_logits(logits[:, 0], labels.float(), reduction="none")
    else:
        losses = functional.cross_entropy(logits, labels, reduction="none")
    result = {"losses": losses.tolist()}
    if case["kind"] == "stack":
        losses.mean().backward()
        result["gradients"] = {name: param.grad.flatten().tolist() for name, param in module.named_parameters()}
    print(json.dumps(result))


main()
