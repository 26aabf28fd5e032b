"""Writes discrete-gaussian.json: P(|X| <= m) of the discrete Gaussian, times 2^128, rounded down.

Usage: python3 discrete_gaussian.py > discrete-gaussian.json     (needs mpmath)
"""

import json
from math import isqrt

from mpmath import exp, floor, mp, mpf

mp.prec = 1200


def probabilities(variance):
    sigma = isqrt(variance)
    weights = [exp(-mpf(m * m) / (2 * variance)) for m in range(45 * sigma + 45)]
    total = weights[0] + 2 * sum(weights[1:])
    kept = sorted({0, 1, 2, 3, sigma, 2 * sigma, 5 * sigma, 8 * sigma})
    out, running, at = [], mpf(0), 0
    for m in range(kept[-1] + 1):
        running += weights[m] if m == 0 else 2 * weights[m]
        if m in kept:
            out.append([m, format(int(floor(running / total * 2**128)), "032x")])
    return out


cases = [{"variance": v, "probabilities": probabilities(v)} for v in [1, 2, 3, 16, 100, 113, 1000, 2025, 65536]]
print(json.dumps(cases, indent=1))
