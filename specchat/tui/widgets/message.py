"""One message on the screen: a question, or an answer as tokens or as Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Click
from textual.message import Message as MessageEvent
from textual.widgets import Static

from specchat.engine.events import Finish, Round, Token
from specchat.history import Message, Record, Status
from specchat.tui.kinds import counted, shown
from specchat.tui.markdown import too_long
from specchat.tui.reasoning import Reasoning
from specchat.tui.widgets.answer_markdown import AnswerMarkdown
from specchat.tui.widgets.quiet import put
from specchat.tui.widgets.token_text import TokenText, hits


class _Fold(Static):
    """The line above the reasoning."""

    def on_click(self, event: Click) -> None:
        event.stop()
        view = self.parent
        assert isinstance(view, MessageView)
        view.fold(not view.folded)


class MessageView(Vertical, can_focus=True):
    """`message` as stored; `tokens` and `rounds` (by index) are those of an answer. `place`
    is which of how many branches it is. The keys act through the screen.
    """

    class TokenClicked(MessageEvent):
        """The user clicked on token `index` of an answer."""

        def __init__(self, view: MessageView, index: int) -> None:
            super().__init__()
            self.view, self.index = view, index

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "screen.edit", "Edit"),
        Binding("r", "screen.regenerate", "Again"),
        Binding("left,[", "screen.branch(-1)", "‹ Branch", key_display="←"),
        Binding("right,]", "screen.branch(1)", "Branch ›", key_display="→"),
        Binding("c", "screen.copy", "Copy"),
        Binding("y", "screen.copy_code", "Copy code"),
        Binding("i,enter", "screen.inspect", "Inspect"),
        Binding("t", "screen.view", "Tokens/Markdown"),
        Binding("o", "screen.fold", "Reasoning"),
        Binding("g", "screen.go_on", "Go on"),
        Binding("f", "screen.fork", "Fork"),
        Binding("d,delete", "screen.delete", "Delete"),
        Binding("u", "screen.undo", "Undo"),
        Binding("up,k", "screen.select(-1)", "Previous message", show=False),
        Binding("down,j", "screen.select(1)", "Next message", show=False),
    ]

    def __init__(
        self,
        message: Message,
        record: Record | None = None,
        *,
        place: tuple[int, int] = (1, 1),
        view: str = "tokens",
        thinking: tuple[str, str] | None = None,
        thinks_first: bool = False,
    ) -> None:
        """An answer with status partial starts empty and grows by `extend`."""
        super().__init__(classes=f"message {message.role}")
        self.message, self.place = message, place
        self.tokens: list[Token] = []
        self.rounds: dict[int, Round] = {}
        self.cursor: int | None = None
        self._long: tuple[str, bool] = ("", False)  # a text, and whether it is too long
        self._searched = False  # something in it was found and is marked
        self.streaming = message.status is Status.PARTIAL
        self.folded = not self.streaming
        self._view = view
        self._reasoning = Reasoning(thinking, thinks_first)
        self._unpainted: list[tuple[Token, bool]] = []
        self._code = -1  # the code block copied last
        self._progress = ""  # how far the answer is
        self._thoughts = TokenText(classes="thoughts")
        self._answer = TokenText()
        self._plain = Static(Content(shown(message.content)), markup=False, classes="text")
        self._fold_line = _Fold("", markup=False, classes="fold")
        self._markdown: AnswerMarkdown | None = None
        self.restore(record or Record())
        if not self.streaming:
            self._place(self._reasoning.flush())

    def compose(self) -> ComposeResult:
        yield Static(self._header(), classes="who", markup=False)
        if self.message.role == "assistant":
            yield self._fold_line
            yield self._thoughts
            yield self._answer
        yield self._plain
        if self.message.error:
            yield Static(Content(shown(self.message.error)), classes="note", markup=False)

    def on_mount(self) -> None:
        self._paint()
        self._arrange()

    # -- growing --------------------------------------------------------------------

    def restore(self, record: Record) -> None:
        """Take over what was written earlier."""
        self.set_rounds(record.rounds)
        self.extend(record.tokens)

    def set_rounds(self, rounds: Iterable[Round]) -> None:
        self.rounds |= {r.index: r for r in rounds}

    def extend(self, tokens: Iterable[Token]) -> None:
        """Show further tokens of the answer."""
        for token in tokens:
            self._place(self._reasoning.push(token))
        self._paint()

    def _place(self, ready: list[tuple[Token, bool]]) -> None:
        self.tokens += [token for token, _ in ready]
        self._unpainted += ready

    def _paint(self) -> None:
        """Hand tokens to the widgets that show them, if those are there already."""
        if not self.children:
            return
        ready, self._unpainted = self._unpainted, []
        thoughts = [token for token, thought in ready if thought]
        if thoughts:
            self._thoughts.extend(thoughts)
            self._answer.first = len(self._thoughts.tokens)
            self._arrange()
        self._answer.extend(token for token, thought in ready if not thought)

    def finish(self, status: Status, finish: Finish | None, error: str, view: str) -> Message:
        """The end of the answer. Returns the message as it is to be stored."""
        self._place(self._reasoning.flush())
        self._paint()
        self.streaming, self.folded, self._view = False, True, view
        if finish is not None and self.message.finish is not None:
            finish = joined(self.message.finish, finish)
        self.message = replace(
            self.message, status=status, finish=finish, error=error,
            content=self._reasoning.answer, reasoning=self._reasoning.reasoning,
        )  # fmt: skip
        if error and self.is_attached:
            self.mount(Static(Content(shown(error)), classes="note", markup=False))
        self._arrange()
        return self.message

    # -- looks ----------------------------------------------------------------------

    @property
    def view(self) -> str:
        """What is shown now: "tokens" or "markdown"."""
        markdown = self._view == "markdown" and not self.streaming and self.cursor is None
        markdown = markdown and not self._searched and not self.too_long
        return "markdown" if markdown or not self.tokens else "tokens"

    @property
    def too_long(self) -> bool:
        """Whether the answer has too many blocks to be laid out as Markdown."""
        if self._long[0] != self.message.content:
            self._long = (self.message.content, too_long(self.message.content))
        return self._long[1]

    def show_as(self, view: str) -> None:
        self._view = view
        self._arrange()

    def fold(self, folded: bool) -> None:
        """Hide or show the reasoning."""
        self.folded = folded
        self._arrange()

    def _arrange(self) -> None:
        """Show the parts that the state asks for."""
        if not self.children:  # not composed yet, or closing
            return
        self.query_one(".who", Static).update(self._header())
        answer = self.message.role == "assistant"
        markdown = answer and self.view == "markdown" and bool(self.message.content)
        markdown = markdown and not self.too_long
        self._answer.display = answer and not markdown
        self._thoughts.display = not self.folded
        self._plain.display = not answer or (not self.tokens and not markdown)
        if answer and self._plain.display:
            self._plain.update(Content(shown(self.message.content)))
        thoughts = len(self._thoughts.tokens)
        self._fold_line.display = thoughts > 0
        mark = "▸" if self.folded else "▾"
        self._fold_line.update(Content(f"{mark} reasoning, {thoughts} tokens"))
        if markdown and self._markdown is None:
            self._markdown = AnswerMarkdown(self.message.content)
            self.mount(self._markdown, after=self._answer)
        if self._markdown is not None:
            self._markdown.display = markdown
            if not markdown and self.streaming:  # it is being continued
                self._markdown.remove()
                self._markdown = None

    def _header(self) -> Content:
        m = self.message
        words = []
        if self.streaming:
            words.append(self._progress or "…")
        elif m.status in (Status.STOPPED, Status.ERROR):
            words.append(m.status.value)
        if m.finish is not None and not self.streaming:
            words += _figures(m.finish)
        if self._view == "markdown" and m.role == "assistant" and self.too_long:
            words.append("too long for Markdown")
        who = "You" if m.role == "user" else m.target or m.role
        place = f"  ‹ {self.place[0]}/{self.place[1]} ›" if self.place[1] > 1 else ""
        return Content.assemble((shown(who) + place, "bold"), "  " + shown(" · ".join(words)))

    def tell_progress(self, text: str) -> None:
        """How far the answer is, for the line above it."""
        self._progress = text
        if self.streaming and self.children:
            put(self.query_one(".who", Static), self._header())

    def set_place(self, place: tuple[int, int]) -> None:
        self.place = place
        self._arrange()

    def repaint(self) -> None:
        """The theme changed."""
        self._thoughts.repaint()
        self._answer.repaint()

    def go_on(self) -> None:
        """The answer is being continued."""
        self.streaming = True
        self.query(".note").remove()
        self._arrange()

    def on_token_text_clicked(self, event: TokenText.Clicked) -> None:
        event.stop()
        self.post_message(self.TokenClicked(self, event.index))

    # -- looking into it --------------------------------------------------------------

    def select(self, index: int | None) -> Token | None:
        """Move the cursor to token `index`, or take it away; returns the token."""
        if not self.tokens:
            return None
        self.cursor = None if index is None else max(0, min(index, len(self.tokens) - 1))
        if self.cursor is not None and self.cursor < len(self._thoughts.tokens):
            self.folded = False
        self._arrange()
        self._thoughts.move_cursor(self.cursor)
        self._answer.move_cursor(self.cursor)
        return None if self.cursor is None else self.tokens[self.cursor]

    @property
    def text(self) -> str:
        return self._reasoning.answer if self.tokens else self.message.content

    def find(self, query: str, place: int = 0) -> None:
        """Mark where `query` stands and scroll to a place, counted from 0; "" takes the marks
        away.
        """
        if not query and not self._searched:
            return
        self._searched = bool(query)
        if self.tokens:
            self._arrange()
            self.call_after_refresh(self._answer.find, query, place)
        else:
            content = Content(shown(self.text))
            self._plain.update(content.add_spans(list(hits(content.plain, shown(query)))))
            if query:
                self.scroll_visible(animate=False)

    def next_code(self, blocks: list[str]) -> tuple[int, str]:
        """The code block after the one given last, with its index."""
        self._code = (self._code + 1) % len(blocks)
        return self._code, blocks[self._code]


def _figures(finish: Finish) -> list[str]:
    usage = finish.usage
    words = []
    if finish.generate_seconds > 0 and usage.completion_tokens:
        words.append(f"{usage.completion_tokens / finish.generate_seconds:.1f} tok/s")
    if usage.target_calls:
        words.append(f"{usage.completion_tokens / usage.target_calls:.2f} tok/call")
    if usage.drafted_tokens:
        words.append(f"{usage.accepted_tokens / usage.drafted_tokens:.0%} accepted")
    if "completion_tokens" not in usage.unknown:
        words.append(counted(usage.completion_tokens, "token"))
    return words


def joined(first: Finish, second: Finish) -> Finish:
    """The end of an answer that was continued: the prompt of the first, the work of both."""
    a, b = first.usage, second.usage
    usage = replace(
        a,
        completion_tokens=a.completion_tokens + b.completion_tokens,
        drafted_tokens=a.drafted_tokens + b.drafted_tokens,
        accepted_tokens=a.accepted_tokens + b.accepted_tokens,
        target_calls=a.target_calls + b.target_calls,
        unknown=tuple(dict.fromkeys(a.unknown + b.unknown)),
    )
    seconds = first.generate_seconds + second.generate_seconds
    return replace(second, usage=usage, generate_seconds=seconds)
