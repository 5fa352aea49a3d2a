"""Chats become prompts as transformers makes them; a template cannot do harm."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path
from typing import Any

import pytest

import dspark_runtime.tokenizer as tokenizer_module
from dspark_runtime import template_worker, templates
from dspark_runtime.contract.errors import BundleError, ConfigError
from dspark_runtime.tokenizer import Tokenizer
from tests.tiny import CHAT_TEMPLATE, make_tokenizer

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "1 < 2 & 'quoted' \u00fc?"},
    {"role": "assistant", "content": " yes\n"},
    {"role": "user", "content": "Why?"},
]
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start|>' + message['role'] + '\n\n'+ message['content'] | trim + '<|eot|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\n\n' }}{% endif %}"
)
BLOCKS = """{%- if messages[0].role == 'system' %}
    {{- messages[0].content + '\n' }}
{%- endif %}
{% for message in messages[1:] %}
    {% if loop.first %}
first {{ loop.length }} {{ message | tojson }}
    {% elif loop.last %}
last {{ message.content | tojson(indent=2) }}
    {% else %}
        {% generation %}{{ message.content.strip() }}{% endgeneration %}
        {% continue %}
    {% endif %}
{% endfor %}
{%- set ns = namespace(found=0) %}{% for n in range(3) %}{% set ns.found = ns.found + n %}{% endfor %}{{ ns.found }}
{{ tools is none }} {{ eos_token }} {{ extra }}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(path)
    return path


def make(folder: Path, template: str | None, **config: Any) -> Tokenizer:
    values = json.loads((folder / "tokenizer_config.json").read_text())
    values.pop("chat_template")
    return Tokenizer((folder / "tokenizer.json").read_bytes(), values | config, template)


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, LLAMA3, BLOCKS], ids=["chatml", "llama3", "blocks"])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_chat_is_rendered_as_transformers_renders_it(folder: Path, template: str, add_generation_prompt: bool) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        chat_template=template,
    )
    wanted = theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=add_generation_prompt, extra="more")
    assert make(folder, template).render_chat(CHAT, add_generation_prompt, extra="more") == wanted


@pytest.mark.parametrize("text", ["", "plain", "\u4f60\u597d \U0001f600", "<|im_start|>user\nhi<|im_end|>", " a  b\n"])
def test_text_encoded_and_decoded_is_the_text(folder: Path, text: str) -> None:
    tokenizer = make(folder, None)
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_special_tokens_are_left_out_of_text_unless_wanted(folder: Path) -> None:
    tokenizer = make(folder, None)
    ids = tokenizer.encode("<|im_start|>a<|im_end|>")
    assert ids[0] == 1
    assert ids[-1] == 2
    assert tokenizer.decode(ids) == "a"
    assert tokenizer.decoder(False)(ids) == "<|im_start|>a<|im_end|>"


def test_template_in_a_list_is_found_by_the_name_default(folder: Path) -> None:
    named = [
        {"template": "nameless"},
        {"name": "tool_use", "template": "no"},
        {"name": "default", "template": "{{ messages[0].content }}"},
    ]
    assert make(folder, None, chat_template=named).render_chat([{"role": "user", "content": "x"}]) == "x"


def test_special_tokens_given_as_objects_are_their_content(folder: Path) -> None:
    tokenizer = make(folder, "{{ bos_token }}", bos_token={"content": "<s>", "lstrip": False})
    assert tokenizer.render_chat(CHAT) == "<s>"


def test_chat_without_a_template_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no chat template"):
        make(folder, None).render_chat(CHAT)


@pytest.mark.parametrize("messages", [[], [{"content": "x"}], ["text"]])
def test_chat_of_something_else_is_refused(folder: Path, messages: Any) -> None:
    with pytest.raises(ConfigError, match="message"):
        make(folder, CHAT_TEMPLATE).render_chat(messages)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refused the messages: roles must alternate"),
        ("{{ ''.__class__.__mro__ }}", "refused the messages"),
        ("{{ messages.append(1) }}", "refused the messages"),
        ("{{ messages[0]['content'] + 1 }}", "failed on the messages"),
        ("{{ 'a' * 100000000 }}", "more than"),
        (
            "{% set ns = namespace(t='a') %}{% for i in range(99) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
            "more than",
        ),
        ("{{ 10 ** 100000000 }}", "more than"),
        ("{{ '{} {}'.format(1) }}", "failed on the messages: IndexError"),
        ("{% set a = [1, 2, 3] %}{{ a.index(9) }}", "failed on the messages: ValueError"),
        ("{{ 'abc'.encode('no such codec') }}", "failed on the messages: LookupError"),
        ("{{ (1).to_bytes(4000000000, 'big') }}", "needs too much memory"),
        ("{{ 'a' | center(4000000000) }}", "needs too much memory"),
        ("{{ 'a'.zfill(4000000000) }}", "needs too much memory"),
        ("{{ '{:>4000000000}'.format(1) }}", "needs too much memory"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{% for i in range(100000) %}{% for j in range(100000) %}{{ messages }}{% endfor %}{% endfor %}", ""),
    ],
)
def test_template_that_fails_or_misbehaves_is_one_sentence(folder: Path, template: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(folder, template).render_chat(CHAT)
    assert message in str(caught.value)


def test_template_that_loops_without_writing_is_stopped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "MAX_RENDER_SECONDS", 0.2)
    template = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    start = time.monotonic()
    with pytest.raises(ConfigError, match=r"took more than 0\.2 s"):
        make(folder, template).render_chat(CHAT)
    assert time.monotonic() - start < 5


def test_template_that_computes_in_one_long_call_is_ended_and_the_next_chat_rendered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_module, "MAX_RENDER_SECONDS", 0.2)
    monkeypatch.setattr(templates, "GRACE_SECONDS", 0.8)
    # One filter that copies a growing list 4000 times: the clock of the sandbox does not see inside.
    slow = "{{ (([[0] * 4000] * 4000) | sum(start=[])) | length }}"
    template = "{% if messages | length > 1 %}" + slow + "{% endif %}fine"
    tokenizer = make(folder, template)
    start = time.monotonic()
    with pytest.raises(ConfigError, match=r"took more than 0\.2 s"):
        tokenizer.render_chat(CHAT)
    assert time.monotonic() - start < 5
    assert tokenizer.render_chat(CHAT[:1]) == "fine"


def test_process_that_renders_is_kept_replaced_when_dead_and_gone_with_the_tokenizer(folder: Path) -> None:
    tokenizer = make(folder, CHAT_TEMPLATE)
    wanted = tokenizer.render_chat(CHAT)
    first = tokenizer._renderer._process
    assert first is not None and tokenizer.render_chat(CHAT) == wanted and tokenizer._renderer._process is first
    first.kill()
    first.wait()
    assert tokenizer.render_chat(CHAT) == wanted
    second = tokenizer._renderer._process
    assert second is not None and second is not first and second.poll() is None
    del tokenizer
    gc.collect()
    assert second.poll() is not None


def test_chat_is_rendered_here_where_the_system_cannot_limit_a_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = make(folder, CHAT_TEMPLATE).render_chat(CHAT)
    monkeypatch.setattr(template_worker, "HAS_LIMITS", False)
    tokenizer = make(folder, CHAT_TEMPLATE)
    assert tokenizer.render_chat(CHAT) == wanted
    assert tokenizer._renderer._process is None


def test_chat_with_a_variable_that_is_no_json_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="must be values of JSON"):
        make(folder, CHAT_TEMPLATE).render_chat(CHAT, tools=[object()])


def test_template_with_a_syntax_error_is_a_fault_of_the_bundle(folder: Path) -> None:
    with pytest.raises(BundleError, match="chat template cannot be compiled"):
        make(folder, "{% for %}").render_chat(CHAT)


def test_tokenizer_file_that_is_none_is_a_fault_of_the_bundle() -> None:
    with pytest.raises(BundleError, match=r"tokenizer\.json: cannot be read"):
        Tokenizer(b"{}", {})


def test_prompt_with_half_a_surrogate_pair_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="not valid Unicode"):
        make(folder, None).encode("a\ud83d")
