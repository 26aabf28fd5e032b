"""Loads a checkpoint into torch modules with load_state_dict and computes the loss of each example.

    python3 load.py CHECKPOINT CASE.json

Prints the losses as JSON, one per example. The program parses the safetensors format itself: a length,
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


MODELS = {"linear": Linear, "perceptron": Perceptron, "conv-net": ConvNet, "lstm": Lstm, "gru": Gru}


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
    dense = case["kind"] in ("linear", "perceptron", "conv-net")
    inputs = torch.tensor(case["inputs_of_examples"], dtype=torch.float32 if dense else torch.int64)
    labels = torch.tensor(case["labels"])
    with torch.no_grad():
        logits = module(inputs)
        if logits.shape[1] == 1:
            losses = functional.binary_cross_entropy_with_logits(logits[:, 0], labels.float(), reduction="none")
        else:
            losses = functional.cross_entropy(logits, labels, reduction="none")
    print(json.dumps(losses.tolist()))


main()
