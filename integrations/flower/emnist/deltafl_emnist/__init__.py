"""Δ-FL on handwriting, in Flower."""
