"""Statistics of `scripts/evidence`: figures of each run, over splits and seeds, and paired differences."""

import array
import ast
import json
import math
import statistics
import struct
import zipfile

def read_npz(path):
    """Reads the arrays of a file as nested lists, without numpy."""
    found = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            data = archive.read(name)
            (length,) = struct.unpack("<H", data[8:10])
            header, body = ast.literal_eval(data[10 : 10 + length].decode()), data[10 + length :]
            if header["descr"].startswith("<U"):
                found[name.removesuffix(".npy")] = body.decode("utf-32-le")
                continue
            values = array.array({"<u2": "H", "<u4": "I", "<f4": "f"}[header["descr"]], body).tolist()
            for size in reversed(header["shape"][1:]):
                values = [values[i : i + size] for i in range(0, len(values), size)]
            found[name.removesuffix(".npy")] = values
    return found


PERCENTILES = [20, 50, 60, 80, 90, 95]


def percentile(values, tau):
    """Returns a percentile of equally weighted values by linear interpolation."""
    ordered = sorted(values)
    rank = tau / 100 * (len(ordered) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (rank - below) * (ordered[above] - ordered[below])


def dispersion(values):
    """Returns the standard deviation, the mean of the worst tenth and the Gini coefficient."""
    ordered, n = sorted(values), len(values)
    left, worst = 0.1 * n, 0.0
    for value in reversed(ordered):
        share = min(1.0, left)
        worst += share * value
        left -= share
        if left <= 0:
            break
    ranked = math.fsum((2 * j - n - 1) * value for j, value in enumerate(ordered, 1))
    return {
        "std": statistics.pstdev(values), "worst_tenth": worst / (0.1 * n),
        "gini": ranked / (n * math.fsum(ordered)) if math.fsum(ordered) > 0 else 0.0,
    }


def of_errors(errors, examples):
    """Returns the figures of the errors of test devices."""
    middle = statistics.median(examples)
    small = [error for error, n in zip(errors, examples) if n < middle]
    return {
        "mean": statistics.fmean(errors), **{f"p{tau}": percentile(errors, tau) for tau in PERCENTILES}, **dispersion(errors),
        **{f"small_{name}": value for name, value in dispersion(small).items()},
    }


def of_losses(losses, examples):
    """Returns the figures of the losses of train devices: mean and percentiles weighted by examples."""
    order = sorted(range(len(losses)), key=lambda k: losses[k])
    total, figures = sum(examples), {}
    for tau in PERCENTILES:
        reached = 0
        for k in order:
            reached += examples[k]
            if 100 * reached >= tau * total:
                figures[f"train_loss_p{tau}"] = losses[k]
                break
    figures["train_loss_mean"] = math.fsum(x * n for x, n in zip(losses, examples)) / total
    return figures | {f"train_loss_{name}": value for name, value in dispersion(losses).items()}


def figures(arrays, i, track, rounds):
    """Returns the figures of a track of a point.

    `avg_…` is averaged over the second half of the rounds, from one tenth of the rounds to the next.
    """
    examples = arrays[f"{i}_test_examples"]
    last = rounds[-1]
    later = [wrong for wrong, t in zip(arrays[f"{i}_wrong"][track], rounds) if 2 * t >= last and 10 * t % last == 0]
    each = [of_errors([w / n for w, n in zip(wrong, examples)], examples) for wrong in later]
    averaged = {f"avg_{name}": statistics.fmean(e[name] for e in each) for name in ["mean", "p90", "std", "worst_tenth"]}
    return each[-1] | averaged | of_losses(arrays[f"{i}_loss"][track], arrays[f"{i}_train_examples"])


def curve(arrays, i, track, rounds):
    """Returns the round, the mean error and the 90th percentile of each evaluation of a track."""
    examples = arrays[f"{i}_test_examples"]
    found = []
    for t, wrong in zip(rounds, arrays[f"{i}_wrong"][track]):
        errors = [w / n for w, n in zip(wrong, examples)]
        found.append((t, statistics.fmean(errors), percentile(errors, 90)))
    return found


# The 97.5th percentiles of Student's t distribution.
T_QUANTILES = [12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139]


def two_sided_p(t, freedom):
    """Returns the probability that |T| exceeds |t|, for Student's T with an even or odd number of degrees of freedom.

    The distribution function is a finite sum over powers of cos(atan(t/√freedom)).
    """
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    term, total = (1.0 if freedom % 2 == 0 else cosine), 0.0
    for k in range(freedom % 2 + 1, freedom, 2):
        total += term
        term *= k / (k + 1) * cosine**2
    inside = sine * total if freedom % 2 == 0 else 2 / math.pi * (angle + sine * total)
    return max(0.0, 1.0 - inside)


def holm(values):
    """Returns p-values that are adjusted for their number, by Holm's method."""
    adjusted, largest = {}, 0.0
    for place, name in enumerate(sorted(values, key=values.get)):
        largest = max(largest, min(1.0, (len(values) - place) * values[name]))
        adjusted[name] = largest
    return adjusted


def over_splits(by_split):
    """Returns mean, deviation over splits, deviation within splits, the interval and the sign.

    `by_split` lists the values of the seeds of each split.
    """
    means = [statistics.fmean(values) for values in by_split.values()]
    within = [statistics.variance(values) for values in by_split.values() if len(values) > 1]
    found = {
        "mean": statistics.fmean(means), "of_splits": dict(zip(map(str, by_split), means)),
        "over": statistics.stdev(means) if len(means) > 1 else None,
        "within": math.sqrt(statistics.fmean(within)) if within else None,
        "values": sum(map(len, by_split.values())), "interval": None, "p": None, "sign": "undecided",
    }
    if len(means) > 1:
        half = T_QUANTILES[len(means) - 2] * found["over"] / math.sqrt(len(means))
        found["interval"] = [found["mean"] - half, found["mean"] + half]
        spread = found["over"] / math.sqrt(len(means))
        found["p"] = two_sided_p(found["mean"] / spread, len(means) - 1) if spread > 0 else float(found["mean"] == 0)
        for sign, all_of in [("lower", all(m < 0 for m in means)), ("higher", all(m > 0 for m in means))]:
            if all_of and found["interval"][0] * found["interval"][1] > 0:
                found["sign"] = sign
    return found


def read_setting(path):
    """Returns the figures by group of the other axes, track, split and seed, and the counts of η."""
    arrays = read_npz(path)
    groups = {}
    for i, point in enumerate(json.loads(arrays["points"])):
        values = dict(point["values"])
        seed, split = values.pop("seeds"), values.pop("data.split.seed")
        new = {"tracks": {}, "curves": {}, "empty": {}, "searches": {}}
        group = groups.setdefault(json.dumps(values, sort_keys=True), new)
        group["compute"] = point["compute"]
        for t, track in enumerate(point["tracks"]):
            group["tracks"].setdefault(track, {})[split, seed] = figures(arrays, i, t, point["rounds"])
            group["curves"].setdefault(track, []).append(curve(arrays, i, t, point["rounds"]))
            for count in ["empty", "searches"]:
                group[count].setdefault(track, []).append(point[count][t])
    return groups


def compared(after, before):
    """Returns the differences of all figures between two tracks, paired by split and seed."""
    pairs = sorted(set(after) & set(before))
    if not pairs:
        return None
    found = {}
    for name in after[pairs[0]]:
        by_split = {}
        for split, seed in pairs:
            by_split.setdefault(split, []).append(after[split, seed][name] - before[split, seed][name])
        found[name] = over_splits(by_split)
    return found


def summarised(track):
    """Returns the statistics of all figures of a track."""
    found = {}
    for name in next(iter(track.values())):
        by_split = {}
        for (split, _), values in sorted(track.items()):
            by_split.setdefault(split, []).append(values[name])
        found[name] = over_splits(by_split)
        del found[name]["sign"], found[name]["interval"], found[name]["p"]
    return found


def averaged(curves):
    """Returns a curve averaged over runs, or `None` if it has no evaluation in the first half of the rounds."""
    rounds = [t for t, _, _ in curves[0]]
    if any([t for t, _, _ in other] != rounds for other in curves) or 2 * rounds[0] >= rounds[-1]:
        return None
    return [[t, *(statistics.fmean(c[j][k] for c in curves) for k in [1, 2])] for j, t in enumerate(rounds)]


def contrasts(pairs, cohorts):
    """Returns the comparisons between settings: name, (setting, group, track) after and before."""
    found = {}
    for pair in pairs:
        base = (f"{pair}-exact", "{}")
        for kind in ["uniform", "matched", "tuned"]:
            for track in ["FedAvg", "Δ-FL θ=0.8", "Δ-FL θ=0.5", "Δ-FL θ=0.1"]:
                found[f"{pair}: {track}, {kind} − exact"] = ((f"{pair}-{kind}", "{}", track), (*base, track))
        if pair in cohorts:
            for level in [0.8, 0.5, 0.1]:
                group = json.dumps({"cohort": int(level * cohorts[pair])})
                track = f"Δ-FL θ={level}"
                fewer = (f"{pair}-same-cost", group, "FedAvg")
                found[f"{pair}: {track} − FedAvg at its cost"] = ((*base, track), fewer)
                found[f"{pair}: FedAvg, cohort of {int(level * cohorts[pair])} − of {cohorts[pair]}"] = (fewer, (*base, "FedAvg"))
        others = ((f"{pair}-{kind}-others", "{}", "FedAvg") for kind in ["uniform", "exact"])
        found[f"{pair}: FedAvg, uniform − exact, splits 6–10"] = tuple(others)
        uniform = (f"{pair}-uniform", "{}", "FedAvg")
        found[f"{pair}: FedAvg, uniform − Δ-FL θ=0.5, exact"] = (uniform, (*base, "Δ-FL θ=0.5"))
        for track in ["FedAvg", "Δ-FL θ=0.5"]:
            half, full = ((f"{pair}-writers", json.dumps({"data.split.validation": share}), track) for share in [0.5, 0.0])
            found[f"{pair}: {track}, 201 − 101 train writers"] = (full, half)
        if pair == "emnist-convnet":  # The paper has its largest gain here, at θ = 0.5.
            for kind in ["exact", "matched"]:
                for other in ["Δ-FL θ=0.8", "Δ-FL θ=0.1"]:
                    sides = ((f"{pair}-{kind}", "{}", track) for track in ["Δ-FL θ=0.5", other])
                    found[f"{pair}: Δ-FL θ=0.5 − {other}, {kind}"] = tuple(sides)
        for rate in [0.1, 0.2]:
            one_hot = (f"{pair}-one-hot-splits", json.dumps({"local.learning_rate": rate}), "Δ-FL θ=0.1")
            found[f"{pair}: Δ-FL θ=0.1, one-hot at γ₀={rate} − embedding at 0.1, splits 2–5"] = (one_hot, (*base, "Δ-FL θ=0.1"))
        for rule in ["fixed", "watched"]:
            for every in [5, 20, 50, 100]:
                track = f"Δ-FL θ=0.5 T_η={every} η={rule}"
                periods = ((f"{pair}-t-eta", "{}", of) for of in [track, "Δ-FL θ=0.5 T_η=1 η=watched"])
                found[f"{pair}: {track} − T_η=1"] = tuple(periods)
    return found


# The settings and figures of the main tables. The differences of one table are a family of comparisons.
MAIN_KINDS = ["exact", "uniform", "matched", "tuned"]
FAMILIES = ["avg_p90", "avg_mean", "p90"]


def families(settings, pairs):
    """Returns p-values that are adjusted by Holm's method, for each main table and for its second look (`again`)."""
    found = {}
    for figure in FAMILIES:
        values = {}
        for name in [f"{pair}-{kind}" for pair in pairs for kind in MAIN_KINDS]:
            for track, difference in settings.get(name, {}).get("{}", {"differences": {}})["differences"].items():
                if difference and difference[figure]["p"] is not None:
                    values[f"{name}: {track}"] = difference[figure]["p"]
        found[figure] = holm(values)
    # The decided differences in p90 that were trained again on other splits.
    again = {}
    for name in [f"{pair}-{kind}" for pair in pairs for kind in MAIN_KINDS]:
        first, second = (settings.get(of, {}).get("{}", {"differences": {}})["differences"] for of in [name, f"{name}-others"])
        for track in second:
            if first[track]["avg_p90"]["sign"] != "undecided":
                again[f"{name}: {track}"] = second[track]["avg_p90"]["p"]
    found["again"] = holm(again)
    return found


def all_statistics(folder, pairs, cohorts):
    """Returns the statistics of all settings and the comparisons between them."""
    settings = {path.stem: read_setting(path) for path in sorted(folder.glob("*.npz"))}
    found = {"settings": {}, "contrasts": {}}
    for name, groups in settings.items():
        for key, group in groups.items():
            tracks = group["tracks"]
            base = "FedAvg" if "FedAvg" in tracks else None
            found["settings"].setdefault(name, {})[key] = {
                "compute": group["compute"],
                "tracks": {track: summarised(values) for track, values in tracks.items()},
                "differences": {t: compared(v, tracks[base]) for t, v in tracks.items() if base and t != base},
                "empty": {t: statistics.fmean(c) for t, c in group["empty"].items()},
                "searches": {t: statistics.fmean(c) for t, c in group["searches"].items()},
            }
            curves = {t: line for t, c in group["curves"].items() if (line := averaged(c))}
            if curves:
                found["settings"][name][key]["curves"] = curves
    for name, ends in contrasts(pairs, cohorts).items():
        sides = [settings.get(setting, {}).get(key, {}).get("tracks", {}).get(track) for setting, key, track in ends]
        if all(sides) and (difference := compared(*sides)):
            found["contrasts"][name] = {"sides": ends, "figures": difference}
    found["holm"] = families(found["settings"], pairs)
    return found


def rounded(value):
    """Returns a nested value with nine significant digits."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(inner) for inner in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value
