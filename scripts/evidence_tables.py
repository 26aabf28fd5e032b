"""The tables of results/evidence.json.gz: statistics over several splits of the devices."""

import json
import re

# The results of the paper for FedAvg and θ = 0.8, 0.5, 0.1: mean and standard deviation over five
# seeds, in per cent.
PAPER = {
    "emnist-linear": {
        "mean": [(34.38, 0.38), (34.49, 0.26), (35.02, 0.20), (38.33, 0.48)],
        "p90": [(49.66, 0.67), (49.10, 0.24), (48.44, 0.38), (50.34, 0.95)],
    },
    "emnist-convnet": {
        "mean": [(16.64, 0.50), (16.08, 0.40), (15.49, 0.30), (16.37, 1.03)],
        "p90": [(28.46, 1.07), (26.23, 1.15), (23.69, 0.94), (25.46, 2.77)],
    },
    "sent140-linear": {
        "mean": [(34.75, 0.31), (34.41, 0.22), (35.29, 0.25), (37.79, 0.89)],
        "p90": [(46.83, 0.54), (46.44, 0.38), (46.64, 0.41), (51.39, 1.07)],
    },
    "sent140-lstm": {
        "mean": [(30.16, 0.44), (30.31, 0.33), (33.59, 2.44), (51.98, 11.81)],
        "p90": [(49.67, 3.95), (46.46, 4.39), (50.48, 8.24), (86.45, 10.95)],
    },
    "shakespeare-gru": {
        "mean": [(42.90, 0.04), (42.93, 0.05), (43.13, 0.05), (44.18, 0.12)],
        "p90": [(46.45, 0.11), (46.33, 0.10), (46.32, 0.13), (47.17, 0.14)],
    },
}
LEVELS = ["FedAvg", "θ = 0.8", "θ = 0.5", "θ = 0.1"]


def short(label):
    """Returns the column header of a track."""
    return re.sub(r"=", " = ", label.removeprefix("Δ-FL "))


def row(*cells):
    """Formats a row of a Markdown table."""
    return "| " + " | ".join(cells) + " |\n"


PAIRS = {
    "shakespeare-gru": "Shakespeare GRU", "sent140-lstm": "Sent140 LSTM", "emnist-convnet": "EMNIST ConvNet",
    "sent140-linear": "Sent140 linear", "emnist-linear": "EMNIST linear",
}
KINDS = {"exact": "exact weights", "uniform": "uniform weights", "matched": "matched passes", "tuned": "tuned"}
TRACKS = {"Δ-FL θ=0.8": "θ = 0.8", "Δ-FL θ=0.5": "θ = 0.5", "Δ-FL θ=0.1": "θ = 0.1"}


def settings_of(found):
    """Yields the pair, the kind and the statistics of each setting of the main tables."""
    for pair in PAIRS:
        for kind in KINDS:
            if setting := found["settings"].get(f"{pair}-{kind}", {}).get("{}"):
                yield pair, kind, setting


def difference(over, scale=100, digits=2, adjusted=1.0):
    """Formats a difference with its interval. Bold if its sign is the same on all splits, marked if it also
    holds after the correction for the number of comparisons."""
    if not over:
        return "–"
    text = f"{scale * over['mean']:+.{digits}f}"
    if over["interval"]:
        low, high = (f"{scale * value:+.{digits}f}" for value in over["interval"])
        text += f" [{low}, {high}]"
    if over["sign"] != "undecided":
        return f"**{text}**" + " †" * (adjusted < 0.05)
    return f"{text}, {sum(value < 0 for value in over['of_splits'].values())}/{len(over['of_splits'])} lower"


def seeds_of(setting):
    """Formats the number of splits and of runs of a setting."""
    over = setting["tracks"]["FedAvg"]["p90"]
    return f"{len(over['of_splits'])} × {over['values'] / len(over['of_splits']):.3g}"


def verdicts_table(found, figure="avg_p90"):
    """Formats the differences to FedAvg of every setting."""
    text = row("pair", "setting", "splits × seeds", "FedAvg", *TRACKS.values()) + "|---" * 7 + "|\n"
    for pair, kind, setting in settings_of(found):
        base = setting["tracks"]["FedAvg"][figure]
        holm = found["holm"].get(figure, {})
        cells = [
            difference((setting["differences"].get(track) or {}).get(figure), adjusted=holm.get(f"{pair}-{kind}: {track}", 1.0))
            for track in TRACKS
        ]
        text += row(PAIRS[pair], KINDS[kind], seeds_of(setting), f"{100 * base['mean']:.2f}", *cells)
    return text


def gains_table(found):
    """Formats the levels that lower p90 on all splits, by pair and setting."""
    text = row("pair", *KINDS.values()) + "|---" * (len(KINDS) + 1) + "|\n"
    for pair, name in PAIRS.items():
        cells = []
        for kind in KINDS:
            setting = found["settings"].get(f"{pair}-{kind}", {}).get("{}")
            differences = setting["differences"] if setting else {}
            gains = {track: of["avg_p90"] for track, of in differences.items() if of["avg_p90"]["sign"] == "lower"}
            listed = ", ".join(f"{TRACKS[track]}: {100 * gain['mean']:.2f}".replace("-", "−") for track, gain in gains.items())
            cells.append(f"{listed or 'none'} ({seeds_of(setting)})" if setting else "–")
        text += row(name, *cells)
    return text


def holds_table(found):
    """Formats the decided differences to FedAvg: the settings in which each statement holds on all splits."""
    text = row("statement", "holds on splits 1–5 of (splits × seeds)", "also after the last round") + "|---" * 3 + "|\n"
    for figure, last, title in [("avg_p90", "p90", "p90"), ("avg_mean", "mean", "the mean")]:
        for sign, verb in [("lower", "lowers"), ("higher", "raises")]:
            for track, name in TRACKS.items():
                where, also = {}, {}
                for pair, kind, setting in settings_of(found):
                    difference = setting["differences"].get(track)
                    if difference and difference[figure]["sign"] == sign:
                        where.setdefault(pair, []).append(f"{kind} {seeds_of(setting)}")
                        if difference[last]["sign"] == sign:
                            also.setdefault(pair, []).append(kind)
                if where:
                    cells = ["; ".join(f"{PAIRS[pair]}: {', '.join(kinds)}" for pair, kinds in of.items()) for of in [where, also]]
                    text += row(f"{name} {verb} {title}", cells[0], "all" if settings_in(also) == settings_in(where) else cells[1] or "none")
    return text


def settings_in(by_pair):
    """Returns the number of settings of all pairs."""
    return sum(map(len, by_pair.values()))


def mean_verdicts_table(found):
    """Formats the differences to FedAvg in the mean."""
    return verdicts_table(found, "avg_mean")


def deviation_verdicts_table(found):
    """Formats the differences to FedAvg in the standard deviation over devices."""
    return verdicts_table(found, "avg_std")


def worst_tenth_verdicts_table(found):
    """Formats the differences to FedAvg in the mean of the worst tenth of the devices."""
    return verdicts_table(found, "avg_worst_tenth")


def last_verdicts_table(found):
    """Formats the differences to FedAvg in p90 after the last round."""
    return verdicts_table(found, "p90")


def again_table(found):
    """Formats the decided differences in p90 of splits 1 to 5 that were tested again on splits 6 to 10."""
    titles = "splits 1–5", "splits 6–10", "splits 6–10, last round"
    text = row("pair", "setting", "level", *titles) + "|---" * 6 + "|\n"
    for pair, kind, first in settings_of(found):
        for track, level in TRACKS.items():
            adjusted = found["holm"]["again"].get(f"{pair}-{kind}: {track}")
            if adjusted is not None:
                second = found["settings"][f"{pair}-{kind}-others"]["{}"]
                before, after = (setting["differences"][track] for setting in [first, second])
                cells = [
                    f"{difference(before['avg_p90'])} ({seeds_of(first)})",
                    f"{difference(after['avg_p90'], adjusted=adjusted)} ({seeds_of(second)})", difference(after["p90"]),
                ]
                text += row(PAIRS[pair], KINDS[kind], level, *cells)
    return text


def other_splits_table(found):
    """Formats the differences in p90 on splits 1 to 5 and on splits 6 to 10, for the settings trained on both."""
    text = row("pair", "setting", "splits", "splits × seeds", "FedAvg", *TRACKS.values()) + "|---" * 8 + "|\n"
    for pair, kind, first in settings_of(found):
        second = found["settings"].get(f"{pair}-{kind}-others", {}).get("{}")
        for splits, setting in [("1–5", first), ("6–10", second)] if second else []:
            again = found["holm"]["again"] if setting is second else {}
            cells = [
                difference(setting["differences"][track]["avg_p90"], adjusted=again.get(f"{pair}-{kind}: {track}", 1.0))
                for track in TRACKS
            ]
            base = f"{100 * setting['tracks']['FedAvg']['avg_p90']['mean']:.2f}"
            text += row(PAIRS[pair], KINDS[kind], splits, seeds_of(setting), base, *cells)
    return text


def last_round_table(found):
    """Formats figures after the last round beside those of the paper."""
    text = row("pair", "track", "p90", "± splits", "± seeds", "paper", "mean", "± splits", "± seeds", "paper") + "|---" * 10 + "|\n"
    for pair, kind, setting in settings_of(found):
        if kind != "exact":
            continue
        for track, figures in setting["tracks"].items():
            cells = []
            for figure in ["p90", "mean"]:
                over = figures[figure]
                reported = PAPER[pair][figure][LEVELS.index(short(track))]
                deviations = [f"{100 * over[key]:.2f}" if over[key] is not None else "–" for key in ["over", "within"]]
                cells += [f"{100 * over['mean']:.2f}", *deviations, f"{reported[0]:.2f} ± {reported[1]:.2f}"]
            text += row(PAIRS[pair], short(track), *cells)
    return text


DISPERSION = {
    "std": ("deviation over devices", 100, 2), "worst_tenth": ("worst tenth", 100, 2), "gini": ("Gini", 1, 4),
    "small_std": ("deviation, small devices", 100, 2), "small_worst_tenth": ("worst tenth, small devices", 100, 2),
    "small_gini": ("Gini, small devices", 1, 4),
    "train_loss_std": ("deviation of train losses", 1, 3), "train_loss_worst_tenth": ("worst tenth of train losses", 1, 3),
}


def dispersion_table(found):
    """Formats the dispersion at θ = 0.5 and its difference to FedAvg."""
    chosen = [(pair, setting) for pair, kind, setting in settings_of(found) if kind == "exact"]
    text = row("", *(PAIRS[pair] for pair, _ in chosen)) + "|---" * (len(chosen) + 1) + "|\n"
    for figure, (title, scale, digits) in DISPERSION.items():
        cells = []
        for _, setting in chosen:
            base = setting["tracks"]["FedAvg"][figure]["mean"]
            change = setting["differences"]["Δ-FL θ=0.5"][figure]
            cells.append(f"{scale * base:.{digits}f}: {difference(change, scale, digits)}")
        text += row(title, *cells)
    return text


def contrasts_table(found):
    """Formats the comparisons between settings."""
    text = row("comparison", "p90", "mean", "deviation over devices") + "|---" * 4 + "|\n"
    for name, contrast in found["contrasts"].items():
        pair, what = name.split(": ", 1)
        if "T_η" in what:
            continue  # These have a table of their own.
        figures = contrast["figures"]
        text += row(f"{PAIRS[pair]}: {what.replace('Δ-FL ', '').replace('=', ' = ')}", *(difference(figures[f]) for f in ["avg_p90", "avg_mean", "avg_std"]))
    return text


def same_cost_table(found):
    """Formats the differences in p90 between each level and FedAvg with as many devices as its tail."""
    text = row("pair", "splits × seeds", *TRACKS.values()) + "|---" * 5 + "|\n"
    for pair, name in PAIRS.items():
        found_of = [found["contrasts"].get(f"{pair}: {track} − FedAvg at its cost") for track in TRACKS]
        if any(found_of):
            figures = [contrast and contrast["figures"]["avg_p90"] for contrast in found_of]
            runs = next(f"{len(f['of_splits'])} × {f['values'] / len(f['of_splits']):.3g}" for f in figures if f)
            text += row(name, runs, *map(difference, figures))
    return text


def period_table(found):
    """Formats the differences to FedAvg and to T_η = 1 for each T_η."""
    text = row("pair", "T_η", "rule", "p90 − FedAvg", "p90 − T_η = 1", "mean − T_η = 1", "empty tails", "searches") + "|---" * 8 + "|\n"
    for pair in ["emnist-linear", "sent140-linear"]:
        setting = found["settings"].get(f"{pair}-t-eta", {}).get("{}")
        for track, figures in (setting["differences"] if setting else {}).items():
            every, rule = re.search(r"T_η=(\d+) η=(\w+)", track).groups()
            to_one = found["contrasts"].get(f"{pair}: {track} − T_η=1", {"figures": {}})["figures"]
            cells = [difference(figures["avg_p90"]), *(difference(to_one.get(f)) for f in ["avg_p90", "avg_mean"])]
            counts = [f"{setting[count][track]:.0f}" for count in ["empty", "searches"]]
            text += row(PAIRS[pair], every, "–" if every == "1" else rule, *cells, *counts)
    return text


def groups_table(found, pair, kind, title, name):
    """Formats p90 and mean by the value of an axis."""
    text = row(title, "track", "p90", "± splits", "mean", "± splits") + "|---" * 6 + "|\n"
    for key, group in sorted(found["settings"].get(f"{pair}-{kind}", {}).items()):
        for track, figures in group["tracks"].items():
            cells = [f"{100 * figures[f]['mean']:.2f}" if part == "mean" else f"{100 * (figures[f]['over'] or 0):.2f}" for f in ["avg_p90", "avg_mean"] for part in ["mean", "over"]]
            text += row(name(json.loads(key)), short(track), *cells)
    return text


def writers_table(found):
    """Formats the effect of the number of train writers."""
    count = {0: "201", 0.5: "101", 0.75: "51"}

    def table(pair):
        return groups_table(found, pair, "writers", "train writers", lambda axes: count[axes["data.split.validation"]])

    return "\n".join(f"{PAIRS[pair]}:\n\n{table(pair)}" for pair in ["emnist-linear", "emnist-convnet"])


ONE_HOT = {
    "one-hot-rates": "one-hot, 600 rounds", "one-hot-others": "one-hot, 600 rounds", "one-hot-longer": "one-hot, 1200 rounds",
    "one-hot-splits": "one-hot, 600 rounds, splits 2–5", "embedding-rates": "embedding, 600 rounds",
}


def one_hot_table(found):
    """Formats the runs on Shakespeare with other rates, rounds, inputs and outputs."""
    text = row("inputs", "γ₀", "track", "seeds", "mean", "p90", "paper: mean", "p90") + "|---" * 8 + "|\n"
    for kind, title in ONE_HOT.items():
        for key, group in sorted(found["settings"].get(f"shakespeare-gru-{kind}", {}).items()):
            rate = json.loads(key).get("local.learning_rate", 0.1)
            for track, figures in group["tracks"].items():
                of_paper = [f"{PAPER['shakespeare-gru'][figure][LEVELS.index(short(track))][0]:.2f}" for figure in ["mean", "p90"]]
                cells = [f"{100 * figures[figure]['mean']:.2f}" for figure in ["mean", "p90"]]
                text += row(title, f"{rate:g}", short(track), str(figures["p90"]["values"]), *cells, *of_paper)
    return text


def head_table(found):
    """Formats θ = 0.1 with one-hot inputs by round, with 53 and with the 128 outputs of the released code."""
    settings = [found["settings"].get(f"shakespeare-gru-{kind}", {}) for kind in ["one-hot-rates", "one-hot-128"]]
    [lines, wide] = [of.get(key, {"curves": {}})["curves"] for of, key in zip(settings, ['{"local.learning_rate": 0.1}', "{}"])]
    text = row("round", "mean, 53 outputs", "128 outputs", "p90, 53 outputs", "128 outputs") + "|---" * 5 + "|\n"
    for track in set(lines) & set(wide):
        after = {t: values for t, *values in wide[track]}
        for t, *values in lines[track]:
            if t in after and t > 0:
                text += row(str(t), *(f"{100 * of[figure]:.2f}" for figure in [0, 1] for of in [values, after[t]]))
    return text
