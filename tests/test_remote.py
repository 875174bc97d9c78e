"""Chatting through other people's servers: what is sent, what is made of the answers.

The server is scripted, so that it can be any of them and break in every way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import Handler, Scripted, scripted

from specchat.cli.output import summary, summary_line
from specchat.engine.engine import Cancel, Settings
from specchat.engine.events import Event, Finish, FinishReason, Kind, Prefill, Round, Token
from specchat.engine.messages import Message
from specchat.engine.sampling import SamplingParams
from specchat.errors import BadRequestError, EndpointError
from specchat.remote import RemoteEngine
from specchat.remote.answer import fit
from specchat.remote.client import base_url

CHAT = "POST /v1/chat/completions"
HELLO = [Message("user", "Hello")]
KEY = "sk-secret-1234"
OPENED: list[RemoteEngine] = []


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted() as found:
        offers(found)
        yield found
        while OPENED:
            OPENED.pop().close()


def offers(server: Scripted, *names: str, owner: str = "somebody", **more: object) -> None:
    data = [{"id": name, "owned_by": owner, **more} for name in names or ("big",)]
    server.on("GET /v1/models", lambda r: r.json({"object": "list", "data": data}))


def delta(text: str = "", finish: str | None = None, **more: object) -> dict[str, Any]:
    words = {"content": text} if text else {}
    return {"choices": [{"index": 0, "delta": words | more, "finish_reason": finish}]}


def streams(server: Scripted, *chunks: object, done: bool = True) -> None:
    def answer(request: Handler) -> None:
        request.begin_stream()
        for chunk in chunks:
            request.event(chunk)
        if done:
            request.event("[DONE]")
        request.end_stream()

    server.on(CHAT, answer)


def engine(server: Scripted, model: str | None = None, **more: Any) -> RemoteEngine:
    OPENED.append(RemoteEngine(server.url, model, **more))
    return OPENED[-1]


def ask(engine: RemoteEngine, settings: Settings | None = None, **more: Any) -> list[Event]:
    return list(engine.chat(HELLO, settings, **more))


def text(events: list[Event]) -> str:
    return "".join(e.text for e in events if isinstance(e, Token))


def line(engine: RemoteEngine, events: list[Event]) -> str:
    return summary_line(stats(engine, events))


def stats(engine: RemoteEngine, events: list[Event]) -> Any:
    found = engine.stats()
    for event in events:
        found.add(event)
    return found


# -- answers ----------------------------------------------------------------------------


def test_a_server_that_tells_nothing_gives_words_and_no_made_up_figures(server: Scripted) -> None:
    streams(server, delta(role="assistant"), delta("Hi"), delta(" there\u2028!"), delta("", "stop"))
    with_engine = engine(server)
    events = ask(with_engine)
    assert text(events) == "Hi there\u2028!"
    tokens = [e for e in events if isinstance(e, Token)]
    assert {(t.kind, t.id, t.p) for t in tokens} == {(Kind.UNKNOWN, -1, None)}
    assert isinstance(events[-1], Finish)
    assert events[-1].reason is FinishReason.STOP
    told = summary(stats(with_engine, events))
    assert set(told["usage"].values()) == {None}
    assert told["tokens_per_second"] is told["tokens_per_call"] is told["acceptance"] is None
    said = line(with_engine, events)
    assert "tokens not reported" in said
    assert "drafting not reported" in said


def test_usage_is_taken_over_and_the_rest_stays_unknown(server: Scripted) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13,
             "prompt_tokens_details": {"cached_tokens": 3}}  # fmt: skip
    streams(server, delta("one "), delta("two", "length"), {"choices": [], "usage": usage})
    remote = engine(server)
    events = ask(remote)
    finish = events[-1]
    assert isinstance(finish, Finish)
    assert finish.reason is FinishReason.LENGTH
    assert (finish.usage.prompt_tokens, finish.usage.cached_tokens) == (9, 3)
    assert finish.usage.completion_tokens == 4
    assert "drafted_tokens" in finish.usage.unknown
    assert "9 prompt tokens, 3 cached" in line(remote, events)


def test_llama_servers_timings_become_figures(server: Scripted) -> None:
    offers(server, owner="llamacpp", meta={"n_ctx": 2048})
    timings = {"cache_n": 2, "prompt_n": 8, "prompt_ms": 100.0, "predicted_n": 10,
               "predicted_ms": 500.0, "draft_n": 12, "draft_n_accepted": 6}  # fmt: skip
    progress = {"total": 10, "cache": 2, "processed": 6, "time_ms": 50}
    streams(server, delta() | {"prompt_progress": progress},
            delta("ten tokens", "stop") | {"timings": timings})  # fmt: skip
    remote = engine(server)
    events = ask(remote)
    assert remote.n_ctx == 2048
    assert events[0] == Prefill(6, 10, 2)
    found = stats(remote, events)
    assert found.tokens_per_second == pytest.approx(20)
    assert found.acceptance == 0.5
    assert found.tokens_per_call == pytest.approx(10 / 4)  # six came free with four calls
    assert events[-1] == Finish(FinishReason.STOP, found.finish.usage, 0.1, 0.5)
    assert found.finish.usage.unknown == ("draft_cached_tokens",)
    assert server.last(CHAT).body["timings_per_token"] is True


def test_reasoning_is_kept_between_marks(server: Scripted) -> None:
    streams(server, delta(reasoning_content="Let me "), delta(reasoning="think."), delta("Yes."),
            delta("", "stop"))  # fmt: skip
    assert text(ask(engine(server))) == "<think>\nLet me think.\n</think>\n\nYes."


def test_log_probabilities_make_tokens_of_pieces(server: Scripted) -> None:
    def entry(raw: bytes, logprob: float) -> dict[str, Any]:
        token = raw.decode("utf-8", "replace")
        top = [{"token": token, "logprob": logprob, "bytes": list(raw)},
               {"token": " other", "logprob": -3.0, "bytes": None}]  # fmt: skip
        return {"token": token, "bytes": list(raw), "logprob": logprob, "top_logprobs": top}

    euro = "€".encode()
    entries = [[entry(b"A", -0.1)], [entry(euro[:1], -0.2), entry(euro[1:], -0.3)]]
    chunks = [delta("A"), delta("€", "stop")]
    for chunk, content in zip(chunks, entries, strict=True):
        chunk["choices"][0]["logprobs"] = {"content": content}
    streams(server, *chunks)
    events = ask(engine(server), Settings(logprobs=2))
    tokens = [e for e in events if isinstance(e, Token)]
    assert [t.text for t in tokens] == ["A", "", "€"]
    assert [t.logprob for t in tokens] == [-0.1, -0.2, -0.3]
    assert [a.text for a in tokens[0].alternatives] == ["A", " other"]
    ids = [[a.id for a in t.alternatives] for t in tokens]
    assert [i[0] for i in ids] == [t.id for t in tokens]
    assert ids[0][1] == ids[1][1] == ids[2][1]  # the same text
    assert len({t.id for t in tokens}) == 3
    assert max(t.id for t in tokens) < 0
    assert server.last(CHAT).body["top_logprobs"] == 2


def test_null_is_absent_and_figures_of_another_shape_are_passed_over(server: Scripted) -> None:
    odd = {"choices": [{"index": 0, "delta": {"content": "fine", "reasoning_content": None},
           "finish_reason": None, "logprobs": None}], "usage": None, "timings": "soon"}  # fmt: skip
    other = {"choices": [{"index": 1, "delta": {"content": "another choice"}}]}
    counts = {"choices": None, "usage": {"prompt_tokens": "many"}}
    streams(server, other, odd, counts, delta("", "stop"))
    assert text(ask(engine(server))) == "fine"


@given(st.lists(st.text("ab<", max_size=3), max_size=6), st.text("ab<", min_size=1, max_size=8))
def test_tokens_are_fitted_to_any_text_without_losing_it(pieces: list[str], shown: str) -> None:
    tokens = [Token(i, p, Kind.PLAIN, Kind.PLAIN, 0, 1.0) for i, p in enumerate(pieces)]
    found, held = fit(tokens, shown)
    assert "".join(t.text for t in found) == shown
    ids = [t.id for t in [*found, *held]]
    assert ids == ([t.id for t in tokens] or [-1])


# -- vLLM's counters --------------------------------------------------------------------


def counters(drafted: int, accepted: int, generated: int) -> bytes:
    names = {"spec_decode_num_draft_tokens": drafted, "spec_decode_num_accepted_tokens": accepted,
             "generation_tokens": generated}  # fmt: skip
    text = ""
    for name, value in names.items():
        text += f"# HELP vllm:{name}_total Text\n# TYPE vllm:{name}_total counter\n"
        text += f'vllm:{name}_total{{engine="0",model_name="big"}} {float(value)}\n'
        text += f'vllm:{name}_total{{engine="0",model_name="other"}} 777.0\n'
    return text.encode()


@pytest.mark.parametrize(
    ("after", "words", "unwanted"),
    [
        (counters(18, 9, 110), ["acceptance 50%", "2.00 tok/call"], ["whole server"]),
        (counters(18, 9, 130), ["acceptance 50%", "whole server"], ["tok/call"]),
        (counters(1, 1, 10), ["drafting not reported"], ["acceptance"]),  # started anew
        (b"<html>no metrics</html>", ["drafting not reported"], ["acceptance"]),
    ],
)
def test_vllms_counters_tell_of_drafting_and_whose_it_was(
    server: Scripted, after: bytes, words: list[str], unwanted: list[str]
) -> None:
    offers(server, owner="vllm", max_model_len=4096)
    pages = iter([counters(8, 4, 100), after])
    server.on("GET /metrics", lambda r: r.reply(next(pages), kind="text/plain"))
    usage = {"prompt_tokens": 5, "completion_tokens": 10}
    streams(server, delta("a"), delta("b", "stop"), {"choices": [], "usage": usage})
    remote = engine(server)
    said = line(remote, ask(remote))
    assert remote.n_ctx == 4096
    assert [w for w in words if w not in said] == [], said
    assert [w for w in unwanted if w in said] == [], said


def test_a_server_without_metrics_answers_all_the_same(server: Scripted) -> None:
    offers(server, owner="vllm")
    streams(server, delta("fine", "stop"))
    assert text(ask(engine(server))) == "fine"


# -- requests ---------------------------------------------------------------------------


def sent(server: Scripted, settings: Settings, owner: str = "somebody") -> dict[str, Any]:
    offers(server, owner=owner)
    streams(server, delta("x", "stop"))
    ask(engine(server), settings)
    body: dict[str, Any] = server.last(CHAT).body
    return body


@pytest.mark.parametrize(
    ("owner", "expected"),
    [
        ("llamacpp", {"top_k": 40, "min_p": 0.05, "repeat_penalty": 1.3, "repeat_last_n": 64}),
        ("vllm", {"top_k": 40, "min_p": 0.05, "repetition_penalty": 1.3}),
        ("sglang", {"top_k": 40, "min_p": 0.05, "repetition_penalty": 1.3}),
        ("specchat", {"top_k": 40, "min_p": 0.05, "repeat_penalty": 1.3}),
    ],
)
def test_parameters_go_by_the_names_that_the_server_has(
    server: Scripted, owner: str, expected: dict[str, Any]
) -> None:
    body = sent(server, Settings(SamplingParams(repeat_penalty=1.3)), owner)
    assert body | expected == body
    others = {"top_k", "min_p", "repeat_penalty", "repetition_penalty", "repeat_last_n"}
    assert set(body) & others == set(expected)


def test_openais_own_parameters_go_to_any_server(server: Scripted) -> None:
    params = SamplingParams(0.5, top_p=0.7, seed=3, presence_penalty=1.0, frequency_penalty=0.5,
                            logit_bias={7: float("-inf")}, top_k=0, min_p=0.0)  # fmt: skip
    body = sent(server, Settings(params, max_tokens=9, stops=("END",), schema={"type": "object"}))
    expected = {
        "model": "big", "temperature": 0.5, "top_p": 0.7, "seed": 3, "presence_penalty": 1.0,
        "frequency_penalty": 0.5, "logit_bias": {"7": -100.0}, "max_tokens": 9, "stop": ["END"],
        "messages": [{"role": "user", "content": "Hello"}], "stream": True,
    }  # fmt: skip
    assert body | expected == body
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert not {"top_k", "min_p", "specchat", "timings_per_token"} & set(body)


def test_vllm_is_told_all_tokens_in_its_own_way(server: Scripted) -> None:
    assert sent(server, Settings(SamplingParams(top_k=0)), "vllm")["top_k"] == -1


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (Settings(SamplingParams(top_k=7)), "top_k"),
        (Settings(SamplingParams(repeat_penalty=1.2)), "repeat_penalty"),
        (Settings(SamplingParams(penalty_last_n=9)), "penalty_last_n"),
        (Settings(draft_length=4), "draft_length"),
        (Settings(rule="match"), "rule"),
        (Settings(grammar='root ::= "x"'), "grammar"),
        (Settings(SamplingParams(logit_bias={1: 1000.0})), "logit_bias"),
    ],
)
def test_what_a_server_does_not_take_is_refused_by_name(
    server: Scripted, settings: Settings, name: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        engine(server).chat(HELLO, settings)
    assert caught.value.param == name


def test_defaults_that_a_server_does_not_take_are_left_out_and_told(server: Scripted) -> None:
    streams(server, delta("x", "stop"))
    remote = engine(server)
    ask(remote)
    ask(remote)
    assert len(remote.notes) == 1
    assert "top_k, min_p" in remote.notes[0]


def test_going_on_with_an_answer(server: Scripted) -> None:
    chat = [*HELLO, Message("assistant", "Half an", reasoning="thoughts")]
    offers(server, owner="llamacpp")
    streams(server, delta(" answer", "stop"))
    list(engine(server).chat(chat, continue_final=True))
    body = server.last(CHAT).body
    assert body["continue_final_message"] is True
    assert body["messages"][-1]["reasoning_content"] == "thoughts"
    offers(server)
    with pytest.raises(BadRequestError, match="go on"):
        engine(server).chat(chat, continue_final=True)
    list(engine(server).chat([*chat, *HELLO]))
    assert "reasoning_content" not in server.last(CHAT).body["messages"][1]


def test_the_key_is_sent_and_nowhere_else(server: Scripted) -> None:
    streams(server, delta("x", "stop"))
    ask(engine(server, key=KEY))
    for request in server.requests:
        assert request.headers["Authorization"] == f"Bearer {KEY}"
        assert KEY not in json.dumps(request.body)
    ask(engine(server))
    assert server.last(CHAT).headers["Authorization"] is None


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://h:1", "http://h:1/v1"),
        ("http://h:1/", "http://h:1/v1"),
        ("https://h/openai/v1/", "https://h/openai/v1"),
        ("http://h/v1/chat/completions", "http://h/v1"),
    ],
)
def test_addresses_are_completed(given: str, used: str) -> None:
    assert str(base_url(given)) == used


@pytest.mark.parametrize(
    "given", ["", "h:1", "localhost:80", "ftp://h", "http://", "http://u:p@h", "http://h?key=1"]
)
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        base_url(given)
    assert "u:p" not in str(caught.value)


# -- choosing a model -------------------------------------------------------------------


def test_an_unknown_model_lists_what_there_is_with_the_nearest_first(server: Scripted) -> None:
    offers(server, *(f"m{i}" for i in range(30)), "qwen3-8b")
    with pytest.raises(EndpointError, match=r"'qwen-8b'.*: qwen3-8b, m0, .* and 19 more"):
        engine(server, "qwen-8b")
    with pytest.raises(EndpointError, match="several models"):
        engine(server)
    assert engine(server, "m7").model == "m7"


def test_a_server_that_lists_nothing_needs_a_name(server: Scripted) -> None:
    server.answers.clear()
    streams(server, delta("x", "stop"))
    assert text(ask(engine(server, "any"))) == "x"
    with pytest.raises(EndpointError, match="--model"):
        engine(server)
    server.on("GET /v1/models", lambda r: r.json({"data": []}))
    with pytest.raises(EndpointError, match="no model at the moment"):
        engine(server)


# -- trouble ----------------------------------------------------------------------------


def says(status: int, body: object, kind: str = "application/json") -> Callable[[Handler], None]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return lambda request: request.reply(raw, status, kind)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (says(200, b"<html><title>Router \n login</title>"), ["web page (Router login)"]),
        (says(200, b"hello"), ["'hello'", "no OpenAI-compatible"]),
        (says(200, b""), ["nothing", "no OpenAI-compatible"]),
        (says(200, ["x"]), ["does not list its models"]),
        (says(200, b"[" * 100_000), ["instead of JSON"]),
        (says(500, b"<html>oops</html>"), ["500", "a web page"]),
        (says(502, b""), ["502", "Bad Gateway"]),
        (says(401, {"error": {"message": f"Incorrect key {KEY}"}}), ["refuses the key", "•••"]),
        (says(403, {"detail": "not for you"}), ["refuses the key", "not for you"]),
        (lambda r: r.reply(b"", 307, location="https://elsewhere/v1"), ["https://elsewhere/v1"]),
        (lambda r: r.reply(b"junk", 200, Content_Encoding="gzip"), ["cannot be read"]),
        (lambda r: r.wfile.write(b"SSH-2.0\r\n\r\n"), ["broke the connection"]),
    ],
)
def test_trouble_with_the_list_of_models_is_one_line(
    server: Scripted, answer: Callable[[Handler], None], words: list[str]
) -> None:
    server.on("GET /v1/models", answer)
    with pytest.raises(EndpointError) as caught:
        engine(server, key=KEY)
    one_line(caught.value, server, *words)


def one_line(error: Exception, server: Scripted, *words: str) -> None:
    said = str(error)
    assert said.startswith(f"127.0.0.1:{server.server_address[1]} ")
    assert [w for w in words if w not in said] == [], said
    assert KEY not in said
    assert "\n" not in said
    assert len(said) < 500


def test_without_a_key_where_one_is_wanted_says_how_to_give_one(server: Scripted) -> None:
    server.on("GET /v1/models", says(401, {"error": "no key"}))
    with pytest.raises(EndpointError, match=r"--key-env.*no key"):
        engine(server)


def cut_off(request: Handler) -> None:
    request.begin_stream()
    request.event(delta("half"))
    request.connection.shutdown(2)
    request.close_connection = True


def stream_of(*raw: bytes) -> Callable[[Handler], None]:
    def answer(request: Handler) -> None:
        request.begin_stream()
        for piece in raw:
            request.send(piece)
        request.end_stream()

    return answer


HALF = b"data: " + json.dumps(delta("half")).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("answer", "words", "received"),
    [
        (cut_off, ["broke the connection"], "half"),
        (stream_of(HALF), ["in mid-answer"], "half"),
        (stream_of(HALF, b"data: {broken\n\n"), ["malformed", "{broken"], "half"),
        (stream_of(HALF, b"data: [1, 2]\n\n"), ["malformed"], "half"),
        (stream_of(HALF, b"data: \xff\xfe\n\n"), ["malformed"], "half"),
        (stream_of(HALF, b'data: {"error": {"message": "GPU lost"}}\n\n'), ["GPU lost"], "half"),
        (stream_of(HALF, b'event: error\ndata: {"error": "a b\\nc"}\n\n'), ["a b c"], "half"),
        (stream_of(HALF, b'data: {"choices": [{"delta": {}, "finish_reason": '
                         b'"content_filter"}]}\n\ndata: [DONE]\n\n'), ["withheld"], "half"),
        (says(200, {"choices": []}), ["did not stream"], ""),
        (says(400, {"error": {"message": "too long", "code": "context_length_exceeded"}}),
         ["400", "too long"], ""),
        (says(404, {"object": "error", "message": "no such model"}), ["no such model"], ""),
        (says(429, {"error": {"message": "slow down"}}), ["429", "slow down"], ""),
        (says(503, b"<!doctype html><html>down</html>", "text/html"), ["503", "web page"], ""),
    ],
)  # fmt: skip
def test_trouble_with_an_answer_is_one_line_and_keeps_what_came(
    server: Scripted, answer: Callable[[Handler], None], words: list[str], received: str
) -> None:
    server.on(CHAT, answer)
    remote = engine(server)
    events: list[Event] = []
    with pytest.raises(EndpointError) as caught:
        events.extend(remote.chat(HELLO))
    one_line(caught.value, server, *words)
    assert text(events) == received
    streams(server, delta("again", "stop"))
    assert text(ask(remote)) == "again"


def test_comments_odd_line_ends_and_a_missing_done_are_no_trouble(server: Scripted) -> None:
    last = json.dumps(delta("!", "stop")).encode()
    server.on(CHAT, stream_of(b": ping\r\n\r\n", HALF[:9], HALF[9:], b"id: 3\n\n",
                              b"data: " + last + b"\r\n\r\n"))  # fmt: skip
    assert text(ask(engine(server))) == "half!"


def test_nobody_there(server: Scripted) -> None:
    server.shutdown()
    server.server_close()
    with pytest.raises(EndpointError, match="Connection refused"):
        engine(server)


def test_a_server_that_falls_silent_is_given_up(server: Scripted) -> None:
    def answer(request: Handler) -> None:
        request.begin_stream()
        request.event(delta("half"))
        request.gone(10)

    server.on(CHAT, answer)
    with pytest.raises(EndpointError, match="sent nothing for"):
        ask(engine(server, read_seconds=0.3))


# -- stopping ---------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [True, False])
def test_cancel_closes_the_connection_at_once(server: Scripted, streaming: bool) -> None:
    waiting, left = threading.Event(), threading.Event()

    def answer(request: Handler) -> None:
        if streaming:
            request.begin_stream()
            request.event(delta("half"))
        waiting.set()
        if request.gone(10):
            left.set()
        request.close_connection = True

    server.on(CHAT, answer)
    remote, cancel = engine(server), Cancel()

    def press_escape() -> None:
        waiting.wait(10)
        time.sleep(0.1)
        cancel.set()

    threading.Thread(target=press_escape).start()
    events = ask(remote, cancel=cancel)
    assert left.wait(5)
    assert text(events) == ("half" if streaming else "")
    assert isinstance(events[-1], Finish)
    assert events[-1].reason is FinishReason.CANCELLED
    streams(server, delta("again", "stop"))
    assert text(ask(remote)) == "again"


def test_a_cancel_before_the_start_and_a_closed_iterator_end_it_too(server: Scripted) -> None:
    left = threading.Event()

    def answer(request: Handler) -> None:
        request.begin_stream()
        request.event(delta("half"))
        if request.gone(10):
            left.set()
        request.close_connection = True

    server.on(CHAT, answer)
    remote, cancel = engine(server), Cancel()
    cancel.set()
    assert text(ask(remote, cancel=cancel)) == ""
    assert not [r for r in server.requests if r.command == "POST"]
    events = remote.chat(HELLO)
    next(events)
    events.close()  # type: ignore[attr-defined]
    assert left.wait(5)
    remote.close()
    remote.close()


# -- the command line -------------------------------------------------------------------


def specchat(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specchat", *args], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60, env=os.environ | env,
    )  # fmt: skip


def test_p_through_an_endpoint(server: Scripted) -> None:
    streams(server, delta("Hi "), delta("you", "stop"), {"usage": {"completion_tokens": 2}})
    found = specchat("-p", "Hello", "--endpoint", server.url, "-m", "big", "--key-env", "MY_KEY",
                     "-s", "Be brief.", MY_KEY=KEY)  # fmt: skip
    assert found.stdout == "Hi you\n"
    assert "2 tokens" in found.stderr
    assert "not told of top_k, min_p" in found.stderr
    assert KEY not in found.stderr
    request = server.last(CHAT)
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    assert request.body["messages"][0] == {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("flags", "words", "code"),
    [
        (["--endpoint", "http://127.0.0.1:9", "-d", "x.gguf"], ["--draft"], 2),
        (["--endpoint", "http://127.0.0.1:9", "--ctx", "9"], ["--ctx"], 2),
        (["--endpoint", "nowhere"], ["nowhere"], 2),
        (["--key-env", "X"], ["--endpoint"], 2),
        (["--endpoint", "http://127.0.0.1:9", "--key-env", "UNSET_VAR"], ["UNSET_VAR"], 2),
        (["--endpoint", "http://127.0.0.1:9", "--key-env", "BAD_VAR"], ["cannot be a key"], 2),
        (["--endpoint", "http://127.0.0.1:9"], ["127.0.0.1:9", "refused"], 1),
    ],
)
def test_bad_flags_are_one_line(flags: list[str], words: list[str], code: int) -> None:
    found = specchat("-p", "hi", *flags, BAD_VAR="two words")
    assert found.returncode == code
    assert found.stdout == ""
    assert len(found.stderr.splitlines()) == 1
    assert [w for w in words if w not in found.stderr] == [], found.stderr
    assert "two words" not in found.stderr


def test_rounds_are_not_expected_of_strangers(server: Scripted) -> None:
    streams(server, delta("x", "stop"))
    assert not [e for e in ask(engine(server)) if isinstance(e, Round)]
