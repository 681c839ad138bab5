"""What can be wrong with a log that is read as data."""


def one_line(error: Exception) -> str:
    """The text of an error, which may have several lines, as one: a library's error becomes a part of a sentence."""
    return " ".join(str(error).split())


class OptionError(ValueError):
    """An option has an invalid value. The text names the valid ones."""


class BodyError(ValueError):
    """A body is not what its format and schema say. The text is the reason."""
