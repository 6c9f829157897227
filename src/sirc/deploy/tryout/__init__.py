"""The page to try a guard: drop an image, see the decision and its reason.

`make_app(guard)` makes it, and `sirc try` runs it. docs/try.md describes what it shows.
"""

from sirc.deploy.serve import run
from sirc.deploy.tryout.app import is_own_name, make_app

__all__ = ["is_own_name", "make_app", "run"]
