"""A second, plain program for the rule of every algorithm, in float64.

Reads a problem and its tracks as JSON from standard input, and writes the params of each track after
the last round. It shares no code with the library. The cohorts and the order of the examples are
those of the library, because the rules do not define them.
"""

from __future__ import annotations

import json
import sys

import numpy as np


class Device:
    """Softmax regression without intercept on the examples of one device."""

    def __init__(self, x, y, classes):
        self.x = np.array(x)
        self.y = np.eye(classes)[y]
        self.n = len(y)

    def probabilities(self, w, rows):
        z = self.x[rows] @ w
        z = np.exp(z - z.max(axis=1, keepdims=True))
        return z / z.sum(axis=1, keepdims=True)

    def loss(self, w):
        p = self.probabilities(w, slice(None))
        return -np.mean(np.log((p * self.y).sum(axis=1)))

    def gradient(self, w, rows):
        return self.x[rows].T @ (self.probabilities(w, rows) - self.y[rows]) / len(rows)


class Problem:
    def __init__(self, given):
        self.classes = given["classes"]
        self.devices = [Device(x, y, self.classes) for x, y in given["devices"]]
        self.rounds = given["rounds"]
        self.rate = given["rate"]
        self.l2 = given["l2"]
        self.groups = np.array(given["groups"])
        self.zero = np.zeros((self.devices[0].x.shape[1], self.classes))

    def train(self, member, w, mu=0.0, drift=0.0, start=None):
        """Runs local SGD from w, or from start, with a proximal term at w and a drift."""
        k, batches, _ = member
        local = (w if start is None else start).copy()
        for rows in batches:
            gradient = self.devices[k].gradient(local, rows) + self.l2 * local
            local -= self.rate * (gradient + mu * (local - w) + drift)
        return local

    def weights(self, cohort):
        return np.array([self.devices[k].n for k, *_ in cohort], dtype=float)

    def losses(self, cohort, w):
        return np.array([self.devices[k].loss(w) for k, *_ in cohort])

    def updates(self, cohort, w, **plan):
        return np.array([self.train(member, w, **plan) - w for member in cohort])


def mean(weights, updates):
    return np.tensordot(weights, updates, 1) / weights.sum()


def averaged(problem, step, **plan):
    """FedAvg whose server moves by step(mean update, state)."""
    w, state = problem.zero, {}
    for cohort in problem.rounds:
        delta = mean(problem.weights(cohort), problem.updates(cohort, w, **plan))
        w = w + step(delta, state)
    return w


def weighed(problem, share):
    """FedAvg with weights n_k share(losses, statistics of the previous round)."""
    w, before = problem.zero, None
    for cohort in problem.rounds:
        n, losses = problem.weights(cohort), problem.losses(cohort, w)
        weights = n * share(losses, before)
        centre = before["mean"] if before else None
        excess = 0.0 if centre is None else (n * np.maximum(losses - centre, 0)).sum() / n.sum()
        before = {"mean": (n * losses).sum() / n.sum(), "excess": excess}
        w = w + mean(weights, problem.updates(cohort, w))
    return w


def fedavg(problem):
    return averaged(problem, lambda delta, _: delta)


def fedprox(problem, mu):
    return averaged(problem, lambda delta, _: delta, mu=mu)


def fedavgm(problem, server_rate, momentum):
    def step(delta, state):
        state["v"] = momentum * state.get("v", 0) + delta
        return server_rate * state["v"]

    return averaged(problem, step)


def adaptive(problem, second, server_rate, beta1, tau):
    def step(delta, state):
        state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * delta
        state["v"] = second(state.get("v", tau**2), delta**2)
        return server_rate * state["m"] / (np.sqrt(state["v"]) + tau)

    return averaged(problem, step)


def fedadam(problem, beta2, **options):
    return adaptive(problem, lambda v, d: beta2 * v + (1 - beta2) * d, **options)


def fedyogi(problem, beta2, **options):
    return adaptive(problem, lambda v, d: v - (1 - beta2) * d * np.sign(v - d), **options)


def fedadagrad(problem, **options):
    return adaptive(problem, lambda v, d: v + d, **options)


def fedprox_adaptive(problem, first_mu, mu_step):
    w, mu, before, quiet = problem.zero, first_mu, None, 0
    for cohort in problem.rounds:
        n = problem.weights(cohort)
        loss = (n * problem.losses(cohort, w)).sum() / n.sum()
        w = w + mean(n, problem.updates(cohort, w, mu=mu))
        if before is not None and loss > before:
            mu, quiet = mu + mu_step, 0
        elif before is not None:
            quiet += 1
            if quiet == 5:
                mu, quiet = max(mu - mu_step, 0), 0
        before = loss
    return w


def fednova(problem):
    w = problem.zero
    for cohort in problem.rounds:
        p = problem.weights(cohort) / problem.weights(cohort).sum()
        tau = np.array([len(batches) for _, batches, _ in cohort], dtype=float)
        directions = problem.updates(cohort, w) / tau[:, None, None]
        w = w + (p @ tau) * np.tensordot(p, directions, 1)
    return w


def feddyn(problem, regularisation):
    w, h = problem.zero, 0.0
    gradients = {}
    for cohort in problem.rounds:
        n, moves = problem.weights(cohort), []
        for member in cohort:
            k = member[0]
            g = gradients.get(k, problem.zero)
            moved = problem.train(member, w, mu=regularisation, drift=-g) - w
            gradients[k] = g - regularisation * moved
            moves.append(moved)
        step = mean(n, np.array(moves))
        h = h - regularisation * len(cohort) / len(problem.devices) * step
        w = w + step - h / regularisation
    return w


def scaffold(problem, global_rate, selected=lambda cohort, w: [True] * len(cohort)):
    w, c = problem.zero, problem.zero
    controls = {}
    for drawn in problem.rounds:
        cohort = [member for member, is_in in zip(drawn, selected(drawn, w)) if is_in]
        n, moves, changes = problem.weights(cohort), [], []
        for member in cohort:
            k, batches, _ = member
            own = controls.get(k, problem.zero)
            moved = problem.train(member, w, drift=c - own) - w
            after = own - c - moved / (len(batches) * problem.rate)
            moves.append(moved)
            changes.append(after - own)
            controls[k] = after
        w = w + global_rate * mean(n, np.array(moves))
        c = c + len(cohort) / len(problem.devices) * mean(n, np.array(changes))
    return w


def q_ffl(problem, q):
    w, lipschitz = problem.zero, 1 / problem.rate
    for cohort in problem.rounds:
        n, losses = problem.weights(cohort), problem.losses(cohort, w)
        gradients = -lipschitz * problem.updates(cohort, w)
        squares = (gradients**2).sum(axis=(1, 2))
        delta = (losses**q)[:, None, None] * gradients
        h = q * losses ** (q - 1) * squares + lipschitz * losses**q
        w = w - np.tensordot(n, delta, 1) / (n @ h)
    return w


def term(problem, tilt):
    def share(losses, before):
        return np.exp(tilt * (losses - losses.max())) if before else np.ones_like(losses)

    return weighed(problem, share)


def propfair(problem, baseline, utility_floor):
    return weighed(problem, lambda losses, _: 1 / np.maximum(baseline - losses, utility_floor))


def semivred(problem, penalty):
    def share(losses, before):
        if before is None:
            return np.ones_like(losses)
        excess = np.maximum(losses - before["mean"], 0) - before["excess"]
        return np.maximum(1 + 2 * penalty * excess, 0)

    return weighed(problem, share)


def projected(values, total):
    """Returns the nearest point with non-negative entries of this sum, by bisection."""
    low, high = values.min() - total, values.max()
    for _ in range(200):
        middle = (low + high) / 2
        if np.maximum(values - middle, 0).sum() > total:
            low = middle
        else:
            high = middle
    return np.maximum(values - high, 0)


def by_lambda(problem, lambda_rate, chosen):
    """AFL or DRFA. A device with n examples is n equal devices with equal parts of its λ."""
    w = problem.zero
    parts = {k: 1.0 for k in range(len(problem.devices))}
    for t, cohort in enumerate(problem.rounds):
        n, losses = problem.weights(cohort), problem.losses(cohort, w)
        density = np.array([parts[k] for k, *_ in cohort])
        repeats = n.astype(int)
        moved = np.repeat(density + lambda_rate * losses, repeats)
        after = projected(moved, np.repeat(density, repeats).sum())
        w = w + mean(n * chosen(t, density), problem.updates(cohort, w))
        for (k, *_), first in zip(cohort, np.cumsum(repeats) - repeats):
            parts[k] = after[first]
    return w


def afl(problem, lambda_rate):
    return by_lambda(problem, lambda_rate, lambda t, density: density)


def drfa(problem, lambda_rate, units):
    def draws(t, density):
        edges = np.cumsum(density)
        drawn = [np.searchsorted(edges, unit * edges[-1], side="right") for unit in units[t]]
        return np.bincount(drawn, minlength=len(density)).astype(float)

    return by_lambda(problem, lambda_rate, draws)


def gifair(problem, rank_penalty):
    w = problem.zero
    for cohort in problem.rounds:
        losses = problem.losses(cohort, w)
        # At the first model all losses are equal, up to rounding.
        differences = losses[:, None] - losses[None, :]
        ranks = np.where(np.abs(differences) < 1e-12, 0, np.sign(differences)).sum(axis=1)
        p = problem.weights(cohort) / problem.weights(cohort).sum()
        penalty = rank_penalty * p.min() / (len(cohort) - 1)
        w = w + mean(p + penalty * ranks, problem.updates(cohort, w))
    return w


def gifair_sums(problem, rank_penalty):
    """The ranks follow from the histogram of the previous round at its edges."""
    w, edges, below = problem.zero, None, None
    places = np.array([-1.5, -0.75, 0.0, 0.75, 1.5])
    for cohort in problem.rounds:
        n, losses = problem.weights(cohort), problem.losses(cohort, w)
        ranks = np.full(len(losses), 0.5)
        if below is not None:
            ranks = np.interp(losses, edges, below)
            ranks[losses < edges[0]] = below[0] / 2
            ranks[losses >= edges[-1]] = (1 + below[-1]) / 2
        counted = None if edges is None else [n[losses < edge].sum() / n.sum() for edge in edges]
        centre = (n * losses).sum() / n.sum()
        spread = np.sqrt((n * losses**2).sum() / n.sum() - centre**2)
        # At equal losses there are no edges.
        edges, below = (centre + places * spread if spread > 1e-4 * centre else None), counted
        w = w + mean(n * (1 + rank_penalty * (2 * ranks - 1)), problem.updates(cohort, w))
    return w


def agnostic_groups(problem, lambda_rate):
    w, weight, density = problem.zero, {}, {}
    for cohort in problem.rounds:
        n, losses = problem.weights(cohort), problem.losses(cohort, w)
        groups = problem.groups[[k for k, *_ in cohort]]
        shares = np.array([density.get(group, 1.0) for group in groups])
        for group in set(groups):
            of = groups == group
            own = (n[of] * losses[of]).sum() / n[of].sum()
            density[group] = density.get(group, 1.0) * np.exp(lambda_rate * own)
            weight[group] = weight.get(group, 0.0) + n[of].sum()
        mass = sum(weight[group] * density[group] for group in weight) / sum(weight.values())
        density = {group: density[group] / mass for group in density}
        w = w + mean(n * shares, problem.updates(cohort, w))
    return w


def robust(problem, aggregate):
    w = problem.zero
    for cohort in problem.rounds:
        w = w + aggregate(problem.updates(cohort, w), problem.weights(cohort))
    return w


def median(problem):
    return robust(problem, lambda updates, _: np.median(updates, axis=0))


def trimmed_mean(problem, trim):
    def aggregate(updates, _):
        cut = int(trim * len(updates))
        return np.sort(updates, axis=0)[cut : len(updates) - cut].mean(axis=0)

    return robust(problem, aggregate)


def geometric_median(problem, iterations=3):
    def aggregate(updates, n):
        z = mean(n, updates)
        for _ in range(iterations):
            distances = np.sqrt(((updates - z) ** 2).sum(axis=(1, 2)))
            z = mean(n / np.maximum(distances, 1e-6), updates)
        return z

    return robust(problem, aggregate)


def krum(problem, liars):
    def aggregate(updates, _):
        flat = updates.reshape(len(updates), -1)
        distances = ((flat[:, None] - flat[None, :]) ** 2).sum(axis=2)
        near = len(updates) - int(liars * len(updates)) - 2
        scores = np.sort(distances, axis=1)[:, 1 : 1 + near].sum(axis=1)
        return updates[scores.argmin()]

    return robust(problem, aggregate)


def tail(problem, cohort, w, theta):
    """Returns which devices have a loss of at least η."""
    n, losses = problem.weights(cohort), problem.losses(cohort, w)
    order = np.argsort(-losses)
    kept = np.cumsum(n[order]) >= theta * n.sum() * (1 - 1e-12)
    eta = losses[order][kept.argmax()]
    return losses >= eta - 1e-12 * abs(eta)


def delta_fl(problem, theta, mu=0.0, step=lambda delta, _: delta):
    w, state = problem.zero, {}
    for cohort in problem.rounds:
        kept = [member for member, is_in in zip(cohort, tail(problem, cohort, w, theta)) if is_in]
        w = w + step(mean(problem.weights(kept), problem.updates(kept, w, mu=mu)), state)
    return w


def delta_fl_fedprox(problem, theta, mu):
    return delta_fl(problem, theta, mu=mu)


def delta_fl_fedadam(problem, theta, server_rate, beta1, beta2, tau):
    def step(delta, state):
        state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * delta
        state["v"] = beta2 * state.get("v", tau**2) + (1 - beta2) * delta**2
        return server_rate * state["m"] / (np.sqrt(state["v"]) + tau)

    return delta_fl(problem, theta, step=step)


def delta_fl_scaffold(problem, theta, global_rate):
    return scaffold(problem, global_rate, lambda cohort, w: tail(problem, cohort, w, theta))


def ditto(problem, personal_mu, selected=lambda cohort, w: [True] * len(cohort)):
    """Returns the shared model, followed by the personal models in the order of the devices."""
    w, personal = problem.zero, {}
    for drawn in problem.rounds:
        cohort = [member for member, is_in in zip(drawn, selected(drawn, w)) if is_in]
        step = mean(problem.weights(cohort), problem.updates(cohort, w))
        for k, _, batches in cohort:
            start = personal.get(k, w)
            personal[k] = problem.train((k, batches, None), w, mu=personal_mu, start=start)
        w = w + step
    return np.concatenate([w.ravel(), *(personal[k].ravel() for k in sorted(personal))])


def apfl(problem, mixing):
    """Returns the shared model, followed by the local models in the order of the devices."""
    w, own = problem.zero, {}
    for cohort in problem.rounds:
        step = mean(problem.weights(cohort), problem.updates(cohort, w))
        for k, batches, _ in cohort:
            v, local = own.get(k, w).copy(), w.copy()
            for rows in batches:
                mixture = mixing * v + (1 - mixing) * local
                device = problem.devices[k]
                v -= problem.rate * mixing * (device.gradient(mixture, rows) + problem.l2 * mixture)
                local -= problem.rate * (device.gradient(local, rows) + problem.l2 * local)
            own[k] = v
        w = w + step
    return np.concatenate([w.ravel(), *(own[k].ravel() for k in sorted(own))])


def delta_fl_ditto(problem, theta, personal_mu):
    return ditto(problem, personal_mu, lambda cohort, w: tail(problem, cohort, w, theta))


def main():
    given = json.load(sys.stdin)
    problem = Problem(given)
    params = []
    for track in given["tracks"]:
        rule = globals()[track["kind"].replace("-", "_").replace("+", "_")]
        options = track["options"]
        if track["kind"] == "drfa":
            options["units"] = track["units"]
        params.append(rule(problem, **options).ravel().tolist())
    json.dump(params, sys.stdout)


if __name__ == "__main__":
    main()
