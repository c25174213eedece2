"""Templates that try to get out, or to go on forever."""

from __future__ import annotations

import threading
import tracemalloc

import pytest

from hotset.errors import InputError
from hotset.text import ChatTemplate

CHAT = [{"role": "user", "content": "x"}]
DOUBLING = "{%% set ns = namespace(x=%s) %%}{%% for i in range(60) %%}{%% set ns.x = %s %%}{%% endfor %%}{{ %s }}"
BIG = "{% set big = 'a' * 1000000 %}{% set same = 'a' * 1000000 %}"
LOOP = "{%% for i in range(99999) %%}{%% for j in range(99999) %%}%s{%% endfor %%}{%% endfor %%}"

ESCAPES = {
    "attribute": "{{ ''.__class__ }}",
    "item": "{{ ''['__class__'] }}",
    "mro": "{{ messages.__class__.__mro__[1].__subclasses__() }}",
    "attr filter": "{{ ''|attr('__class__') }}",
    "map": "{{ ['']|map(attribute='__class__')|list }}",
    "map attr": "{{ ['']|map('attr', '__class__')|list }}",
    "select": "{{ ['']|selectattr('__class__')|list }}",
    "join": "{{ ['']|join(attribute='__class__') }}",
    "sum": "{{ ['']|sum(attribute='__class__') }}",
    "groupby": "{{ ['']|groupby('__class__') }}",
    "format": "{{ '{0.__class__}'.format(messages) }}",
    "format_map": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "format alias": "{% set f = '{0.__class__.__mro__}'.format %}{{ f(1) }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "function": "{{ range.__code__ }}",
    "init": "{{ cycler.__init__.__globals__.os }}",
    "self": "{{ self._TemplateReference__context }}",
    "environment": "{{ self.__init__.__globals__ }}",
    "generator": "{{ (messages|map('upper')).gi_frame }}",
    "mutation": "{{ messages.append(1) }}",
    "mutation of a message": "{{ messages[0].update({'a': 1}) }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "lipsum": "{{ lipsum.__globals__ }}",
}

BOMBS = {
    "loops": LOOP % "",
    "loops that pass over all": "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}x{% endfor %}{% endfor %}",
    "calls": "{% macro f() %}{% endmacro %}" + LOOP % "{{ f() }}",
    "tests": LOOP % "{{ 1 if 3 is divisibleby 2 }}",
    "filters": LOOP % "{% set x = range(99999)|map('string')|list %}",
    "sorting": LOOP % "{% set x = range(99999)|sort %}",
    "recursive macro": "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "branching macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive block": "{% block a %}{{ self.a() }}{% endblock %}",
    "recursive loop": "{% for x in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "output": "{% for a in range(99999) %}{% for b in range(999) %}" + "x" * 9999 + "{% endfor %}{% endfor %}",
    "multiplied string": "{{ 'a' * 10**9 }}",
    "multiplied list": "{{ 1000000000 * [1] }}",
    "power": "{{ 2 ** (10 ** 10) }}",
    "squares": DOUBLING % ("3", "ns.x * ns.x", "ns.x"),
    "added strings": DOUBLING % ("'ab'", "ns.x + ns.x", "ns.x"),
    "joined strings": DOUBLING % ("'ab'", "ns.x ~ ns.x", "ns.x"),
    "added lists": DOUBLING % ("[1]", "ns.x + ns.x", "ns.x"),
    "nested lists": DOUBLING % ("[1]", "[ns.x, ns.x]", "ns.x"),
    "nested dicts": DOUBLING % ("1", "dict(a=ns.x, b=ns.x)", "ns.x|tojson"),
    "nested and compared": DOUBLING % ("1", "dict(a=ns.x, b=ns.x)", "ns.x == dict(a=ns.x.a, b=ns.x.b)"),
    "nested namespaces": DOUBLING % ("1", "namespace(a=ns.x, b=ns.x)", "ns.x"),
    "nested by arguments": "{% set ns = namespace(x=1) %}{% macro f() %}{% set ns.x = varargs %}{% endmacro %}"
    "{% for i in range(60) %}{{ f(ns.x, ns.x) }}{% endfor %}{{ {ns.x: 1} }}",
    "captured blocks": "{% set ns = namespace(x='ab') %}{% for i in range(60) %}"
    "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
    "kept strings": "".join(f"{{% set a{n} = 'x' * 3000000 %}}" for n in range(500)),
    "kept lists": DOUBLING.replace("60", "99999") % ("[]", "[ns.x, [1] * 1000]", "1"),
    "replace": "{{ ('a' * 100000).replace('', 'b' * 100000) }}",
    "replace filter": "{{ ('a' * 100000)|replace('a', 'b' * 100000) }}",
    "join": "{{ ('b' * 100000).join(['a'] * 100000) }}",
    "join filter": "{{ range(99999)|join('b' * 100000) }}",
    "sum of lists": "{{ ([['a'] * 1000] * 1000)|sum(start=[]) }}",
    "center": "{{ 'a'.center(1000000000) }}",
    "center filter": "{{ 'a'|center(1000000000) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (1000000000, 1) }}",
    "percent many": "{{ ('%s' * 10000) % (('a' * 10000,) * 10000) }}",
    "format filter": "{{ '%1000000000d'|format(1) }}",
    "format width": "{{ '{:1000000000}'.format(1) }}",
    "format nested width": "{{ '{:{}}'.format(1, 1000000000) }}",
    "indent": "{{ 'a\nb'|indent(1000000000) }}",
    "indented json": "{{ [1]|tojson(indent=1000000000) }}",
    "round": "{{ 1.5|round(1000000000, 'ceil') }}",
    "bytes of a number": "{{ (1).to_bytes(1000000000, 'big') }}",
    "range": "{{ range(10 ** 9)|list }}",
    "slices": BIG + LOOP % "{% set x = big[1:] %}",
    "comparisons": BIG + LOOP % "{% if big == same %}{% endif %}",
    "tested comparisons": BIG + LOOP % "{% if big is eq(same) %}{% endif %}",
    "searches": BIG + LOOP % "{% if 'b' in big %}{% endif %}",
    "splits": BIG + LOOP % "{% set x = big.split('b') %}",
    "nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "nested blocks": "{% if 1 %}" * 300 + "{% endif %}" * 300,
    "a long template": "x" * (1 << 19),
}


@pytest.mark.parametrize("name", ESCAPES)
def test_there_is_no_way_out(name):
    with pytest.raises(InputError, match="chat template, line 1"):
        ChatTemplate(ESCAPES[name]).render(CHAT)


@pytest.mark.parametrize("name", BOMBS)
def test_there_is_no_going_on_forever(name):
    with pytest.raises(InputError, match="chat template"):
        ChatTemplate(BOMBS[name]).render(CHAT)


@pytest.mark.parametrize("name", ["kept strings", "kept lists", "added strings", "nested lists", "splits"])
def test_memory_is_bounded(name):
    template = ChatTemplate(BOMBS[name])
    tracemalloc.start()
    try:
        with pytest.raises(InputError):
            template.render(CHAT)
        assert tracemalloc.get_traced_memory()[1] < 300e6
    finally:
        tracemalloc.stop()


def test_the_limits_hold_on_any_thread():
    template, errors = ChatTemplate(BOMBS["loops"]), []

    def render():
        with pytest.raises(InputError, match="without end"):
            template.render(CHAT)
        errors.append(True)

    threads = [threading.Thread(target=render) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [True, True]


def test_a_stopped_template_can_be_used_again():
    template = ChatTemplate("{% for i in range(n) %}{% for j in range(n) %}{% endfor %}{% endfor %}done")

    with pytest.raises(InputError):
        template.render(CHAT, n=99999)
    assert template.render(CHAT, n=2) == "done"


@pytest.mark.parametrize(
    ("source", "line"),
    [("a\n{% if %}", 2), ("a\nb {{ foo.bar.baz }}", 2), ("\n\n{{ raise_exception('no') }}", 3), ("{{ 1 / 0 }}", 1)],
)
def test_errors_name_the_line(source, line):
    with pytest.raises(InputError, match=f"chat template, line {line}: "):
        ChatTemplate(source).render(CHAT)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "013"),
        ("{% for i in [3, 4, 5] %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}", "1/3,2/3,3/3"),
        ("{% for i in [3, 4] %}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}", "4;3;"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{% for i in nothing %}x{% else %}none{% endfor %}", "none"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{{ 'a' ~ 1 ~ none ~ true }}", "a1NoneTrue"),
        ("{{ '%s-%02d' % ('a', 7) }}{{ '%s'|format(3) }}{{ '{0:>3}{b}'.format(1, b=2) }}", "a-073  12"),
        ("{{ [1, 2, 3][1:] }}{{ 'abc'[::-1] }}{{ (1, 2) }}", "[2, 3]cba(1, 2)"),
        ("{{ {'b': 1, 'a': 'é<'}|tojson }}{{ [1]|tojson(indent=2) }}", '{"b": 1, "a": "é<"}[\n  1\n]'),
        ("{{ {'b': 1, 'a': 'é'}|tojson(sort_keys=true, ensure_ascii=true, separators=(',', ':')) }}", '{"a":"\\u00e9","b":1}'),
        ("{{ messages|map(attribute='role')|join(', ') }}{{ messages|selectattr('role', 'equalto', 'user')|list|length }}", "user1"),
        ("{{ [3, 1, 2]|sort|join }}{{ [1, 1]|unique|list }}{{ [1, 2]|sum }}{{ 'x\ny'|indent(2) }}", "123[1]3x\n  y"),
        ("{{ 2 ** 10 }}{{ 7 % 4 }}{{ 'ab' * 2 }}{{ [1] + [2] }}", "10243abab[1, 2]"),
        ("{{ 'b' in 'abc' }}{{ 1 in [1] }}{{ 'role' in messages[0] }}{{ 1 < 2 < 3 }}", "TrueTrueTrueTrue"),
        ("{% macro f(x, context='c') %}{{ x }}{{ context }}{{ caller() }}{% endmacro %}{% call f(1, context=2) %}3{% endcall %}", "123"),
        ("{{ messages[0].missing }}{{ messages[0].missing is defined }}{{ messages[0].get('role') }}", "Falseuser"),
    ],
)  # fmt: skip
def test_what_templates_are_made_of_works(source, text):
    assert text == ChatTemplate(source).render(CHAT)
