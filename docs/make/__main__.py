"""Writes all pages again that are made from the code, and the dashboard of ops/: ``make pages``. Not the pictures."""

import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
NOT_PAGES = ("__main__", "screenshots")
MAKERS = (*sorted(path for path in FOLDER.glob("*.py") if path.stem not in NOT_PAGES), ROOT / "ops" / "dashboard.py")
"""Each has ``PAGE``, where its page is, and ``page()``, which makes the text."""


def main() -> None:
    """Write the pages that are not what the code says, and print their names."""
    sys.path.insert(0, str(ROOT))  # one page is made from the tests
    for maker in MAKERS:
        made = runpy.run_path(str(maker))
        path, text = made["PAGE"], made["page"]()
        if path.read_text() != text:
            path.write_text(text)
            print(f"{path.relative_to(ROOT)} is written again")


if __name__ == "__main__":
    main()
