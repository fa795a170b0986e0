"""Stands in for FlashInfer's outermost module, which imports every operator; the bench wants `sampling` alone."""
