"""Drafting from a predicted answer (OpenAI's "Predicted Outputs").

The client says what much of the answer will look like, such as the file that is to be
edited. It is copied from its start; where the answer departs from it, the place to go on
is found by what was written since.
"""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine.drafters import LookupDrafter, Steps


class PredictionDrafter(LookupDrafter):
    """Proposes the predicted tokens that come next.

    Its strength is the number of tokens since the answer last departed from the prediction.
    After a departure the longest n-gram that the answer and the prediction share counts,
    the nearest of equals. A single token is enough shortly behind the place of departure;
    with none, the departure may have replaced one token.
    """

    name = "prediction"
    trust = 8  # strength before anything was written: the client gave it for a reason
    window = 48  # tokens behind a departure among which a single one may be found again
    settled = 4  # matches that are not questioned

    def __init__(self, prediction: Sequence[int]) -> None:
        super().__init__()
        self._prediction = list(prediction)
        self._ends: dict[tuple[int, ...], list[int]] = {}
        n = self.ngram
        for end in range(n, len(self._prediction) + 1):
            self._ends.setdefault(tuple(self._prediction[end - n : end]), []).append(end)
        self.begin(())

    def begin(self, prompt: Sequence[int]) -> int:
        self._text = self._prediction
        self._seen = len(prompt)
        self._written: list[int] = []
        self._place, self._run = 0, self.trust
        self._departed: int | None = None  # where, until the answer is found again
        return 0

    def catch_up(self, context: Sequence[int]) -> Steps[None]:
        self._follow(context)
        yield from ()

    def strength(self, context: Sequence[int]) -> int:
        self._follow(context)
        matched = self._run if self._place < len(self._prediction) else 0
        self._match = (len(context), self._place, matched)
        return matched

    def _follow(self, context: Sequence[int]) -> None:
        for token in context[self._seen :]:
            self._written.append(token)
            if self._run and self._prediction[self._place : self._place + 1] == [token]:
                self._place += 1
                self._run = min(self._run + 1, self.longest)
                if self._run >= self.settled:
                    self._departed = None
                else:
                    self._place, self._run = self._search(self._run)
                continue
            departs = self._departed is None
            if departs:
                self._departed = self._place
            self._place, self._run = self._search(0)
            if departs and not self._run:  # one token may stand for another
                self._place, self._run = self._place + 1, 1
        self._seen = len(context)

    def _search(self, at_least: int) -> tuple[int, int]:
        """Where the answer's end is found in the prediction and how many tokens match, if
        that is more than `at_least`; else the present place, and `at_least`.
        """
        best, start = (self._place, at_least), self._departed or 0
        written, text, n = self._written, self._prediction, self.ngram
        distance = 0
        for end in self._ends.get(tuple(written[-n:]), ()) if len(written) >= n else ():
            length, most = n, min(self.longest, end, len(written))
            while length < most and text[end - length - 1] == written[-length - 1]:
                length += 1
            far = abs(end - start) + (len(text) if end < start else 0)
            if length > best[1] or (length == best[1] > at_least and far < distance):
                best, distance = (end, length), far
        if not best[1]:
            near = text[start : start + self.window]
            if written[-1] in near:
                return start + near.index(written[-1]) + 1, 1
        return best
