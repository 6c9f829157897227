"""The folder of studies, which the source distribution leaves out: tests that need it are skipped there."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "studies"

if not STUDIES.is_dir():
    pytest.skip(
        "needs studies/, which is in the repository but not in the source distribution", allow_module_level=True
    )
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # `studies.tools` is imported from the repository's root
