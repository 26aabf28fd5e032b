"""A Flower app that trains Δ-FL with scikit-learn."""
