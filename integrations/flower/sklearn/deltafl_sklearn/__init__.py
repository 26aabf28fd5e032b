"""Δ-FL with scikit-learn, in Flower."""
