"""Order with work on a GPU: events that were recorded on streams, as fences."""

from __future__ import annotations

from collections import deque
from typing import Any, Deque

from .errors import Bound, EngineFault


class Fences:
    """Numbers the events that an engine records. Events on several streams pass in any order;
    a fence has passed when all before it have."""

    def __init__(self) -> None:
        self._last = 0  # that was given out
        self._own = False  # the engine numbers its steps itself
        self._open: Deque[tuple[int, Any]] = deque()

    def of(self, stream: Any, fence: int) -> int:
        """The fence of what a call hands out: an event that is recorded on stream, which has
        `record_event()` as torch.cuda.Stream does, or the engine's own number; 0: none."""
        if stream is not None and (fence or self._own) or fence and self._last:
            raise EngineFault("fence: number the steps, or give streams: one engine does one of both")
        if stream is None:
            self._own = self._own or fence > 0
            return fence
        if not hasattr(stream, "record_event"):
            raise Bound(f"stream: a {type(stream).__name__}: want one that has record_event(), as torch.cuda.Stream")
        event = stream.record_event()
        self._last += 1
        self._open.append((self._last, event))
        return self._last

    def passed(self) -> int:
        """The highest fence that has passed and was not told; 0: none."""
        n = 0
        while self._open and self._open[0][1].query():
            n = self._open.popleft()[0]
        return n
