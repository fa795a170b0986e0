"""Adapters for engines; each imports its engine when it is made."""
