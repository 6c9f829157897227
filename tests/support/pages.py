"""The code in the pages of the documentation."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def blocks_of(page, language):
    """The blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
