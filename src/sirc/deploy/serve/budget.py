"""The bytes of requests that are held at once, so that many slow clients cost little and many large bodies wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import final


@final
class Budget:
    """Bytes that requests share as they arrive; a client that sends nothing takes nothing."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._reading: list[Share] = []  # oldest first
        self._whole = 0
        self._waiting: set[asyncio.Event] = set()

    @contextlib.contextmanager
    def share(self) -> Iterator[Share]:
        """What one request takes, until it is answered."""
        share = Share(self)
        self._reading.append(share)
        try:
            yield share
        finally:
            share.give_back()

    def fits(self, share: Share, size: int) -> bool:
        """Whether a request may have more.

        If all who hold bytes wait for more, nobody would ever go on; so the oldest may exceed the total then.
        """
        return self.used + size <= self.total or (self._whole == 0 and self._reading[0] is share)

    async def change(self) -> None:
        """Wait until something was given back."""
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            await event.wait()
        finally:
            self._waiting.discard(event)

    def read(self, share: Share) -> None:
        """Note that a body is whole: it will be answered, and its bytes given back."""
        self._reading.remove(share)
        self._whole += 1
        self._wake()

    def give_back(self, share: Share) -> None:
        """Take back what a request held."""
        if share in self._reading:
            self._reading.remove(share)
        else:
            self._whole -= 1
        self.used -= share.held
        self._wake()

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()


@final
class Share:
    """The bytes of one request."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._over = False
        self.held = 0
        self.waits = False

    async def take(self, size: int) -> None:
        """Hold more bytes, as soon as there is room."""
        self.waits = True
        while not self._budget.fits(self, size):
            await self._budget.change()
        self.waits = False
        self.held += size
        self._budget.used += size

    def whole(self) -> None:
        """Say that all was read."""
        self._budget.read(self)

    def give_back(self) -> None:
        """Hold nothing any more."""
        if not self._over:
            self._over = True
            self._budget.give_back(self)
