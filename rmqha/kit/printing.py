"""Text for a terminal or a log file: anyone may have chosen the names and the bytes in it."""


def printable(text: str, keep: str = "") -> str:
    """The text with backslash escapes for all unprintable characters, except those in ``keep``.

    This escapes control characters, line ends, marks that change the direction of writing, and lone surrogates (bytes
    that are not UTF-8). The result can be encoded, and cannot control a terminal.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def printable_json(text: str) -> str:
    """JSON in one line, with JSON's own escapes for all unprintable characters, so that its meaning stays the same."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped_in_json(char) for char in text)


def _escaped_in_json(char: str) -> str:
    code = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{code[at : at + 4]}" for at in range(0, len(code), 4))
