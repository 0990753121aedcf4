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
    rows=st.lists(CELLS, max_size=4),
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
    assert [tag for tag, _ in seen.tags].count("tr") == (1 + len(glance.rows) if glance.rows else 0)


@given(GLANCES)
def test_a_line_is_one_line(glance):
    assert glance.line.isprintable()
    assert glance.line.startswith("<Comparison: ")
    assert glance.line.endswith(">")


def test_a_line_ends_with_the_first_sentence():
    glance = Glance("Advice", "a model", ["Rent 4 x h100: 1.5 epochs take 2 h. It is the cheapest.", "Next best: ..."])
    assert glance.line == "<Advice: a model: Rent 4 x h100: 1.5 epochs take 2 h>"


def test_a_long_table_says_how_much_more_there_is():
    long = Glance("Sweep", "", head=("a",), rows=[(str(n),) for n in range(MOST + 7)])
    assert long.html.count("<tr>") == 1 + MOST
    assert "... and 7 more" in long.html
    assert "more" not in Glance("Sweep", "", head=("a",), rows=long.rows[:MOST]).html


def test_a_flag_is_an_argument_there():
    assert "give max_tokens=4096" in Glance("Advice", "", ["give --max-tokens 4,096"]).html


def test_whoever_tells_of_itself_is_printed_and_shown_by_it():
    class Toy(Glanced):
        def _glance(self):
            return Glance("Toy", "a < b", ["Yes."])

    assert repr(Toy()) == "<Toy: a < b: Yes>"
    assert Toy()._repr_html_() == "<div><p>Toy: a &lt; b</p><p><b>Yes.</b></p></div>"
