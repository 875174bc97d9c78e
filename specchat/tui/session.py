"""The app's side of its models: questions go to who answers, updates come back by a queue.

Nothing here waits for an answer, and no answer waits for the screen. The engine's modules are
imported on the loader's thread, so that the first paint does not wait for them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from specchat.engine.messages import Message
from specchat.engine.worker import Worker
from specchat.errors import LoadCancelled, SpecchatError
from specchat.tui.answering import Local, Remote, told
from specchat.tui.messages import Ended, Load, Loading, Prepared, Unloaded, Update

if TYPE_CHECKING:
    from specchat.engine.engine import Cancel, Settings
    from specchat.engine.service import Service


class Session:
    """What answers at the moment. `updates` holds what happened since it was last emptied.
    `insists` says that a load that failed is worth trying again: that of a server.
    """

    def __init__(
        self, load: Load, settings: Callable[[], Settings], *, insists: bool = False
    ) -> None:
        self.insists = insists
        self.updates: queue.SimpleQueue[Update] = queue.SimpleQueue()
        self._load, self._settings = load, settings
        self._loader = Worker("loader")
        self._cancel_load = threading.Event()
        self._answering: Local | Remote | None = None
        self._cancel: Cancel | None = None  # of the latest answer

    @property
    def service(self) -> Service | None:
        """What the endpoint can share; None while no model of this machine is loaded."""
        answering = self._answering
        return answering.service if answering is not None else None

    def start(self) -> None:
        """Make the settings and load the models, in the background."""
        self._loader.submit(self._prepare)
        self.load_again()

    def load_again(self) -> None:
        """Try what the app was started with once more."""
        self.load(self._load)

    def load(self, load: Load) -> None:
        """Replace the models by others, in the background; ends a load still running."""
        self._cancel_load.set()
        cancelled = self._cancel_load = threading.Event()
        self._loader.submit(lambda: self._open(load, cancelled))

    def cancel_load(self) -> None:
        self._cancel_load.set()

    def ask(
        self, messages: Sequence[Message], settings: Settings, *, continue_final: bool = False
    ) -> None:
        """Answer a conversation, in the background."""
        put, answering = self.updates.put, self._answering
        try:
            if answering is None:
                raise SpecchatError("No model is loaded, so there is nobody to answer.")
            self._cancel = answering.ask(messages, settings, put, continue_final=continue_final)
        except SpecchatError as error:
            put(Ended(told(error)))

    def stop(self) -> None:
        """Stop the running answer."""
        if self._cancel is not None:
            self._cancel.set()

    def close(self) -> None:
        """Give up. All threads are daemons: a running call does not delay the exit."""
        self.cancel_load()
        if self._answering is not None:
            self._answering.close(wait=0)
        self._loader.submit(self._close)
        self._loader.stop()

    # -- on the loader's thread -----------------------------------------------------

    def _prepare(self) -> None:
        try:
            self.updates.put(Prepared(self._settings()))
        except SpecchatError as error:
            self.updates.put(Prepared(error=error))

    def _open(self, load: Load, cancelled: threading.Event) -> None:
        def report(stage: str, share: float) -> bool:
            self.updates.put(Loading(stage, share))
            return not cancelled.is_set()

        self._close()
        try:
            loaded = load(report)
            answering = loaded if isinstance(loaded, Remote) else Local(loaded)
            self._answering = answering
            self.updates.put(answering.ready)
        except LoadCancelled:
            self.updates.put(Unloaded(""))
        except Exception as error:
            self.updates.put(Unloaded(told(error)))

    def _close(self) -> None:
        """Free the models, once the running call is over: two might not fit in memory."""
        if self._answering is not None:
            self._answering.close(wait=None)
            self._answering = None
