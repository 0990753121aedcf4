"""Whatever controls and links say, the page answers: with figures, or with one line that says why not."""

import errno
import json
import os
import socket
from urllib.parse import quote

import pytest
from explorer import Page, told
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("dash", reason="pip install 'odcsim[explore]'")

from odcsim.show.explore import line
from odcsim.show.explore.asked import Asked
from odcsim.show.explore.serve import serve

# A question that is soon answered. Sliders stand at their places.
SMALL = {
    "trace": "uniform:min=2,max=9,samples=64",
    "model": "tiny",
    "gpu": "a100",
    "devices": 0,
    "minibatch": 0,
    "room": 1,
    "network": 0,
    "minibatches": 0,
    "epochs": 0,
    "trainer": 0,
    "recompute": 0,
    "sharding": 0,
    "price": 2.0,
}
LINK = "trace=uniform%3Amin%3D2%2Cmax%3D9%2Csamples%3D64&model=tiny&devices=2&minibatch=1&minibatches=4"
NAMES = [
    "-",
    "/dev/stdin",
    "/dev/zero",
    "/dev/tty",
    "/dev/fd/0",
    "/proc/self/mem",
    "/proc/self/fd/0",
    "/",
    ".",
    "..",
    "~",
]
NAMES += ["a" * 256, "a" * 4096, "a/" * 3000, "\0", "\ud800", "a\0b", "../" * 900, "/etc/shadow", "--help", "<script>"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(NAMES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
ODD = st.one_of(JSON, st.integers(-3, 12), st.sampled_from([10**300, -0.0, 1e-320, 2.5, "0", "1.0", " 1", "", "\n"]))


@pytest.fixture(scope="module")
def page():
    served = serve(0)
    yield Page(served)
    served.server.server_close()


def answered(page, of, values, name):
    """The line that is shown, none where there are figures."""
    reply = page.ask(of, values)
    assert reply.status_code == 200, reply.get_data(as_text=True)
    shown = told(reply, name)
    assert line.OURS not in shown
    assert len(shown.splitlines()) <= 1
    assert len(shown) <= line.LETTERS
    return shown


@settings(max_examples=150)
@given(name=st.sampled_from(sorted(SMALL)), value=ODD)
def test_whatever_one_control_says_is_answered(page, name, value):
    answered(page, "asked.data", SMALL | {name: value}, "problem")


@settings(max_examples=60)
@given(values=st.fixed_dictionaries(dict.fromkeys(SMALL, ODD)))
def test_whatever_all_controls_say_is_answered(page, values):
    answered(page, "asked.data", values, "problem")


@settings(max_examples=100)
@given(name=st.sampled_from([*SMALL, "token", "colour", ""]), value=ODD, after=st.text(max_size=20))
def test_whatever_a_link_says_is_answered(page, name, value, after):
    said = quote(f"{value}".encode(errors="surrogatepass")) if isinstance(value, str | int | float) else "odd"
    answered(page, "link-problem", {"place": f"?{LINK}&{name}={said}{after}"}, "link-problem")
    assert page.client.get(f"/?{name}={said}", base_url="http://127.0.0.1:8050").status_code in (200, 302)


@settings(max_examples=20)
@given(search=JSON | st.builds(lambda name, value: f"?{LINK}&{name}={value}", st.sampled_from(sorted(SMALL)), ODD))
@pytest.mark.parametrize(
    ("of", "name"), [("pair.figure", "caption"), ("break-even", "break-even"), ("report.data", "saved")]
)
def test_whatever_the_page_is_said_to_have_asked_is_answered(page, of, name, search):
    if search in (None, "", False, 0) or (isinstance(search, float | list | dict) and not search):
        search = f"?{LINK}"  # the usual question takes longer
    answered(page, of, {"asked": search, "save": 1}, name)


@settings(max_examples=60)
@given(body=JSON, name=st.sampled_from(["output", "outputs", "inputs", "state", "changedPropIds"]))
def test_whatever_is_sent_is_no_fault_of_the_server(page, body, name):
    assert page.post(json.dumps(body).encode(errors="surrogatepass")).status_code in (200, 204, 400)
    assert page.post(page.body("break-even", {"asked": "?devices=3"}) | {name: body}).status_code in (200, 204, 400)


def test_where_a_link_says_nothing_it_shows_what_it_was_started_with():
    """And its own link, which always says something, what it holds."""
    served = serve(0, Asked(trace="lmsys-chat", devices=16))
    try:
        started = Page(served)
        for search, trace in ((None, "lmsys-chat"), ("", "lmsys-chat"), ("?trace=longalign", "longalign")):
            shown = started.ask("link-problem", {"place": search}).get_json()["response"]
            assert shown["trace"]["value"] == trace
        usual = started.ask("link-problem", {"place": "?trace=longalign"}).get_json()["response"]
        values = {name: usual[name]["value"] for name in SMALL}
        told = started.ask("asked.data", values).get_json()["response"]["asked"]["data"]
        assert started.ask("link-problem", {"place": told}).get_json()["response"]["trace"]["value"] == "longalign"
    finally:
        served.server.server_close()


@pytest.mark.parametrize("name", ["trace", "model", "gpu"])
def test_what_is_no_file_is_not_waited_for(page, name, tmp_path):
    pipe, place = tmp_path / "pipe.json", socket.socket(socket.AF_UNIX)
    os.mkfifo(pipe)
    place.bind(str(tmp_path / "socket"))
    for path in ("-", "/dev/stdin", "/dev/zero", pipe, tmp_path / "socket"):
        shown = answered(page, "asked.data", SMALL | {name: str(path)}, "problem")
        if not (path == "/dev/stdin" and os.path.isfile(path)):  # noqa: PTH113 - where the tests were given a file
            assert shown == f"{path}: the {name} is a pipe or a device; save what it gives to a file"
    place.close()


@pytest.mark.parametrize("code", [errno.EACCES, errno.ENAMETOOLONG, errno.ELOOP, errno.EIO, errno.EMFILE, errno.ENOMEM])
def test_what_the_system_refuses_is_a_line(page, code, tmp_path, monkeypatch):
    def refused(*_, **__):
        raise OSError(code, os.strerror(code), str(tmp_path))

    monkeypatch.setattr("odcsim.show.explore.asked.lengths_of", refused)
    shown = answered(page, "asked.data", SMALL | {"trace": f"lengths-{code}.csv"}, "problem")
    assert shown.startswith(f"{tmp_path}: {os.strerror(code)}; ")


def test_the_page_reads_lengths_as_the_link_says_that_it_was_opened_by(page, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("n,other\n" + "5,x\n0,x\n" * 20)
    values = SMALL | {"trace": str(path)}
    opened = {"place": f"?{LINK}&trace={quote(str(path))}&column=n&skip_bad=True"}
    shown = page.ask("asked.data", values | opened).get_json()["response"]
    assert shown["problem"]["children"] == ""
    assert f"{path}: 20 of 40 rows left out" in json.dumps(shown["advice"])
    assert "no column of lengths" in answered(page, "asked.data", values | {"place": "?colour=red"}, "problem")


def test_a_path_that_nobody_may_look_into_is_a_line(page, tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for name, path in (("trace", loop / "a.csv"), ("model", "x" * 300 + "/config.json"), ("gpu", loop)):
        assert answered(page, "asked.data", SMALL | {name: str(path)}, "problem")


def test_a_defect_of_ours_is_a_line_too(page, monkeypatch, capsys):
    monkeypatch.setattr("odcsim.show.explore.asked.lengths_of", lambda _: 1 / 0)
    reply = page.ask("asked.data", SMALL | {"trace": "unlucky"})
    assert (reply.status_code, told(reply)) == (200, f"ZeroDivisionError: {line.OURS}")
    assert "Traceback" in capsys.readouterr().err
