"""An extension of griffe: shows the `Example:` of a docstring as code, which griffe does for `Examples:` alone."""

from typing import Any

from griffe import Extension, Object


class ExampleSections(Extension):
    """Renames the section in every docstring."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Rename the section of one object's docstring."""
        if obj.docstring:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
