"""Stands in for SGLang's probabilities of a target; the bench gives them."""


def build_speculative_verify_target_probs(*_, **__):
    raise NotImplementedError


def is_dflash_sampling_verify_available():
    return False
