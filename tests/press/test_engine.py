"""How the book's two files become what Sphinx is told."""

import pytest
from press.engine import configuration


@pytest.fixture
def stage(tmp_path):
    for name in ("_static/b.js", "_static/a.js", "_static/book.css", "_live/alive.js"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    def say(text):
        (tmp_path / "_config.yml").write_text(text, "utf-8")
        return configuration(tmp_path)

    return say


def test_keys_are_called_as_sphinx_calls_them(stage):
    said = stage("title: A book\nexecute: {execute_notebooks: 'off'}\nsphinx: {config: {html_context: {a: {b: 1}}}}")
    assert said["html_title"] == "A book"
    assert said["nb_execution_mode"] == "off"
    assert said["html_context"] == {"a": {"b": 1}}, "what is in Sphinx's words is left as it is"


def test_every_page_loads_what_is_in_static_by_name_and_nothing_else(stage):
    said = stage("title: A book")
    assert (said["html_css_files"], said["html_js_files"]) == (["book.css"], ["a.js", "b.js"])


def test_an_unknown_key_is_refused_by_name(stage):
    with pytest.raises(
        ValueError, match=r"expected sphinx.config or any of title, .*, got html.colour, launch_buttons"
    ):
        stage("title: A book\nlaunch_buttons: true\nhtml: {colour: red}")
