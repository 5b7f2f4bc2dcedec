"""What can be compiled, what is refused and with which words, and that neither takes long, whatever is asked for."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from pellucid.sampling.params import StructuredOutputsParams
from pellucid.structured.compiler import CompiledGrammar, GrammarCompiler, fill_mask
from pellucid.structured.errors import ConstraintError
from pellucid.structured.grammar import MAX_DEPTH, json_in_lark
from pellucid.structured.vocabulary import GrammarVocabulary


def accepts(grammar: CompiledGrammar, text: str, encode) -> bool:
    """Whether the whole text is one that the grammar allows to end there."""
    matcher = grammar.new_matcher()
    token_ids = encode(text, add_special_tokens=False)
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


NUMBER_PAIR = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
DATE = {"type": "string", "format": "date"}
DATES = {
    "type": "array",
    "items": {"anyOf": [DATE, {"$ref": "#/$defs/time"}]},
    "$defs": {"time": {"format": "date-time"}},
}


@pytest.mark.parametrize(
    ("constraint", "good", "bad"),
    [
        (dict(json_object=True), ['{}', '{"a": [1, {"b": null}]}'], ["[]", "{", '{"a": 1}}']),
        (dict(json=json.dumps(NUMBER_PAIR)), ["[-1,2]", "[\n    1,\n    2\n]"], ["[1]", "[1,2,3]", '["1",2]']),
        (dict(json=json.dumps(DATE)), ['"2024-02-29"', '"2000-02-29"', '"0010-10-31"'],
         ['"0000-01-01"', '"2023-02-29"', '"1900-02-29"', '"2024-04-31"', '"2024-02"']),
        (dict(json=json.dumps({**DATE, "pattern": "^2"})), ['"2024-02-29"'], ['"2023-02-29"', '"1999-12-31"']),
        (dict(json=json.dumps({"properties": {"default": DATE}, "default": {"format": "date"}})),
         ['{"default": "2023-02-28"}'], ['{"default": "2023-02-29"}']),
        (dict(grammar="start: " + json_in_lark(DATES)), ['["2024-02-29", "2024-02-29T00:00:00Z"]', "[]"],
         ['["2023-02-29"]', '["2023-02-29T00:00:00Z"]']),
        (dict(regex=r"\d{3}-\w+"), ["123-ab_9"], ["12-a", "123-", "１２３-a"]),
        (dict(regex="a/b"), ["a/b"], ["ab"]),
        (dict(regex=r"a\\\\"), [r"a\\"], ["a"]),
        (dict(choice=("Paris", 'the "City"\n', "Parish")), ["Paris", "Parish", 'the "City"\n'], ["Pari", "paris"]),
        (dict(grammar='start: "x" NUMBER\nNUMBER: /[0-9]+/'), ["x1", "x12"], ["x", "1"]),
        (dict(grammar='root ::= "x" num+\nnum ::= [0-9]'), ["x1", "x12"], ["x", "1"]),
        (dict(grammar='start: "call: " ' + json_in_lark(NUMBER_PAIR)), ["call: [1, 2]"], ["[1, 2]", "call: []"]),
    ],
)  # fmt: skip
def test_a_text_is_accepted_where_it_fits_and_only_there(compiler: GrammarCompiler, text, constraint, good, bad):
    grammar = compiler.compile(StructuredOutputsParams(**constraint))
    assert [t for t in good if not accepts(grammar, t, text.tokenizer.encode)] == []
    assert [t for t in bad if accepts(grammar, t, text.tokenizer.encode)] == []


UNBOUNDED = '{"type": "object", "x-guidance": {"whitespace_pattern": ".*"}}'


def test_white_space_in_json_is_bounded(compiler: GrammarCompiler, text):
    grammar = compiler.compile(StructuredOutputsParams(json=UNBOUNDED))
    encode = text.tokenizer.encode
    assert accepts(grammar, '{\n    "a":\n        1}', encode)
    for spaces in ("  ", "\n\n", "\n" + 40 * " ", "\t"):
        assert not accepts(grammar, '{"a":' + spaces + "1}", encode)


def schema_nested(depth: int) -> str:
    schema: dict = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return json.dumps(schema)


def chain(link, last) -> str:
    definitions = {f"d{i}": link(f"#/$defs/d{i + 1}") for i in range(1000)} | {"d1000": last}
    return json.dumps({"$defs": definitions, "$ref": "#/$defs/d0"})


def crossed(size: int) -> str:
    unions = [
        {"anyOf": [{"type": "object", "properties": {f"p{i}_{j}": {"type": "string"}}} for j in range(size)]}
        for i in range(size)
    ]
    return json.dumps({"allOf": unions})


REFUSED = [
    ("json", "{", "no JSON"),
    ("json", "[]", "an object"),
    ("json", schema_nested(MAX_DEPTH + 1), "levels deep"),
    ("json", "[" * 50_000, "deep"),
    ("json", json.dumps({"enum": ["x" * 200_000]}), "bytes"),
    ("json", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
    ("json", '{"type": "object", "properties": {"a": {"if": {}, "then": {}}}}', '"if", "then"'),
    ("json", '{"not": {"type": "string"}}', "not"),
    ("json", '{"type": "string", "format": "phone"}', "phone"),
    ("json", '{"format": "date", "pattern": "x", "allOf": 5}', "allOf"),
    ("json", '{"type": "thing"}', "thing"),
    ("json", '{"$ref": "#/$defs/missing"}', "missing"),
    ("json", '{"$ref": "https://example.com/schema.json"}', "example.com"),
    ("json", '{"type": "string", "pattern": "("}', "unclosed group"),
    ("json", '{"enum": []}', "nsatisfiable"),
    ("json", '{"type": "integer", "multipleOf": 99999989}', "multipleOf"),
    ("json", chain(lambda ref: {"type": "array", "items": {"$ref": ref}}, {"type": "string"}), "$ref"),
    ("json", chain(lambda ref: {"$ref": ref}, {"type": "string"}), "$ref"),
    ("json", crossed(8), "too large"),
    ("regex", "(", "unclosed group"),
    ("regex", "(?=a)b", "look-ahead"),
    ("regex", "a\\", "backslash"),
    ("regex", "a\\\\\\", "backslash"),
    ("regex", r"(a)\1", "backreferences"),
    ("regex", "(" * 10_000 + "a" + ")" * 10_000, "bytes"),
    ("regex", "(" * 2_000 + "a" + ")" * 2_000, "nest"),
    ("choice", (), "at least one"),
    ("choice", tuple(map(str, range(5000))), "5000 entries"),
    ("grammar", "start: x", '"x"'),
    ("grammar", "start: a\na: b\nb: a", "no text"),
    ("grammar", "start: <|im_end|>", "ends the text"),
    ("grammar", 'start: "a" <|im_end|> "b"', "ends the text"),
    ("grammar", "start: " + "(" * 20_000 + '"a"' + ")" * 20_000, "nested"),
    ("grammar", "start: a0\n" + "\n".join(f"a{i}: a{i + 1}" for i in range(5000)) + '\na5000: "x"', "rules"),
    ("grammar", 'start: %json {"type": "integer", "multipleOf": 99999989}', "multipleOf"),
    ("grammar", 'start: %json {"type": "integer", "multipleOf": ' + "9" * 5000 + "}", "multipleOf"),
    ("grammar", 'start: "%json" %json {"type": "integer", "multipleOf": 99999989}', "multipleOf"),
    ("grammar", "start: %json {", "EOF"),
    ("grammar", "root ::= (", "GBNF"),
    ("grammar", "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000, "nested"),
    ("grammar", "start: a{1000}\na: b{1000}\nb: c{1000}\nc: \"x\"", "Too many items"),
]  # fmt: skip


@pytest.mark.parametrize("source", [
    'start: %json {"type": "string", "description": "Formats as %json or text"}',
    'start: "%json" "x"',
    r'start: /%json [a-z]+/',
])  # fmt: skip
def test_a_text_may_hold_the_word_that_schemas_begin_with(compiler: GrammarCompiler, source: str) -> None:
    compiler.compile(StructuredOutputsParams(grammar=source))


@pytest.mark.parametrize(("kind", "source", "words"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_obeyed_is_refused_by_name_and_soon(compiler: GrammarCompiler, kind, source, words):
    begin = time.perf_counter()
    with pytest.raises(ConstraintError) as caught:
        compiler.compile(StructuredOutputsParams(**{kind: source}))
    assert time.perf_counter() - begin < 5.0
    assert caught.value.kind == kind
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


HEAVY = {
    "nested repetitions": dict(regex="((a{1,100}){1,100}){1,100}"),
    "much to remember": dict(regex="(.*a){30}"),
    "a long lookback": dict(regex=".*a.{25}"),
    "many words": dict(regex="(" + "|".join(f"w{i}.*q" for i in range(1500)) + ")"),
    "many choices": dict(choice=tuple(f"choice number {i * 7919}" for i in range(1900))),
    "doubled references": dict(
        json=json.dumps(
            {
                "$defs": {"d0": {"type": "string"}}
                | {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i - 1}"}] * 2} for i in range(1, 26)},
                "$ref": "#/$defs/d25",
            }
        )
    ),
    "a pattern": dict(json='{"type": "string", "pattern": "(.*a){30}"}'),
    "a huge bound": dict(json='{"type": "array", "minItems": 100000, "items": {"type": "integer"}}'),
    "many properties": dict(
        json=json.dumps({"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(400)}})
    ),
    "an ambiguous grammar": dict(
        grammar='start: x x x x\nx: y y y y\ny: z z z z z z\nz: "a" | "b" "c" | z z | ',
    ),
}


@pytest.mark.parametrize("name", HEAVY)
def test_heavy_constraints_take_bounded_time_to_compile_and_in_every_step(
    compiler, vocabulary: GrammarVocabulary, name
):
    begin = time.perf_counter()
    matcher = compiler.compile(StructuredOutputsParams(**HEAVY[name])).new_matcher()
    assert time.perf_counter() - begin < 3.0
    mask = np.zeros((vocabulary.vocab_size + 31) // 32, np.int32)
    random = np.random.default_rng(0)
    for _ in range(60):
        begin = time.perf_counter()
        fill_mask(matcher, mask)
        assert time.perf_counter() - begin < 1.5
        ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        ids = ids[~np.isin(ids, vocabulary.eos_token_ids)]
        if matcher.is_error() or not len(ids):
            break
        matcher.consume_token(int(random.choice(ids)))


def test_compiled_grammars_are_kept_within_a_bound_in_bytes(vocabulary: GrammarVocabulary):
    room_for_three = 3 * 300_000
    compiler = GrammarCompiler(lambda: vocabulary, cache_bytes=room_for_three)
    first = StructuredOutputsParams(regex="a0+")
    kept = compiler.compile(first)
    for i in range(1, 10):
        compiler.compile(StructuredOutputsParams(regex=f"a{i}+"))
        assert 0 < compiler.cached_bytes <= room_for_three
        assert compiler.compile(first) is kept  # used again and again: never the one to go
    again = compiler.compile(StructuredOutputsParams(regex="a5+"))
    assert compiler.compile(StructuredOutputsParams(regex="a5+")) is again


def test_a_model_without_an_end_can_not_be_constrained(text):
    with pytest.raises(ValueError, match="no token that ends a text"):
        GrammarVocabulary(text.tokenizer, (), text.tokenizer.vocab_size)
