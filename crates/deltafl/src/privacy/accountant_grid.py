"""Writes accountant_grid.csv: epsilon of dp-accounting for compositions of Gaussians.

Usage: pip install dp-accounting==0.6.0; python3 accountant_grid.py > accountant_grid.csv

The first half has no sampling. The second half has cohorts drawn without replacement; its noise
multiplier is relative to the distance between the answers of two devices.
"""

import dp_accounting as dp
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

ORDERS = [order for order in DEFAULT_RDP_ORDERS if order <= 256]


def epsilon(multiplier, cohort, devices, rounds, delta):
    event = dp.GaussianDpEvent(multiplier)
    relation = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    if cohort < devices:
        event = dp.SampledWithoutReplacementDpEvent(devices, cohort, event)
        relation = dp.NeighboringRelation.REPLACE_ONE
    accountant = RdpAccountant(ORDERS, neighboring_relation=relation)
    accountant.compose(dp.SelfComposedDpEvent(event, rounds))
    return accountant.get_epsilon(delta)


cases = [
    (multiplier, 1, 1, rounds, delta)
    for multiplier in [0.5, 1.0, 2.0, 5.0, 20.0]
    for rounds in [1, 10, 100, 1000, 5000]
    for delta in [1e-10, 1e-7, 1e-5, 1e-3]
] + [
    (multiplier, cohort, devices, rounds, delta)
    for multiplier in [0.5, 1.0, 2.0, 4.0, 10.0]
    for cohort, devices in [(100, 404), (100, 10_000), (1000, 100_000), (50, 1_000_000), (1000, 20_000)]
    for rounds in [10, 1000]
    for delta in [1e-8, 1e-5]
]
print("multiplier,cohort,devices,rounds,delta,epsilon")
for case in cases:
    print(",".join(map(repr, case)), repr(float(epsilon(*case))), sep=",")
