"""Stands in for SGLang's settings, which its sampling masks ask before a request begins."""

envs = None
