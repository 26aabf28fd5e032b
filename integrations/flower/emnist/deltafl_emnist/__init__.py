"""A Flower app that trains Δ-FL on handwriting."""
