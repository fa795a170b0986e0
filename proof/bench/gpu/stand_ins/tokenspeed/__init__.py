"""Stands in for TokenSpeed's outermost module; the bench wants its sampling backend alone."""
