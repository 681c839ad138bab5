"""A trouble that lasts gets one line in the log, however often the work is tried again."""


class Trouble:
    """Why some work fails each time it is tried, such as a full disk. It ``lasts`` until the work succeeds."""

    def __init__(self) -> None:
        self.lasts = False

    def begins(self) -> bool:
        """The work has failed. Whether it had not failed before: then log it."""
        is_new, self.lasts = not self.lasts, True
        return is_new

    def ends(self) -> None:
        """The work has succeeded. The next failure is a new trouble."""
        self.lasts = False
