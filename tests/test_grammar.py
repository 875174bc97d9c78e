"""Grammars: constrained answers parse, speculation changes nothing, bad grammars are refused."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from engine_fixtures import (
    Script,
    answer,
    chat,
    check_caches,
    finish,
    self_draft,
    start,
)
from hypothesis import given
from hypothesis import strategies as st

from specchat.engine import gbnf
from specchat.engine.batch import drive
from specchat.engine.drafters import DraftRequest, LookupDrafter, Step
from specchat.engine.events import FinishReason, Kind
from specchat.engine.grammar import ANY_OBJECT, gbnf_from_schema
from specchat.engine.llama import Grammar
from specchat.engine.rules import Exact, Match
from specchat.engine.sampling import Chain, SamplingParams
from specchat.errors import GrammarError

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer"},
        "likes": {"type": "array", "items": {"enum": ["tea", "rain"]}, "maxItems": 3},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
QUESTION = "Describe a person called Ann as JSON."
# "a" leads to a place where no character fits; "b" is fine.
DEAD_END = 'root ::= "a" [^\\U00000001-\\U0010FFFF] | "bee"'


# -- answers ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def person():
    return gbnf_from_schema(PERSON)


def constrained(model, cache, source, *drafters, question=QUESTION, **settings):
    grammar = Grammar(model.tokenizer, source)
    run = answer(cache, chat(model, question), *drafters, grammar=grammar, **settings)
    assert grammar._sampler is None  # closed with the answer
    return run


def check_person(text):
    found = json.loads(text)
    assert list(found) == ["name", "age", "likes"]
    assert isinstance(found["age"], int)
    assert len(found["name"]) <= 12
    assert len(found["likes"]) <= 3
    assert set(found["likes"]) <= {"tea", "rain"}


@pytest.mark.model
@pytest.mark.parametrize("kind", ["draft", "lookup", "wrong"])
def test_constrained_greedy_does_not_depend_on_the_draft(chat_model, borrow, person, kind):
    cache = borrow(chat_model)
    plain = constrained(chat_model, cache, person, max_tokens=120, logprobs=2)
    assert plain.finish.reason is FinishReason.STOP
    check_person(plain.text)
    drafter = {
        "draft": lambda: self_draft(chat_model, borrow),
        "lookup": LookupDrafter,
        "wrong": lambda: Script([7] * 200),
    }[kind]()
    run = constrained(chat_model, cache, person, drafter, length=5, max_tokens=120)
    # Among allowed tokens near-ties are rare, and their margin is not in the raw logits.
    assert run.answer == plain.answer
    check_person(run.text)
    check_caches(run, cache)
    if kind == "draft":
        assert run.finish.usage.accepted_tokens > 0.9 * run.finish.usage.drafted_tokens
    if kind == "wrong":
        assert run.finish.usage.accepted_tokens == 0


@pytest.mark.model
@pytest.mark.parametrize("rule", [Exact(), Match()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("seed", range(3))
def test_constrained_samples_always_parse(chat_model, borrow, person, rule, seed):
    params = SamplingParams(temperature=1.3, top_k=0, top_p=1.0, min_p=0.02, seed=seed)
    cache, drafter = borrow(chat_model), self_draft(chat_model, borrow)
    run = constrained(
        chat_model,
        cache,
        person,
        LookupDrafter(),
        drafter,
        rule=rule,
        params=params,
        length=4,
        max_tokens=150,
    )
    assert run.finish.reason is FinishReason.STOP
    check_person(run.text)
    check_caches(run, cache, drafter.cache)
    assert {t.kind for t in run.tokens} >= {Kind.ACCEPTED}


@pytest.mark.model
def test_every_beginning_of_an_answer_fits_the_grammar(chat_model, borrow):
    """Cut off by max_tokens, the text is still the beginning of a JSON object."""
    source = gbnf_from_schema(ANY_OBJECT)
    run = constrained(
        chat_model,
        borrow(chat_model),
        source,
        self_draft(chat_model, borrow),
        length=4,
        max_tokens=25,
    )
    with Grammar(chat_model.tokenizer, source) as grammar:
        for token in run.answer:
            grammar.accept(token)
    assert run.text.lstrip().startswith("{")


@pytest.mark.model
def test_a_draft_may_run_into_a_dead_end_without_harm(chat_model, borrow):
    tokenizer = chat_model.tokenizer
    a = tokenizer.tokenize("a")[0]
    forbidden = {t: -np.inf for t in range(chat_model.n_vocab) if tokenizer.piece(t)[:1] == b"a"}
    cache, drafter = borrow(chat_model), self_draft(chat_model, borrow)
    run = constrained(chat_model, cache, DEAD_END, Script([a] * 9), params=biased(forbidden))
    assert run.text == "bee"

    # The draft model goes there by itself, and stops at the dead end without an error.
    grammar = Grammar(tokenizer, DEAD_END)
    wanting = Chain(biased({a: 1000.0}), chat_model.n_vocab)
    context = chat(chat_model, QUESTION)
    steps = drafter.propose(
        DraftRequest(
            context=context,
            recent=[],
            length=5,
            chain=wanting,
            worth=lambda drafted, confidence: Step.MORE,
            rng=np.random.default_rng(0),
            is_eog=tokenizer.is_eog,
            grammar=grammar,
        )
    )
    assert finish(steps).tokens == [a]
    grammar.close()


@pytest.mark.model
def test_a_target_in_a_dead_end_is_an_error(chat_model, borrow):
    cache, tokenizer = borrow(chat_model), chat_model.tokenizer
    params = biased({tokenizer.tokenize("a")[0]: 1000.0})
    grammar = Grammar(tokenizer, DEAD_END)
    generation = start(cache, chat(chat_model, QUESTION), grammar=grammar, params=params)
    with pytest.raises(GrammarError, match="allows no token here"):
        list(drive(generation.run()))
    assert grammar._sampler is None
    assert cache.tokens == generation.context[:-1]


def biased(bias):
    return SamplingParams(temperature=0.0, logit_bias=bias)


@pytest.mark.model
def test_an_answer_that_completes_the_grammar_ends(chat_model, borrow):
    run = constrained(chat_model, borrow(chat_model), 'root ::= "yes" | "no"')
    assert run.text in ("yes", "no")
    assert run.finish.reason is FinishReason.STOP
    assert chat_model.tokenizer.is_eog(run.answer[-1])


@pytest.mark.model
@pytest.mark.parametrize("text", ["é", "中文", "😀👩‍👩‍👧", "\n\t"])
def test_characters_of_several_tokens(chat_model, borrow, text):
    literal = text.replace("\n", "\\n").replace("\t", "\\t")
    run = constrained(chat_model, borrow(chat_model), f'root ::= "{literal}"', Script([5] * 99))
    assert run.text == text


# -- the grammar object ----------------------------------------------------------------


@pytest.mark.model
def test_a_clone_goes_its_own_way(chat_model):
    tokenizer = chat_model.tokenizer
    a, b, c = (tokenizer.tokenize(t)[0] for t in "abc")
    ids = np.array([a, b, c], np.int32)
    with Grammar(tokenizer, 'root ::= "a" ("b" | "c" "a")') as grammar:
        grammar.accept(a)
        with grammar.clone() as clone:
            clone.accept(c)
            assert clone.allowed(ids).tolist() == [True, False, False]
        assert grammar.allowed(ids).tolist() == [False, True, True]
        with pytest.raises(GrammarError, match=f"Token {a} does not fit"):
            grammar.accept(a)
        assert grammar.allowed(ids).tolist() == [False, True, True]
        grammar.close()


@pytest.mark.model
def test_end_and_control_tokens(chat_model):
    tokenizer = chat_model.tokenizer
    end, begin = (tokenizer.special_texts()[t] for t in ("<|im_end|>", "<|im_start|>"))
    ids = np.array([end, begin, tokenizer.tokenize("a")[0]], np.int32)
    with Grammar(tokenizer, 'root ::= "a"') as grammar:
        assert grammar.allowed(ids).tolist() == [False, False, True]
        grammar.accept(int(ids[2]))
        assert grammar.allowed(ids).tolist() == [True, False, False]
        grammar.accept(end)


# -- bad grammars ----------------------------------------------------------------------

DAG = "\n".join(f"a{i} ::= a{i + 1} | a{i + 1}" for i in range(40))


def optional(item, n=12):
    """0 to n times, as converters of schemas and regular expressions write it."""
    return f"({item} " * n + ")?" * n


BAD = {
    "empty": ("", "is empty"),
    "blank": (" \n\t", "is empty"),
    "comment": ("# nothing\n", "no rule named root"),
    "no root": ('start ::= "a"', "no rule named root"),
    "no rule": ("hello", "line 1, at its end: expected ::="),
    "open text": ('root ::= "a', "line 1, before '\"a': expected a closed text"),
    "bad escape": ('root ::= "\\q"', "known escapes"),
    "open class": ("root ::= [a-", "closed set"),
    "open group": ('root ::= ("a"\n', "at its end: expected an item"),
    "closed group": ('root ::= "a")', "before '\\)': expected an item"),
    "third line": ('root ::= a\na ::= "x"\nb ::= }', "line 3, before '}'"),
    "undefined": ("root ::= foo", "uses the rule 'foo' but does not define it"),
    "left": ('root ::= root "a" | "b"', "left recursion in the rule 'root'"),
    "mutual": ('root ::= b "x"\nb ::= root "y" | "z"', "left recursion"),
    "hidden": ('root ::= a root "y" | "x"\na ::= b\nb ::= "" | "z"', "left recursion"),
    "star": ("root ::= *", "nothing before the repetition"),
    "backwards": ('root ::= "a"{5,3}', "at least 5 and at most 3"),
    "many": ('root ::= "a"{2001}', "more than 2000 repetitions"),
    "nested": ('root ::= (("a"{0,99}){0,99}){0,99}', "more than 2000 rules"),
    "long": ('root ::= "' + "a" * 1000 + '"{2000}', "elements written out"),
    "deep": ("root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000, "nested parentheses"),
    "paths": (f'root ::= a0\n{DAG}\na40 ::= "x"', "too complex"),
    "chain": (
        "root ::= a0\n" + "\n".join(f"a{i} ::= a{i + 1}" for i in range(5000)) + '\na5000 ::= "x"',
        "too complex",
    ),
    "ambiguous": (
        f"root ::= {optional('b')}\nb ::= {optional('a')}\na ::= {optional('[x]')}",
        "too ambiguous",
    ),
    "token": ('root ::= "a" <[3]>', "token references are not supported"),
    "not token": ("root ::= !<think>", "token references are not supported"),
    "huge": ('root ::= "' + "a" * gbnf.MAX_BYTES + '"', "bytes; at most"),
    "zero byte": ('root ::= "a" \0', "expected an item"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_grammars_are_refused(name):
    source, message = BAD[name]
    with pytest.raises(GrammarError, match=message) as caught:
        gbnf.check(source)
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


@pytest.mark.model
@pytest.mark.parametrize("name", BAD)
def test_bad_grammars_never_reach_llama_cpp(chat_model, name, capfd):
    with pytest.raises(GrammarError):
        Grammar(chat_model.tokenizer, BAD[name][0])
    assert capfd.readouterr() == ("", "")


GOOD = {
    "right recursion": 'root ::= "a" root | "b"',
    "empty rule": 'root ::= a "b"\na ::= | "x"',
    "blanks in a star": 'root ::= (ws)* "x"\nws ::= [ ]*',
    "comments": '# first\nroot ::= "a" # then\n  # last\n',
    "group over lines": 'root ::= (\n  "a" |\n  "b" # c\n)\n',
    "classes": r'root ::= [^a-z\]\\"-] [a-] [\x41-\u00e9] [] .',
    "repeats": 'root ::= "a"? "b"+ "c"* "d"{2} "e"{1,} "f"{0,3} "g"{0}',
    "stacked repeats": 'root ::= "a"{2}{3}',
    "defined twice": 'root ::= "a"\nroot ::= "b"',
    "line after the sign": 'root ::=\n  "a"',
    "alternatives over lines": 'root ::= "a" |\n  "b"',
    "crlf": 'root ::= a\r\na ::= "x"\r\n',
    "parentheses": "root ::= " + "(" * 990 + '"a"' + ")" * 990,
}


@pytest.mark.model
@pytest.mark.parametrize("name", GOOD)
def test_good_grammars_pass_and_llama_cpp_takes_them(chat_model, name, capfd):
    Grammar(chat_model.tokenizer, GOOD[name]).close()
    assert capfd.readouterr() == ("", "")


def test_the_grammars_of_llama_cpp_pass():
    from llama_cpp import llama_grammar

    sources = [v for k, v in vars(llama_grammar).items() if k.endswith("_GBNF")]
    assert len(sources) > 3
    for source in sources:
        gbnf.check(source)


@pytest.mark.parametrize(
    "schema",
    [
        ANY_OBJECT,
        PERSON,
        {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 400},
        {"anyOf": [{"const": 1}, {"type": "null"}, {"type": "boolean"}]},
        {"type": "string", "pattern": "^[a-z]{2,5}(-[0-9]+)*$"},
        {"type": "object", "properties": {k: {"type": "string"} for k in "abcdefghij"}},
        {
            "type": "object",
            "properties": {"c": {"$ref": "#/$defs/t"}},
            "$defs": {"t": {"type": "object", "properties": {"n": {"$ref": "#/$defs/t"}}}},
        },
    ],
    ids=str,
)
def test_schemas_make_grammars_that_pass(schema):
    gbnf.check(gbnf_from_schema(schema))


# Pieces that make mostly well-formed grammars, with an occasional mistake.
ITEM = st.sampled_from(
    ['"a"', '"xy"', '""', "[a-z]", "[^x]", "[]", ".", "a", "b", "root", "( ", ") ", "(a | b)",
     '("x" a)', "| ", "* ", "+ ", "? ", "{2} ", "{0,3} ", "{1,} ", "{3,1}", '"', "\\", "# c\n",
     "\n", " ", "::=", "]", "{", "}"]
)  # fmt: skip
GRAMMAR = st.lists(ITEM, min_size=1, max_size=8).map(" ".join)


@pytest.mark.model
@given(st.tuples(GRAMMAR, GRAMMAR, GRAMMAR))
def test_the_check_agrees_with_llama_cpp(chat_model, bodies):
    """What the check lets through llama.cpp takes; what it calls bad syntax, llama.cpp too."""
    import llama_cpp.llama_cpp as C

    source = "".join(
        f"{name} ::= {body}\n" for name, body in zip(("root", "a", "b"), bodies, strict=True)
    )
    try:
        gbnf.check(source)
        error = ""
    except GrammarError as refused:
        error = str(refused)
    if any(word in error for word in ("at most 1", "left recursion", "nested repetitions")):
        return  # the faults that llama.cpp would not survive
    stderr = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        vocab = chat_model.tokenizer._vocab
        sampler = C.llama_sampler_init_grammar(vocab, source.encode(), b"root")
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(null)
    assert bool(sampler) == (error == "")
    if sampler:
        C.llama_sampler_free(sampler)


HANGS = """
import sys
from specchat.engine import gbnf
from specchat.errors import GrammarError
for source in (
    "root ::= [" + "a-b" * 40_000,
    'root ::= "' + "\\\\n" * 60_000,
    "root ::= " + "a" * 200_000,
    "root ::= " + "[a]{0,9}" * 20_000,
    "root ::= " + "a | " * 60_000 + 'a\\na ::= "x"',
    "root ::= r0\\n" + "\\n".join(f"r{i} ::= " + f"r{i+1}? " * 40 for i in range(900))
    + '\\nr900 ::= "x"',
):
    try:
        gbnf.check(source)
    except GrammarError:
        pass
"""


def test_the_check_itself_is_quick_on_hostile_grammars():
    subprocess.run([sys.executable, "-c", HANGS], check=True, timeout=60)


CHAIN = {
    "$ref": "#/$defs/tree_node",
    "$defs": {
        "tree_node": {
            "type": "object",
            "properties": {
                "value": {"$ref": "#/$defs/string"},
                "next": {"anyOf": [{"$ref": "#/$defs/tree_node"}, {"type": "null"}]},
            },
            "required": ["value", "next"],
        },
        "string": {"type": "string", "maxLength": 2},
    },
}


def fits(model, source, text):
    with Grammar(model.tokenizer, source) as grammar:
        for token in (*model.tokenizer.tokenize(text), model.tokenizer.eos):
            if not grammar.allowed(np.array([token], np.int32))[0]:
                return False
            grammar.accept(token)
    return True


def text_of(pattern):
    return {"type": "string", "pattern": pattern}


@pytest.mark.model
@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (CHAIN, {"value": "a", "next": {"value": "b", "next": None}}, {"value": "abc"}),
        ({"enum": ['ä"\n', "😀\\", {"a": ["\t"]}]}, 'ä"\n', "b"),
        ({"enum": ['ä"\n', "😀\\", {"a": ["\t"]}]}, "😀\\", "😀"),
        ({"enum": ['ä"\n', "😀\\", {"a": ["\t"]}]}, {"a": ["\t"]}, {"a": []}),
        ({"type": "object", "properties": {'a "b\\': {"const": 1}}, "required": ['a "b\\']},
         {'a "b\\': 1}, {"a": 1}),
        (text_of(r"^[A-Z]{3}-\d{2,4}$"), "ABC-123", "ABC-x"),
        (text_of(r"^[\w.-]+@\S+\.com$"), "a.b-c@de.com", "a@de,com"),
        (text_of(r'^"\\\/(?:a|b)\$\^$'), '"\\/b$^', '"/b$^'),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_schema_allows(chat_model, schema, good, bad):
    source = gbnf_from_schema(schema)
    assert fits(chat_model, source, json.dumps(good, ensure_ascii=False))
    assert not fits(chat_model, source, json.dumps(bad, ensure_ascii=False))


@pytest.mark.model
@pytest.mark.parametrize(
    ("schema", "text"),
    [({"type": "string"}, '"a\nb"'), (text_of("^.*$"), '"a"b"'), (text_of("^[^x]+$"), '"a\\"')],
    ids=str,
)
def test_no_schema_allows_what_is_no_json(chat_model, schema, text):
    assert not fits(chat_model, gbnf_from_schema(schema), text)


def test_a_pattern_that_is_not_understood_is_named():
    with pytest.raises(GrammarError, match=r"pattern .* has an unsupported \\b"):
        gbnf_from_schema(text_of(r"^a\b$"))


@pytest.mark.parametrize(
    "schema", [{"type": "nonsense"}, {"$ref": "#/nowhere"}, {"type": "string", "pattern": "a("}]
)
def test_unusable_schemas(schema):
    with pytest.raises(GrammarError):
        gbnf.check(gbnf_from_schema(schema))
