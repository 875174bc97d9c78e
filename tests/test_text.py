"""Tokens in, safe text out: whole characters only, and never a piece of a stop string."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specchat.engine.events import WORST_FIRST, Kind, Token
from specchat.engine.text import TextStream, strip_control

BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # reorder text around them
# Characters of 1 to 4 bytes, joined and combining ones, and bytes that are no UTF-8 at all.
PIECES = ["a", "é", "中", "😀", "👩‍👩‍👧", "e\u0301", "\n", "\ufffd", "\x00"]
good_bytes = st.lists(st.sampled_from(PIECES)).map(lambda parts: "".join(parts).encode())
any_bytes = st.one_of(
    good_bytes,
    st.binary(max_size=12),
    st.lists(st.sampled_from([b"a", b"\xf0", b"\x9f", b"\x98", b"\x80", b"\xe4\xb8", b"\xff"])).map(
        b"".join
    ),
)
kinds = st.sampled_from(list(Kind))


@st.composite
def tokens(draw, data):
    """`data` cut at random into the bytes of tokens (some empty), each with a kind."""
    raw = draw(data)
    cuts = sorted(draw(st.lists(st.integers(0, len(raw)), max_size=2 * len(raw) + 1)))
    pieces = [raw[a:b] for a, b in pairwise([0, *cuts, len(raw)])]
    chosen = st.lists(kinds, min_size=len(pieces), max_size=len(pieces))
    return [
        (Token(i, "", kind, kind, round=i, p=1.0), piece)
        for i, (piece, kind) in enumerate(zip(pieces, draw(chosen), strict=True))
    ]


def text_bytes(alphabet):
    return st.text(alphabet, max_size=24).map(str.encode)


def play(stream, pushed):
    """Everything the stream gives out, push by push, and then at the end."""
    out = [token for token, piece in pushed for token in stream.push(token, piece)]
    return out + stream.finish()


def first_stop(text, stops):
    """The text before the stop string that is complete first, and that stop string; of
    those complete at the same character the longest.
    """
    for end in range(len(text) + 1):
        hits = [s for s in stops if s and text[:end].endswith(s)]
        if hits:
            longest = max(hits, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(tokens(any_bytes))
def test_text_is_the_utf8_of_all_bytes_and_no_token_is_lost(pushed):
    out = play(TextStream(), pushed)
    raw = b"".join(piece for _, piece in pushed)
    assert "".join(t.text for t in out) == raw.decode("utf-8", "replace")
    assert [t.id for t in out] == [t.id for t, _ in pushed]
    assert [t.kind for t in out] == [t.kind for t, _ in pushed]


@given(tokens(good_bytes))
def test_text_comes_as_soon_as_its_character_is_whole(pushed):
    stream, raw, shown = TextStream(), b"", ""
    for token, piece in pushed:
        raw += piece
        shown += "".join(t.text for t in stream.push(token, piece))
        assert raw.decode("utf-8", "ignore").startswith(shown)
        try:
            whole = raw.decode()
        except UnicodeDecodeError:
            continue
        assert shown == whole


@given(tokens(good_bytes))
def test_a_text_has_the_worst_kind_of_the_tokens_in_its_first_character(pushed):
    out = play(TextStream(), pushed)
    owners = []  # per byte, the index of the token it came from
    for i, (_, piece) in enumerate(pushed):
        owners += [i] * len(piece)
    at = 0  # byte position of the next text
    for token in out:
        if token.text:
            first = owners[at : at + len(token.text[0].encode())]
            around = pushed[first[0] : first[-1] + 1]  # an empty token inside counts too
            kinds_around = [t.kind for t, _ in around]
            assert token.text_kind == min(kinds_around, key=WORST_FIRST.index)
            at += len(token.text.encode())
        else:
            assert token.text_kind == token.kind


def test_an_unfinished_character_at_the_end_has_the_worst_kind_of_its_tokens():
    stream = TextStream()
    for i, (kind, piece) in enumerate([(Kind.RESAMPLED, b"\xf0"), (Kind.ACCEPTED, b"\x9f")]):
        assert stream.push(Token(i, "", kind, kind, 0, 1.0), piece) == []
    first, second = stream.finish()
    assert (first.text, second.text) == ("", "\ufffd")
    assert second.text_kind is Kind.RESAMPLED


small_stops = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


def whole(text):
    return [(Token(0, "", Kind.PLAIN, Kind.PLAIN, 0, 1.0), text.encode())]


@given(tokens(text_bytes("abc")), small_stops)
@example([], ["a"])
@example(whole("abb"), ["abb", "b"])  # as if the characters came one by one
@example(whole("cab"), ["b", "ab"])
def test_output_ends_before_the_first_stop_string(pushed, stops):
    stream = TextStream(stops)
    out = play(stream, pushed)
    text = b"".join(piece for _, piece in pushed).decode()
    expected, stop = first_stop(text, stops)
    assert "".join(t.text for t in out) == expected
    assert stream.stopped == stop
    assert [t.id for t in out] == list(range(len(out)))
    if stop is None:
        assert len(out) == len(pushed)


@given(tokens(text_bytes("abc")), small_stops)
def test_no_part_of_a_stop_string_leaks_before_the_stop_is_known(pushed, stops):
    stream, given_in, shown = TextStream(stops), "", ""
    for token, piece in pushed:
        given_in += piece.decode()
        shown += "".join(t.text for t in stream.push(token, piece))
        before, stop = first_stop(given_in, stops)
        if stop is not None:
            assert shown == before
            break
        held = given_in[len(shown) :]
        assert given_in.startswith(shown)
        # Nothing shown can be the beginning of a stop that later text completes, ...
        for s in stops:
            for n in range(1, len(s)):
                assert not given_in.endswith(s[:n]) or len(held) >= n
        # ... and no token is held whose text, and all before it, is safe.
        if held and not any(given_in.endswith(s[:n]) for s in stops for n in range(1, len(s))):
            raise AssertionError(f"held {held!r} for nothing")


@given(tokens(st.lists(st.sampled_from(["中", "😀", "a"])).map(lambda p: "".join(p).encode())))
def test_stops_of_several_bytes(pushed):
    stops = ["中😀", "aa"]
    stream = TextStream(stops)
    out = play(stream, pushed)
    text = b"".join(piece for _, piece in pushed).decode()
    expected, stop = first_stop(text, stops)
    assert "".join(t.text for t in out) == expected
    assert stream.stopped == stop


def test_nothing_comes_out_after_a_stop():
    stream = TextStream(["END"])
    plain = Token(0, "", Kind.PLAIN, Kind.PLAIN, 0, 1.0)
    assert [t.text for t in stream.push(plain, b"xEND and more")] == ["x"]
    assert stream.push(plain, b"y") == []
    assert stream.finish() == []
    assert stream.stopped == "END"


def test_empty_stop_strings_are_ignored():
    stream = TextStream(["", "b"])
    plain = Token(0, "", Kind.PLAIN, Kind.PLAIN, 0, 1.0)
    assert [t.text for t in stream.push(plain, b"a")] == ["a"]
    assert stream.stopped is None


@given(st.text())
def test_strip_control_leaves_only_printable_text(text):
    clean = strip_control(text)
    assert len(clean) == len(text)
    for before, after in zip(text, clean, strict=True):
        control = ord(before) < 0x20 or 0x7F <= ord(before) < 0xA0 or before in BIDI
        assert after == ("\ufffd" if control and before not in "\t\n" else before)


def test_strip_control_lets_no_text_reorder_its_surroundings():
    assert strip_control(f"a{BIDI}b") == "a" + "\ufffd" * len(BIDI) + "b"


@pytest.mark.parametrize("attack", ["\x1b[2J", "\x9b31m", "a\rb", "\x7f", "\x1b]52;c;eA==\a"])
def test_strip_control_leaves_no_escape_sequence(attack):
    assert not set(strip_control(attack)) & set("\x1b\x9b\r\x07\x7f")
