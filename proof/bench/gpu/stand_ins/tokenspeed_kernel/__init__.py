"""Stands in for TokenSpeed's outermost module, which imports every operator; the bench wants sampling alone."""
