"""The chat as it runs: questions go to the engine, its updates to widgets and history."""

from __future__ import annotations

import logging
import queue
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from textual.widgets import Static

from specchat.engine.events import Event, FinishReason, Prefill, Round, Token
from specchat.engine.messages import Message as EngineMessage
from specchat.engine.stats import Stats
from specchat.engine.worker import Worker
from specchat.errors import HistoryError, SpecchatError
from specchat.history import Message, Status
from specchat.tui.attach import with_files
from specchat.tui.choices import as_json
from specchat.tui.conversation import OpenConversation
from specchat.tui.greeting import greeting
from specchat.tui.kinds import counted, shown
from specchat.tui.messages import (
    Began,
    Depths,
    Ended,
    Loading,
    Noted,
    Prepared,
    Ready,
    Unloaded,
    Update,
)
from specchat.tui.pace import Pace
from specchat.tui.preferences import Preferences
from specchat.tui.recorder import Recorder
from specchat.tui.screens.showing import ShowingScreen, progress
from specchat.tui.session import Session
from specchat.tui.unsent import bring_back, keep
from specchat.tui.widgets.message import MessageView
from specchat.tui.widgets.prompt import Prompt

if TYPE_CHECKING:
    from specchat.engine.engine import Settings

log = logging.getLogger(__name__)

_FRAMES = 20  # per second


class ChatScreen(ShowingScreen):
    """One conversation with one engine. `waiting` means that the last message of the branch
    is a question whose answer has not begun.
    """

    def __init__(self, session: Session, chat: OpenConversation, preferences: Preferences) -> None:
        super().__init__(chat, preferences)
        self.session = session
        self.settings: Settings | None = None
        self.problem: SpecchatError | None = None  # why the app cannot run at all
        self.load_running = self.no_model = False
        self.busy = self.waiting = False
        self.queued: list[str] = []  # questions sent while an answer is running
        self.editing: Message | None = None
        self.answer: MessageView | None = None
        self._recorder: Recorder | None = None
        self._writer = Worker("history")
        self._errors: queue.SimpleQueue[str] = queue.SimpleQueue()  # from the writer's thread
        self._changed_settings = False  # so the running answer stops only to go on with them
        self._first_round = 0  # of this run of the engine, within the answer
        self._fresh: list[Token] = []
        self._unshown = False  # figures changed since they were shown
        self._frames, self._figures = Pace(), Pace(0.25)

    def on_mount(self) -> None:
        self.set_interval(1 / _FRAMES, self.drain)
        self.call_after_refresh(self.session.start)
        self.call_after_refresh(self._bring_back)

    # -- updates from the engine ----------------------------------------------------

    def drain(self) -> None:
        """Apply everything that came since the last frame."""
        while not self.session.updates.empty():
            self._apply(self.session.updates.get())
            self._unshown = True
        if self._fresh and self.answer is not None and self._frames.due():
            self.answer.extend(self._fresh)
            self._fresh = []
        if self._unshown and (not self.busy or self._figures.due()):
            self._unshown = False
            self.show_figures()
            if self.answer is not None:
                self.answer.tell_progress(progress(self.stats, len(self.answer.tokens)))
        while not self._errors.empty():
            self.warn(self._errors.get())

    def _apply(self, update: Update) -> None:
        if isinstance(update, Prepared):
            self.problem = update.error
            if update.error is not None:
                self.app.exit()
            elif update.settings is not None:
                self.use(update.settings)
        elif isinstance(update, Loading):
            self.load_running, self.no_model = True, False
            self.panel.say(f"loading {update.stage} {update.share:.0%}\nEsc cancels")
        elif isinstance(update, Ready):
            self.load_running, self.no_model, self.ready = False, False, update
            self.panel.models(update)
            self.view.greet(greeting(self.specchat.looks, update.target, update.server))
            self.show_title()
            self.next()
        elif isinstance(update, Unloaded):
            self._unloaded(update.message)
        elif isinstance(update, Noted):
            self.tell(update.text)
        elif isinstance(update, Began):
            self.stats = update.stats
        elif isinstance(update, Depths):
            self.depths = update
        elif isinstance(update, Ended):
            self._ended(update.error)
        else:
            self._event(update)

    def _event(self, event: Event) -> None:
        self.stats.add(event)
        if self._recorder is None or self.answer is None or isinstance(event, Prefill):
            return
        if isinstance(event, Token):
            if event.round >= 0:  # -1 where a server does not report rounds
                event = replace(event, round=event.round + self._first_round)
            self._fresh.append(event)
        elif isinstance(event, Round):
            event = replace(event, index=event.index + self._first_round)
            self.answer.set_rounds([event])
        self._recorder.add(event)

    def _unloaded(self, message: str) -> None:
        self.load_running, self.no_model, self.ready = False, True, None
        self.panel.say(message or "No model is loaded. F5 chooses one.")
        self.show_title()
        self.next()
        if message:
            self.warn(message)

    def _ended(self, error: str) -> None:
        self.busy = False
        finish = self.stats.finish
        stopped = finish is None or finish.reason is FinishReason.CANCELLED
        status = Status.ERROR if error else Status.STOPPED if stopped else Status.DONE
        going_on = self._changed_settings and stopped and not error
        self._changed_settings = False
        view, self.answer = self.answer, None
        self._save_end(view, status, error, "tokens" if going_on else self.preferences.view)
        if going_on and view is not None:
            self.resume(view, spent=len(view.tokens))
            return
        self.list_chats()
        self.next()

    def _save_end(self, view: MessageView | None, status: Status, error: str, kind: str) -> None:
        if view is None or self._recorder is None:
            return
        view.extend(self._fresh)
        self._fresh = []
        message = view.finish(status, self.stats.finish, error, kind)
        self.chat.finished(message)
        self._recorder.finish(status, message.finish, message.content, message.reasoning, error)
        self._recorder = None

    def use(self, settings: Settings) -> None:
        """Answer with these from now on."""
        self.settings = settings
        self.panel.settings(settings)

    def change(self, settings: Settings) -> None:
        """As `use`; a running answer ends its round and goes on with these, unless it comes
        from a server that cannot go on.
        """
        changed = settings != self.settings
        self.use(settings)
        if changed and self.busy and self.ready is not None and self.ready.continues:
            self._changed_settings = True
            self.session.stop()

    def stop(self) -> None:
        """End the running answer after its round."""
        self._changed_settings = False
        self.session.stop()

    def close(self) -> None:
        """Save what there is; waits a moment for the disk, never for the engine."""
        self.session.close()
        self._keep_unsent()
        if self.busy:
            self._save_end(self.answer, Status.STOPPED, "", self.preferences.view)
        self.settle(0.5)

    def _keep_unsent(self) -> None:
        try:
            keep(self.chat.history.file, [*self.queued, self.prompt.text])
        except OSError as error:
            log.warning("cannot keep what was not sent: %s", error)

    def _bring_back(self) -> None:
        """What the last run left unsent: the first goes into the input, ↑ recalls the rest."""
        unsent = bring_back(self.chat.history.file)
        if unsent:
            first, *rest = unsent
            self.prompt.remember([*self.prompt.past, *reversed(rest)])
            self.prompt.load(first)
            more = f" ↑ recalls {counted(len(rest), 'more question')}." if rest else ""
            self.tell(f"What you had not sent when you left is back.{more}")

    def settle(self, seconds: float = 2.0) -> None:
        """Wait until what was written is saved."""
        try:
            self._writer.submit(lambda: None).result(seconds)
        except TimeoutError:
            self.warn("The history's disk is slow; the last words may not be saved yet.")

    # -- asking ---------------------------------------------------------------------

    def on_prompt_submitted(self, event: Prompt.Submitted) -> None:
        try:
            text = with_files(event.text)
        except SpecchatError as error:
            self.warn(str(error))
            return
        self.prompt.sent(event.text)
        if self.editing is not None:
            self._edited(text)
        else:
            self.queued.append(text)
        self.next()
        if self.no_model and self.session.insists:
            self.session.load_again()

    def _edited(self, text: str) -> None:
        """The question takes the edited one's place, as a branch beside it."""
        assert self.editing is not None
        self.chat.cut(self.editing)
        self.view.show(self.chat.path)
        self.stop_editing()
        self.say(text)

    def stop_editing(self) -> None:
        self.editing = None
        self.prompt.border_title = ""

    def next(self) -> None:
        """Ask the oldest waiting question, if the engine is free."""
        if not self.busy:
            if self.queued and not self.waiting:
                self.say(self.queued.pop(0))
            if self.waiting and self.ready is not None:
                self.ask()
        words = []
        if self.no_model and (self.waiting or self.queued):
            again = "the next question tries again, or " if self.session.insists else ""
            words.append(f"no model is loaded: {again}F5 loads one")
        if self.queued:
            words.append(f"{len(self.queued)} waiting: {' | '.join(self.queued)}")
        line = self.query_one("#queue", Static)
        line.display = bool(words)
        line.update(" ".join(shown(" · ".join(words)).split()))

    def say(self, text: str) -> None:
        """Save and show a question; it is asked as soon as there is an engine."""
        try:
            message = self.chat.say(text, as_json(self.settings) if self.settings else {})
        except HistoryError as error:
            self.warn(str(error))
            self.prompt.load(text)
            return
        self.view.add(message)
        self.waiting = True
        self.show_title()

    def ask(self) -> None:
        """Begin to answer the branch."""
        assert self.ready is not None
        assert self.settings is not None
        self.waiting = False
        messages = self.chat.engine_messages()
        try:
            message = self.chat.begin_answer(
                self.ready.target, self.ready.draft, as_json(self.settings)
            )
        except HistoryError as error:
            self.warn(str(error))
            return
        self.run_answer(self.view.add(message), messages)

    def resume(self, view: MessageView, *, spent: int = 0) -> None:
        """Go on with the last answer; `spent` tokens of it count towards max_tokens."""
        self.settle()
        try:
            self.chat.history.resume_answer(view.message.id)
        except HistoryError as error:
            self.warn(str(error))
            return
        view.go_on()
        messages = self.chat.engine_messages()
        if view.tokens:
            self.run_answer(view, messages, continued=True, spent=spent)
        else:
            self.run_answer(view, messages[:-1])

    def run_answer(
        self,
        view: MessageView,
        messages: Sequence[EngineMessage],
        *,
        continued: bool = False,
        spent: int = 0,
    ) -> None:
        """Let the engine write into `view`; `continued` goes on with the last message, of
        whose max_tokens `spent` are used up.
        """
        assert self.settings is not None
        self.busy, self.answer = True, view
        self._first_round = max(view.rounds, default=-1) + 1
        self._recorder = Recorder(
            self.chat.history, self._writer, view.message.id, self._errors.put
        )
        self.stats, self.depths = Stats(), None
        self.panel.clear()
        settings = replace(self.settings, logprobs=self.preferences.alternatives or None)
        if settings.max_tokens is not None:
            settings = replace(settings, max_tokens=max(1, settings.max_tokens - spent))
        self.session.ask(messages, settings, continue_final=continued)
        self.view.anchor()
