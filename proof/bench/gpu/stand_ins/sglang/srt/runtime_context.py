"""Stands in for SGLang's settings of a run."""


def get_spec():
    raise NotImplementedError
