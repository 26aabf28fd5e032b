"""Computes the degree k and the threshold t of the k-regular graphs with integers only.

Prints a row per (n, c, d): (k, t) against an active server and against an honest-but-curious one. The
conditions are those of src/graph/parameters.rs. Probabilities are compared as integers, without rounding.
"""

from math import comb


def tail(population, marked, drawn, at_least):
    """The number of draws with this many marked elements."""
    top = min(marked, drawn)
    return sum(comb(marked, i) * comb(population - marked, drawn - i) for i in range(max(at_least, 0), top + 1))


def rare(n, marked, drawn, at_least, bits, graphs=1):
    """Returns True if graphs * n * P[Hypergeometric(n - 1, marked, drawn) >= at_least] <= 2^-bits."""
    return graphs * n * tail(n - 1, marked, drawn, at_least) << bits <= comb(n - 1, drawn)


def active(n, c, d):
    """Returns (k, t) against a malicious server that sees d + 1 graphs, or None if only the full graph is safe."""
    for k in range(2, min(512, n - 2) + 1, 2):
        if k + k // 2 >= n:
            return None
        for t in range(k // 2 + 1, k + 1):
            if rare(n, c, k, 2 * t - (k + 1), 41, d + 1) and rare(n, c, k // 2, t - k // 2 - 1, 41, d + 1):
                if rare(n, d, k, k - t + 1, 20):
                    return k, t
                break


def connected(n, removed, k):
    """Returns True if n(n-1)/2 * P[k given devices are all removed] <= 2^-41."""
    return n * (n - 1) // 2 * comb(removed, k) << 41 <= comb(n, k)


def curious(n, c, d):
    """Returns (k, t) against an honest-but-curious server, or None."""
    for k in range(2, min(512, n - 2) + 1, 2):
        if not connected(n, c + d, k):
            continue
        for t in range(1, k + 1):
            if rare(n, c, k, t, 41):
                if rare(n, d, k, k - t + 1, 20):
                    return k, t
                break


def show(pair):
    """Formats a pair as a Rust expression."""
    return f"Some(({pair[0]}, {pair[1]}))" if pair else "None"


if __name__ == "__main__":
    for n in (100, 200, 301, 500, 1000, 2000):
        for colluding, dropping in ((5, 5), (5, 20)):
            c, d = n * colluding // 100, n * dropping // 100
            print(f"({n}, {c}, {d}, {show(active(n, c, d))}, {show(curious(n, c, d))}),")
    # Accomplices by number, and more of them than a sparse graph tolerates.
    for n, c, d in ((1000, 10, 100), (400, 190, 80)):
        print(f"({n}, {c}, {d}, {show(active(n, c, d))}, {show(curious(n, c, d))}),")
