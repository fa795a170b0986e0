"""Stands in for the registry of sampling operators; the bench calls those in `triton` directly."""
