"""Texts of strangers in Markdown."""

from cases import each

from parenvs.markdown import escaped


@each(
    ("text", "shown"),
    [
        ("a|b [x](y) <script> *_~`\\&", r"a\|b \[x\](y) \<script\> \*\_\~\`\\\&"),
        ("two\n\n# lines\r|", r"two #<!-- --> lines \|"),
        ("@all see #12", "@<!-- -->all see #<!-- -->12"),
        ("$x$", "<span>$</span>x<span>$</span>"),
        ("https://a.b www.c.d", "https:<!-- -->//a.b www<!-- -->.c.d"),
        ("\x1b[31m\u202eabc", r"\[31mabc"),
        ("plain words: 60,000 steps", "plain words: 60,000 steps"),
    ],
)
def test_escaped(text, shown):
    assert escaped(text) == shown
