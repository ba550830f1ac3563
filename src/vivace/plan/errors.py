"""What is wrong with a plan."""


class PlanError(ValueError):
    """The plan cannot be read, or names something that does not exist; the message says what to write instead."""


class PlanRefused(ValueError):
    """The parts of the plan do not fit together or do not fit the model; the message has the reasons and remedies."""
