"""Every error a user can meet: one hierarchy, one clear line each.

A message names the thing that is wrong and the way out. The command line prints it and
exits with `exit_code`; the app shows it; the server turns it into an OpenAI error object.
"""

from collections.abc import Sequence


class SpecchatError(Exception):
    """Base of all expected errors. `str(error)` is the whole message for the user."""

    exit_code = 1


class ModelFileError(SpecchatError):
    """A model file is missing, unreadable, truncated or not a GGUF."""

    exit_code = 2


class RegistryError(SpecchatError):
    """A `models.toml` is wrong; the message names file, line and key."""

    exit_code = 2


class UnknownModelError(SpecchatError):
    """No file and no registry entry has that name. `nearest` are names that look like it."""

    exit_code = 2

    def __init__(self, name: str, nearest: Sequence[str]) -> None:
        self.name, self.nearest = name, list(nearest)
        hint = f" Did you mean {' or '.join(nearest)}?" if nearest else ""
        super().__init__(
            f"There is no file and no known model called {name}.{hint} "
            "`specchat models` lists what there is."
        )


class DownloadError(SpecchatError):
    """A model cannot be fetched from the Hub, or what came is not what was announced."""


class ModelLoadError(SpecchatError):
    """llama.cpp could not load a well-formed file (memory, unknown architecture, LoRA)."""

    exit_code = 2


class LoadCancelled(SpecchatError):
    """The user cancelled while weights were loading."""

    exit_code = 130


class PairMismatchError(SpecchatError):
    """Draft and target do not share a vocabulary; the message names the first difference."""

    exit_code = 2


class RollbackError(SpecchatError):
    """A KV cache could not drop rejected tokens although it was expected to."""


class PromptTooLongError(SpecchatError):
    """The prompt does not fit the context.

    `prompt_tokens` and `n_ctx` are token counts.
    """

    exit_code = 2

    def __init__(self, prompt_tokens: int, n_ctx: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.n_ctx = n_ctx
        super().__init__(
            f"The prompt has {prompt_tokens} tokens but the context holds {n_ctx} "
            "(one must stay free for the answer). Shorten the prompt or raise --ctx."
        )


class TemplateError(SpecchatError):
    """A chat template is broken, refuses the messages, or exceeds its time or size limit."""

    exit_code = 2


class GrammarError(SpecchatError):
    """A grammar or JSON schema is invalid, unsupported or over its limits."""

    exit_code = 2


class BadRequestError(SpecchatError):
    """A parameter is out of range or contradicts another. `param` names it."""

    exit_code = 2

    def __init__(self, message: str, param: str | None = None) -> None:
        self.param = param
        super().__init__(message)


class EndpointError(SpecchatError):
    """A server elsewhere cannot be reached, refuses, or does not speak OpenAI's API."""


class QueueFullError(SpecchatError):
    """Too many requests wait for the engine already. In about `seconds` one will have ended."""

    def __init__(self, waiting: int, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"{waiting} requests are waiting already; try again in {seconds:.0f} s.")


class BusyError(SpecchatError):
    """Every sequence of the engine is answering somebody else."""


class DecodeError(SpecchatError):
    """llama_decode failed; the message gives its return code and what it means."""


class Cancelled(SpecchatError):
    """A running call was aborted because the user asked for it."""

    exit_code = 130


class HistoryError(SpecchatError):
    """The stored chats cannot be read or written; the message names the file and the way out."""


class HistoryDamagedError(HistoryError):
    """The history file is not a database, or its pages contradict each other."""
