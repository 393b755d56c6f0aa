"""No text of a model becomes HTML, runs, or makes the browser load anything."""

from __future__ import annotations

from typing import Any

import pytest
from page_tools import ask, markdown
from server_harness import Running

pytestmark = pytest.mark.slow
HOSTILE = [
    "<img src=x onerror=\"window.hacked=1\">",
    "<script>window.hacked=1</script>",
    "<svg/onload=window.hacked=1><iframe srcdoc='<script>parent.hacked=1</script>'>",
    "[click](javascript:window.hacked=1) [b](JaVaScRiPt:window.hacked=1) [c](data:text/html,x)",
    "[d](vbscript:x) [e](//evil.example/x) [f](file:///etc/passwd) <javascript:window.hacked=1>",
    "![spy](http://evil.example/secret.png) ![spy](data:image/svg+xml,<svg/onload=alert(1)>)",
    "```<img src=x onerror=window.hacked=1>\n</code></pre><script>window.hacked=1</script>\n```",
    "| <img src=x onerror=window.hacked=1> | b |\n|---|---|\n| `<script>hacked=1</script>` | d |",
    '[x](http://a.example/" onmouseover="window.hacked=1)',
    "**<b onclick=window.hacked=1>bold</b>** # <h1>x</h1>\n> <style>*{display:none}</style>",
]  # fmt: skip


def test_hostile_answers_are_only_text(page: Any, server: Running) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: pytest.fail(f"a dialog: {dialog.message}"))
    text = "\n\n".join(HOSTILE)
    shown = ask(page, text)
    assert "<script>window.hacked=1</script>" in shown
    assert page.evaluate("window.hacked") is None
    inside = "img, script, svg:not(.icon-image), iframe, style, object, [onclick], [onerror]"
    assert page.locator(f".answer :is({inside})").count() == 0
    links = page.evaluate("[...document.querySelectorAll('.message a')].map((a) => a.href)")
    assert links and all(one.startswith("http://") for one in links), links
    own = f"http://127.0.0.1:{server.port}/"
    assert all(url.startswith((own, "data:", "blob:")) for url in asked), asked
    page.reload()
    page.click("#list .name")
    page.wait_for_selector(".answer")
    assert page.evaluate("window.hacked") is None


def test_the_policy_of_the_page_stops_what_slips_through(page: Any) -> None:
    with pytest.raises(Exception, match="TrustedHTML"):
        page.evaluate("document.body.innerHTML = '<b>x</b>'")
    run = """() => new Promise((resolve) => {
        const made = document.createElement('img');
        made.onerror = () => resolve('refused');
        made.onload = () => resolve('loaded');
        made.src = 'http://127.0.0.1:9/x.png';
        document.body.append(made);
    })"""
    assert page.evaluate(run) == "refused"
    call = "fetch('http://evil.example/').then(() => 'sent', (error) => String(error))"
    assert "TypeError" in page.evaluate(call)


def test_the_page_is_in_no_frame(page: Any, server: Running) -> None:
    reply = server.call("GET", "/")
    policy = reply.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy and "default-src 'none'" in policy


MARKDOWN = [
    ("plain", "<p>plain</p>"),
    ("# A\n###### B", "<h3>A</h3><h6>B</h6>"),
    ("a\nb\n\nc", "<p>a<br>b</p><p>c</p>"),
    ("**a** *b* _c_ ~~d~~", "<p><strong>a</strong> <em>b</em> <em>c</em> <del>d</del></p>"),
    ("***x*** a_b_c 2 * 3 * 4", "<p><strong><em>x</em></strong> a_b_c 2 * 3 * 4</p>"),
    (r"\*a\* `` ` ``", "<p>*a* <code>`</code></p>"),
    ("`a", "<p>`a</p>"),
    ("- a\n- b\n  - c\n- e", "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>e</li></ul>"),
    ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
    ("1. a\n\n   ```py\n   x\n   ```\n2. b", None),
    ("> a\n> - b", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote>"),
    ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
    ("https://a.example/x(1).", None),
    ("a<br>b", "<p>a<br>b</p>"),
    ("a < b && c > d", "<p>a &lt; b &amp;&amp; c &gt; d</p>"),
    ("[a](/relative)", "<p>a (/relative)</p>"),
    ("[a] (b)", "<p>[a] (b)</p>"),
]  # fmt: skip


def test_markdown(page: Any) -> None:
    for source, wanted in MARKDOWN:
        if wanted is not None:
            assert markdown(page, source) == wanted
    table = markdown(page, "a | b\n--|--:\n1 | **2**\n3")
    assert '<th>a</th><th class="right">b</th>' in table and "<strong>2</strong>" in table
    assert table.endswith("<p>3</p>")
    code = markdown(page, "```python\nif a < b:\n    pass\n```\nend")
    assert "<span>python</span>" in code and "<code>if a &lt; b:\n    pass</code>" in code
    assert code.endswith("<p>end</p>")
    tildes = markdown(page, "~~~~   c++ 20  \n```\n~~~~")
    assert "<span>c++ 20</span>" in tildes and "<code>```</code>" in tildes
    assert markdown(page, "```a`") == "<p>```a`</p>"
    open_code = markdown(page, "```\nnot closed **yet**")
    assert "<code>not closed **yet**</code>" in open_code
    nested = markdown(page, "1. a\n\n   ```py\n   x\n   ```\n2. b")
    assert nested.count("<li>") == 2 and "<code>x</code>" in nested
    link = markdown(page, "see https://a.example/x(1).")
    assert '<a href="https://a.example/x(1)" target="_blank" rel="noopener' in link
    named = markdown(page, '[**b**](https://a.example "t")')
    assert 'href="https://a.example"' in named and "<strong>b</strong>" in named


SLOW = ["*a " * 20000, "[" * 40000, "`" * 30000 + "a", "**" * 20000, "> " * 5000, "_a_b" * 10000]
SLOW += [
    "- " * 3000,
    "![](" * 10000,
    "|" * 40000 + "\n" + "|-" * 20000 + "\n|" * 5000,
    "`a``" * 10000,
    "http://" * 8000,
]
SLOW += ["~~a " * 15000, "<" * 40000, "\n".join("  " * i + "- x" for i in range(400))]

SLOW += ["```" + " " * 200000 + "`", "~" * 200000 + "`"]


@pytest.mark.timing
def test_no_text_is_slow(page: Any) -> None:
    for source in SLOW:
        code = """async (source) => {
            const { render } = await import('/page/markdown.js');
            const started = performance.now();
            render(document.createElement('div'), source);
            return performance.now() - started;
        }"""
        assert page.evaluate(code, source) < 5000, source[:20]


def test_a_growing_text_keeps_its_blocks(page: Any) -> None:
    code = """async () => {
        const { render } = await import('/page/markdown.js');
        const made = document.createElement('div');
        render(made, 'a\\n\\nb');
        const first = made.firstChild;
        render(made, 'a\\n\\nb c\\n\\nd');
        return [made.firstChild === first, made.innerHTML];
    }"""
    assert page.evaluate(code) == [True, "<p>a</p><p>b c</p><p>d</p>"]
