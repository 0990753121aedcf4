"""The page: what can be set, what comes of it, and who tells whom. The only place that imports dash."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from odcsim import catalog
from odcsim.plots.html import style
from odcsim.plots.style import HEAD
from odcsim.reading.named import names
from odcsim.say import setting_words
from odcsim.show.explore import reply as replies
from odcsim.show.explore.controls import (
    CONTROLS,
    LISTS,
    SHARDED,
    STOPS,
    TEXTS,
    PageQuestion,
    read_controls,
    read_link,
)
from odcsim.show.explore.line import or_line

TITLE = "What would it take to train on your lengths?"
FIELDS = (*TEXTS, *STOPS, *LISTS, "price")

_COPY = """(clicks, command) => { navigator.clipboard.writeText(command); return "copied"; }"""
_LINK = """(search) => { history.replaceState(null, "", location.pathname + (search || "")); return ""; }"""


def page(start: PageQuestion) -> Dash:
    """`start`: what it shows where a link says nothing."""
    app = Dash(__name__, title=TITLE, update_title="", assets_folder=str(Path(__file__).parent / "assets"))
    app.index_string = _index()
    app.layout = _layout(start)
    values = [Output(name, "value") for name in FIELDS]
    opened = Output("link-problem", "children"), Input("place", "search")
    app.callback(*values, *opened)(lambda search: _from_link(search, start))
    said = [f"{name}-said" for name in STOPS]
    shown = [Output(name, "children") for name in (*said, "advice", "table", "command")]
    problems = [Output(f"{name}-problem", "children") for name in FIELDS]
    back = [Output(name, "value", allow_duplicate=True) for name in FIELDS]
    controls = [Input(name, "value") for name in FIELDS]
    known = State("place", "search"), State("asked", "data")
    answered = Output("asked", "data"), *shown, *problems, *back
    app.callback(*answered, *controls, *known, prevent_initial_call=True)(_answer)
    drawn = [Output("pair", "figure"), Output("picture", "aria-label"), Output("caption", "children")]
    app.callback(*drawn, Input("asked", "data"))(_chart)
    app.callback(Output("break-even", "children"), Input("asked", "data"))(_break_even)
    app.callback(Output("levers", "children"), Input("asked", "data"))(_levers)
    saved = [Output("report", "data"), Output("saved", "children")]
    app.callback(*saved, Input("save", "n_clicks"), State("asked", "data"))(_report)
    app.clientside_callback(_LINK, Output("linked", "children"), Input("asked", "data"))
    clicked = (Input("copy", "n_clicks"), State("command", "children"))
    app.clientside_callback(_COPY, Output("copied", "children"), *clicked, prevent_initial_call=True)
    return app


def _index() -> str:
    """The report's look; everything else is dash's own, served from here."""
    head = "{%metas%}<title>{%title%}</title>{%favicon%}{%css%}"
    body = "{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer>"
    frame = '<!DOCTYPE html>\n<html lang="en">\n<head>'
    return f"{frame}{head}<style>{style()}</style></head>\n<body>{body}</body>\n</html>\n"


def _layout(asked: PageQuestion) -> Any:
    known = {"trace": names(), "model": catalog.model_names(), "gpu": catalog.gpu_names()}
    texts = [_text(name, getattr(asked, name), known[name]) for name in TEXTS]
    sliders = [_slider(name, STOPS[name], asked.value(name)) for name in STOPS]
    lists = [_list(name, LISTS[name], asked.value(name)) for name in LISTS]
    money = dcc.Input(id="price", type="number", min=0, step="any", debounce=True)
    price = _named("price", CONTROLS["price"].control, money)
    buttons = [html.Button(words, id=name) for name, words in (("copy", "Copy as command"), ("save", "Save report"))]
    hidden = [dcc.Location(id="place", refresh=False), dcc.Store(id="asked"), dcc.Download(id="report")]
    return html.Main(
        [
            html.H1(TITLE),
            html.Div([*texts, *sliders, price, *lists], className="controls"),
            html.Div(id="link-problem", role="alert", className="problem"),
            html.Div(id="advice", className="answer", **{"aria-live": "polite"}),
            html.Figure(
                [
                    html.Figcaption(id="caption"),
                    html.Div(dcc.Graph(id="pair", config={"displayModeBar": False}), id="picture", role="img"),
                ]
            ),
            html.P(id="break-even", className="note", **{"aria-live": "polite"}),
            html.Div(id="levers", className="scroll", **{"aria-live": "polite"}),
            html.H2("Every row"),
            html.Div(id="table", className="scroll", role="region", tabIndex=0, **{"aria-label": "Every row"}),
            html.H2("The same in a terminal"),
            html.Pre(html.Code(id="command"), tabIndex=0),
            html.P([*buttons, html.Span(id="copied", role="status"), html.Span(id="linked")]),
            html.Div(id="saved", role="alert", className="problem"),
            *hidden,
        ]
    )


def _named(name: str, words: str, control: Any, *said: Any) -> Any:
    return html.Div([html.Label([words, *said], htmlFor=name), control, _problem(name)])


def _problem(name: str) -> Any:
    """Where it is said why the control went back."""
    return html.Div(id=f"{name}-problem", role="alert", className="problem")


def _list(name: str, among: Sequence[str], value: str) -> Any:
    option = CONTROLS[name]
    options = [{"label": option.phrase(one) or one, "value": one} for one in among]
    control = dcc.RadioItems(id=name, options=options, value=value, inline=True)
    return html.Fieldset([html.Legend(option.control), control, _problem(name)])


def _text(name: str, value: str, known: Sequence[str]) -> Any:
    options = html.Datalist([html.Option(value=one) for one in known], id=f"{name}-known")
    control = dcc.Input(id=name, type="text", value=value, list=f"{name}-known", debounce=True, spellCheck=False)
    return _named(name, CONTROLS[name].control, html.Div([control, options]))


def _slider(name: str, stops: Sequence[Any], value: Any) -> Any:
    """From the first stop to the last, by their places."""
    control = dcc.Input(id=name, type="range", min=0, max=len(stops) - 1, step=1, value=stops.index(value))
    return _named(name, f"{CONTROLS[name].control}: ", control, html.B(id=f"{name}-said"))


def _from_link(search: Any, start: PageQuestion) -> list[Any]:
    """A link that says nothing is that of the page itself."""
    return or_line(lambda: _set(read_link(search) if search else start, ""), lambda line: _set(start, line))


def _set(asked: PageQuestion, problem: str) -> list[Any]:
    return [*_values(asked), problem]


def _values(asked: PageQuestion) -> list[Any]:
    """Of the controls."""
    places = [STOPS[name].index(asked.value(name)) for name in STOPS]
    return [*(getattr(asked, name) for name in TEXTS), *places, *map(asked.value, LISTS), asked.price]


def _answer(*values: Any) -> list[Any]:
    """What is asked as a link, then what is shown of it. Where it cannot be asked, the controls go back to the last
    question that was answered, and beside the one that was changed stands why. The last values are the link that was
    opened, and that of the last answer."""
    *asked, opened, last = values
    before: PageQuestion = or_line(lambda: read_link(opened), lambda _: PageQuestion())
    shown = lambda: _shown(read_controls(dict(zip(FIELDS, asked, strict=True)), before), last)  # noqa: E731
    return or_line(shown, lambda line: _refused(line, last))


def _refused(line: str, last: Any) -> list[Any]:
    changed, stay = ctx.triggered_id if ctx.triggered_id in FIELDS else FIELDS[0], [no_update] * len(FIELDS)
    problems = [line if name == changed else "" for name in FIELDS]
    back = or_line(lambda: _values(read_link(last)) if last else stay, lambda _: stay)
    return [*[no_update] * (len(STOPS) + 4), *problems, *back]


def _shown(asked: PageQuestion, last: Any) -> list[Any]:
    """Nothing new of the question that was answered last, to which controls went back: why they did stays."""
    if last and read_link(last) == asked:
        return [no_update] * (len(STOPS) + 4 + 2 * len(FIELDS))
    found = replies.reply(asked)
    left = asked.lengths.left_out
    told = [f"{asked.trace}: {left}"] if left else []
    words = [html.P(text) for text in [*found.advice, found.verdict, setting_words.fixed(asked.setting), *told]]
    bare = {name: asked.value(name) for name in ("trace", SHARDED)}  # without any link it is what the page began with
    link = asked.search or f"?{urlencode(bare)}"
    return [link, *_said(asked), words, _table(found), asked.command, *[""] * len(FIELDS), *[no_update] * len(FIELDS)]


def _said(asked: PageQuestion) -> list[str]:
    """What each slider stands at."""
    network = f"{asked.network} Gb/s a card" if asked.network else f"what {asked.gpu} usually has"
    setting = asked.setting
    best = f" (the best of {setting.limits_tried} limits that fit)" if setting.limits_tried else ""
    known = {"room": f"at most {setting.limit:,}{best}", "network": network}
    return [*({name: f"{asked.value(name):,g}" for name in STOPS} | known).values()]


def _table(found: replies.Reply) -> Any:
    names, cells = found.table
    head = html.Thead(html.Tr([html.Th(name, scope="col") for name in names]))
    rows = [
        html.Tr(
            [html.Th(row[0], scope="row"), *(html.Td(cell) for cell in row[1:])],
            className="best" if row[0] == found.chosen else "",
        )
        for row in cells
    ]
    return html.Table([html.Caption(f"GPU-hours and dollars are of {found.comparison.basis}."), head, html.Tbody(rows)])


def _chart(search: Any) -> tuple[Any, str, Any]:
    """The figure, its name for a screen reader, and the same above it, where words wrap."""
    if search is None:
        return no_update, "nothing is drawn yet", no_update
    return or_line(lambda: _drawn(read_link(search)), lambda line: (no_update, "nothing is drawn", line))


def _drawn(asked: PageQuestion) -> tuple[Any, str, Any]:
    drawn = replies.chart(asked)
    title = drawn["layout"].pop("title")
    drawn["layout"]["margin"]["t"] = 30
    drawn["layout"]["height"] -= HEAD - 30
    caption = [html.H2(title["text"]), html.P(title["subtitle"]["text"], className="note")]
    return drawn, title["text"], caption


def _break_even(search: Any) -> Any:
    return no_update if search is None else or_line(lambda: replies.break_even(read_link(search)), str)


def _levers(search: Any) -> Any:
    return no_update if search is None else or_line(lambda: _cheaper(read_link(search)), str)


def _cheaper(asked: PageQuestion) -> list[Any]:
    """A table of changes beneath the cause, beneath each what it does to training."""
    said, shown = replies.levers(asked), list[Any]()
    for table in said.tables:
        head = html.Thead(html.Tr([html.Th(name, scope="col") for name in table.head]))
        rows = []
        for row, details in zip(table.rows, table.details, strict=True):
            rows.append(html.Tr([html.Th(row[0], scope="row"), *(html.Td(cell) for cell in row[1:])]))
            rows += [html.Tr(html.Td(line, colSpan=len(table.head))) for line in details]
        shown += [html.Table([html.Caption(table.says), head, html.Tbody(rows)])]
    return [html.H2(table.name) for table in said.tables[:1]] + [html.P(said.headline), *shown]


def _report(clicks: Any, search: Any) -> tuple[Any, str]:
    if not clicks:
        return no_update, ""
    return or_line(
        lambda: (dcc.send_string(replies.report(read_link(search)), "report.html"), ""), lambda line: (no_update, line)
    )
