"""Words that settings and functions share."""

from typing import Literal

OnError = Literal["stop", "skip"]
Precision = Literal["fp32", "bf16"]
