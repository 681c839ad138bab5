"""Finds the sentences of pages that deny something: that it is there, that it works, or that rmqha does it."""

import re
from collections.abc import Iterator

DENIES = re.compile(
    r"\b(?:is|are) not (?:there|supported|possible|served|encrypted|checked|copied|replicated|tested|available|sent)\b"
    r"|\bcannot\b|\bnot yet\b|\bunsupported\b|\bwithout effect\b|\b[Nn]ot (?:there|supported)\b"
    r"|\b(?:does|do) not (?:support|have|speak|serve|work|take|know|understand|copy|encrypt|give|offer|do)\b"
    r"|\b(?:has|have|knows?|serves?|makes?|keeps?) no (?!longer|more|less|other|matter|slower)"
    r"|\b[Tt]here (?:is|are) (?:no|neither)\b|\bwithout (?:TLS|encryption|authentication|access control)\b"
    r"|\b(?:[Nn]othing|[Nn]obody|[Nn]o (?:node|command|tool|setting|option|broker|client)) "
    r"(?:can|does|else|writes|sends|changes|gives|checks|makes|reads|mends)\b"
)
"""What denies something for good."""
REFUSES = re.compile(
    r"\b[Rr]efuse[sd]?\b|\b[Nn]ever\b|\b(?:is|are|does|do|has|have|can) (?:not|no)\b|\b(?:is|are|works?) only\b"
)
"""What may deny something too: a sentence with a name of ours must not do that by mistake."""
SUBORDINATE = re.compile(
    r"\b(?:if|that|which|who|when|while|until|unless|what|because|whose|where|as)\b[^,;:.()]*$", re.IGNORECASE
)
"""Before a phrase: it tells of a case, such as "a node that is not there"."""
CODE = re.compile(r"`([^`]+)`")
NOT_PROSE = re.compile(
    r"^```.*?^```|<!-- metrics of.*?<!-- end -->|<!--.*?-->|^\|[ :|-]*--[^\n]*$|^#[^\n]*$", re.MULTILINE | re.DOTALL
)


def sentences(text: str) -> Iterator[str]:
    """The sentences of a page, also those in lists and cells. A colon or semicolon ends one too."""
    for block in re.split(r"\n\s*\n|\n(?=[-|*]|\d+\. )", NOT_PROSE.sub("", text)):
        words = re.sub(r"^(?:[-*]|\d+\.) |\*\*", "", " ".join(block.split()))
        cells = re.split(r" ?(?<!\\)\| ?", words.strip("| ")) if words.startswith("|") else [words]
        for cell in cells:
            for part in re.split(r"(?<=[.:;?])\)?\s+", cell.strip()):
                if part and not CODE.fullmatch(part):
                    yield part


def denies(sentence: str, pattern: re.Pattern[str] = DENIES) -> bool:
    """Whether a main clause of it denies something."""
    return any(not SUBORDINATE.search(sentence[: found.start()]) for found in pattern.finditer(sentence))
