"""What every check of the simulator raises."""


class Violation(AssertionError):
    """Something that must hold does not. The text says what."""
