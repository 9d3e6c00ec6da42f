import sys

import pytest

from protocol.model_files import resolve
from tokenizer_service.gguf_metadata import read_metadata
from tokenizer_service.templates import ChatTemplate, TemplateRefusedError

HELLO = [{"role": "user", "content": "Hello"}]


def template(source: str, max_steps: int = 10_000) -> ChatTemplate:
    return ChatTemplate(source, bos="<s>", eos="</s>", max_steps=max_steps)


def render(source: str) -> str:
    return template(source).render(HELLO)


def outcome(source: str) -> str:
    try:
        return render(source)
    except TemplateRefusedError as refused:
        return f"refused: {refused}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ cycler.__init__.__globals__.os.system('id') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['sys'] }}",
        "{{ lipsum.__globals__['os'].popen('id').read() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ (messages|map(attribute='__class__')|first).__init__ }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ messages.append(messages) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
    ],
)
def test_what_reaches_out_of_the_sandbox_gets_nothing(source: str) -> None:
    text = outcome(source)
    assert not any(sign in text for sign in ("<class", "<function", "uid=", "{'", "<module"))


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'x' * 1000000000 }}",
        "{{ 1000000000 * [1] }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ range(1000000000)|list }}",
    ],
)
def test_a_template_that_would_not_end_is_refused(source: str) -> None:
    with pytest.raises(TemplateRefusedError, match=r"steps|failed"):
        render(source)


def test_the_step_limit_counts_one_rendering_not_all_of_them() -> None:
    hundred = template("{% for i in range(100) %}x{% endfor %}", max_steps=1000)
    for _ in range(20):
        assert hundred.render(HELLO) == "x" * 100


def test_a_template_cannot_swallow_the_end_of_its_steps() -> None:
    source = "{% for i in range(99999) %}{{ i|default('y') }}{% endfor %}"
    with pytest.raises(TemplateRefusedError, match="over 1000 steps"):
        template(source, max_steps=1000).render(HELLO)


def test_raise_exception_carries_its_message_to_the_client() -> None:
    with pytest.raises(TemplateRefusedError, match=r"^roles must alternate$"):
        render("{{ raise_exception('roles must alternate') }}")


def test_a_template_that_does_not_parse_names_the_line() -> None:
    with pytest.raises(TemplateRefusedError, match="line 2"):
        render("{{ messages }}\n{% if %}")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("{{ messages|tojson }}", '[{"role": "user", "content": "Hello"}]'),
        ("{{ '€<'|tojson }}", '"€<"'),
        ("{% if add_generation_prompt %}go{% endif %}", "go"),
        ("{% if tools %}tools{% else %}none{% endif %}", "none"),
        (
            "{% for m in messages %}\n    {% if m.role %}\nU\n    {% endif %}\n{% endfor %}",
            "U\n",
        ),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
    ],
)
def test_templates_find_what_the_reference_library_gives_them(source: str, expected: str) -> None:
    assert render(source) == expected


def test_strftime_now_gives_the_date() -> None:
    assert render("{{ strftime_now('%Y') }}").isdigit()


@pytest.mark.model
def test_the_embedded_models_template_renders_the_known_prompt() -> None:
    source = read_metadata(resolve("demo").path)["tokenizer.chat_template"]
    question = [{"role": "user", "content": "What is the capital of France?"}]
    assert template(str(source)).render(question) == (
        "<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_rendering_leaves_no_trace_hook_behind() -> None:
    before = sys.gettrace()
    with pytest.raises(TemplateRefusedError):
        render("{{ raise_exception('x') }}")
    assert sys.gettrace() is before
