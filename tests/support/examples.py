"""How many examples a property test tries: all of them in `make test`, a tenth in `make quick`."""

from hypothesis import settings


def examples(count, **options):
    """Settings for a test that tries this many with hypothesis's own profile, and with another its share of them."""
    return settings(max_examples=round(count * settings.default.max_examples / 100), **options)
