"""What of a part is measured."""

from dataclasses import dataclass

import plan

# Of a run's time, the part that compiling for Triton may take.
COMPILE = 0.4


@dataclass
class Asked:
    """What of a part is measured: vocabularies and tasks, all of them if none are named, and rows."""

    part: str = "all"
    vocabs: tuple | None = None
    rows: tuple = plan.ROWS
    tasks: tuple | None = None
    likes: tuple = plan.LIKES
    # Ways that are left out, as engine:task.
    without: tuple = ()
    # The part of the time that compiling may take.
    compile: float = COMPILE

    def shapes(self):
        """(vocabulary, type, tasks) of the rivals, in order."""
        if self.part == "operators":
            listed = plan.OPERATOR_SHAPES
        elif self.part == "python":
            listed = [(vocab, "f32", plan.WHOLE_CALLS) for vocab in plan.HOST_VOCABS]
            listed[0] = (plan.MAIN_VOCAB, "f32", (*plan.TASKS, *plan.OPERATORS))
        elif self.part in ("families", "verify"):
            tasks = plan.FAMILY_TASKS if self.part == "families" else plan.VERIFICATIONS
            listed = [(vocab, "f32", tasks) for vocab in self.vocabs or [plan.MAIN_VOCAB]]
        else:
            listed = [(vocab, "f32", plan.TASKS) for vocab in self.vocabs or plan.VOCABS]
        for vocab, dtype, tasks in listed:
            tasks = [task for task in with_alone(tasks) if self.takes(task)]
            if tasks and vocab in (self.vocabs or [vocab]):
                yield vocab, dtype, tasks

    def takes(self, task):
        """A mixture's requests alone are asked for with it."""
        return not self.tasks or task in self.tasks or plan.alone(task) and "mixture" in self.tasks

    def modes(self):
        return {"python": ["eager"], "families": ["graph"], "verify": ["graph"]}.get(self.part, ["eager", "graph"])


def with_alone(tasks):
    """Tasks, and after a mixture its requests alone."""
    for task in tasks:
        yield task
        yield from filter(plan.alone, plan.REQUESTS) if task == "mixture" else ()
