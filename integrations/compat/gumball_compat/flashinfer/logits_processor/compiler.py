"""From operators to fewer: types and rules are checked, then neighbours are fused until no rule fits."""

from __future__ import annotations

from .fusion_rules import FusionRule, get_default_fusion_rules
from .op import Op
from .types import TensorType
from .validators import CompileError, ValidityCheck, get_default_validity_checks

__all__ = ["CompileError", "Compiler", "compile_pipeline"]


class Compiler:
    """Checks and fuses operators, by the default rules and the registered ones."""

    def __init__(self) -> None:
        self.fusion_rules: list[FusionRule] = []
        self.validity_checks: list[ValidityCheck] = get_default_validity_checks()
        for rule in get_default_fusion_rules():
            self.register_fusion_rule(rule)

    def register_fusion_rule(self, rule: FusionRule) -> None:
        """Adds a rule, after the others of its priority."""
        self.fusion_rules.append(rule)
        self.fusion_rules.sort(key=lambda known: -known.prio)

    def register_validity_check(self, check: ValidityCheck) -> None:
        """Adds a check, after the others."""
        self.validity_checks.append(check)

    def compile(self, ops: list[Op]) -> list[Op]:
        """The fused operators. Raises CompileError for operators that do not fit, or break a rule."""
        if not ops:
            raise CompileError("Cannot compile empty operator list")
        self._check_types(ops)
        for check in self.validity_checks:
            check(list(ops))
        return self._fused(list(ops))

    def _check_types(self, ops: list[Op]) -> None:
        current = ops[0].IN
        if current not in (TensorType.LOGITS, TensorType.PROBS):
            name = type(ops[0]).__name__
            raise CompileError(
                f"First operator ({name}) cannot accept standard pipeline inputs. Expected LOGITS or PROBS, but operator "
                f"accepts: {current}"
            )
        for i, op in enumerate(ops):
            if op.IN != current:
                raise CompileError(
                    f"Type mismatch at operator {i} ({type(op).__name__}). Expected input type: {current}, but operator "
                    f"accepts: {op.IN}. Previous operator output: {current}"
                )
            current = op.OUT

    def _rule_for(self, ops: list[Op], start: int) -> FusionRule | None:
        """The first rule that fits what begins at an operator."""
        for rule in self.fusion_rules:
            window = ops[start : start + len(rule.pattern)]
            fits = len(window) == len(rule.pattern) and all(map(isinstance, window, rule.pattern))
            if fits and rule.guard(window):
                return rule
        return None

    def _fused(self, ops: list[Op]) -> list[Op]:
        i = 0
        while i < len(ops):
            if (rule := self._rule_for(ops, i)) is None:
                i += 1
                continue
            end = i + len(rule.pattern)
            ops[i:end] = [rule.build(ops[i:end])]
            # The new operator may fit after the one before it.
            i = max(i - 1, 0)
        return ops


def compile_pipeline(
    ops: list[Op],
    custom_fusion_rules: list[FusionRule] | None = None,
    custom_validity_checks: list[ValidityCheck] | None = None,
) -> list[Op]:
    """The fused operators, by the default rules and the caller's."""
    compiler = Compiler()
    for rule in custom_fusion_rules or []:
        compiler.register_fusion_rule(rule)
    for check in custom_validity_checks or []:
        compiler.register_validity_check(check)
    return compiler.compile(ops)
