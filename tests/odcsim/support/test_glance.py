"""A result at a glance: one line in Python, and HTML that is whole and holds no word as a mark."""

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from odcsim.errors import in_python
from odcsim.support.glance import MOST, Glance, Glanced

TEXT = st.text(max_size=20)
CELLS = st.lists(TEXT, min_size=3, max_size=3)
GLANCES = st.builds(
    Glance,
    kind=st.just("Comparison"),
    about=TEXT,
    answer=st.lists(TEXT, max_size=3),
    head=CELLS,
    rows=st.lists(CELLS, max_size=4) | st.integers(MOST, MOST + 2).map(lambda n: [["a", "b", "c"]] * n),
    detail=TEXT,
)


class Seen(HTMLParser):
    """What a browser makes of it."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@given(GLANCES)
def test_html_is_whole_and_every_word_is_text(glance):
    seen = Seen(glance.html)
    assert seen.open == []
    assert {tag for tag, _ in seen.tags} <= {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td"}
    assert {name for _, held in seen.tags for name in held} <= {"scope"}
    words = "".join(seen.texts).replace("\r\n", "\n").replace("\r", "\n")
    for text in (*glance.answer, glance.detail, *(cell for row in glance.rows for cell in row)):
        assert in_python(text).replace("\r\n", "\n").replace("\r", "\n") in words
    rows = min(len(glance.rows), MOST)
    assert [tag for tag, _ in seen.tags].count("tr") == (1 + rows if rows else 0)
    assert len(glance.rows) <= MOST or f"{len(glance.rows) - MOST} more" in words


@given(GLANCES)
def test_a_line_is_one_line_and_ends_with_the_first_sentence(glance):
    assert glance.line.isprintable()
    assert glance.line.startswith("<Comparison: ")
    assert glance.line.endswith(">")
    first = Glance("Advice", "a model", ["Rent 4 x h100: 1.5 epochs take 2 h. It is the cheapest.", "Next best: ..."])
    assert first.line.endswith("1.5 epochs take 2 h>")


def test_whoever_tells_of_itself_is_printed_and_shown_by_it():
    class Toy(Glanced):
        def _glance(self):
            return Glance("Toy", "a < b", ["give --max-tokens 4,096"])

    glance = Toy()._glance()
    assert (repr(Toy()), Toy()._repr_html_()) == (glance.line, glance.html)
    assert "max_tokens=4096" in glance.html
