"""From the engine's thread to the event loop: the answers to one HTTP request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from starlette.requests import Request

from specchat.engine.engine import Settings
from specchat.engine.events import Event, Finish, FinishReason
from specchat.engine.service import Service, Ticket
from specchat.server.errors import ApiError, from_engine, hung_up, shutting_down


class Job:
    """Some answers being made side by side. Iterating yields (index, event) in the order
    they come, to the end of all of them; raises ApiError, after which the rest is cancelled.
    """

    def __init__(self, answers: int, forget: Callable[[Job], None]) -> None:
        self.answers = answers
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[tuple[int, Event | None, BaseException | None]] = asyncio.Queue()
        self._tickets: list[Ticket] = []
        self._hung_up = False

    def submit(
        self, service: Service, prompts: Sequence[Sequence[int]], settings: Settings
    ) -> None:
        """Queue `answers` answers, distributed over `prompts`: all to the first come first."""
        each = self.answers // len(prompts)
        seed = settings.sampling.seed
        try:
            for index in range(self.answers):
                sampling = settings.sampling
                if seed is not None and index % each:  # every choice needs luck of its own
                    sampling = replace(sampling, seed=seed + index % each)
                ticket = service.submit(
                    prompts[index // each],
                    replace(settings, sampling=sampling),
                    on_event=partial(self._put, index),
                    on_done=partial(self._put, index, None),
                )
                self._tickets.append(ticket)
        except Exception as error:
            self.cancel()
            raise from_engine(error) from error

    def _put(self, index: int, event: Event | None, error: BaseException | None = None) -> None:
        """Called on the engine's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._items.put_nowait, (index, event, error))

    def cancel(self) -> None:
        for ticket in self._tickets:
            ticket.cancel.set()

    def hang_up(self) -> None:
        """Cancel, for the client has gone."""
        self._hung_up = True
        self.cancel()

    def close(self) -> None:
        """Cancel what is left."""
        self.cancel()
        self._forget(self)

    def fail(self, error: ApiError) -> None:
        """End the iteration with `error`."""
        self._items.put_nowait((-1, None, error))

    async def __aiter__(self) -> AsyncIterator[tuple[int, Event]]:
        left = self.answers
        while left:
            index, event, error = await self._items.get()
            if self._hung_up:
                raise hung_up()
            if error is not None:
                raise from_engine(error) from error
            if event is None:
                left -= 1
                continue
            if isinstance(event, Finish) and event.reason is FinishReason.CANCELLED:
                raise shutting_down()
            yield index, event


class Jobs:
    """All jobs under way, so that a shutdown can end them."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._live: set[Job] = set()

    def start(self, prompts: Sequence[Sequence[int]], settings: Settings, choices: int = 1) -> Job:
        """Queue that many choices for every prompt. Close the job. Raises ApiError."""
        job = Job(choices * len(prompts), self._live.discard)
        job.submit(self.service, prompts, settings)
        self._live.add(job)
        return job

    def stop(self, error: ApiError) -> None:
        """End all jobs with `error`."""
        for job in self._live:
            job.cancel()
            job.fail(error)


@asynccontextmanager
async def hanging_up_cancels(request: Request, job: Job) -> AsyncIterator[None]:
    """While inside, a client that hangs up cancels the job; it is closed at the end."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        job.hang_up()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        job.close()
