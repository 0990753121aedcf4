"""The page of a diagnosis on a telephone, a tablet and a desk, also of many ranks."""

import browser
import pytest
from diagnosed import diagnosis, of_ranks

from odcsim.show.pages.diagnosis_page import write_diagnosis

pytestmark = pytest.mark.browser
VIEWS = [(width, scheme) for width in browser.WIDTHS for scheme in browser.SCHEMES]


@pytest.fixture(scope="module", params=["eight", "many"])
def told(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("diagnosis") / f"{request.param}.html"
    write_diagnosis(diagnosis() if request.param == "eight" else of_ranks(128), path)
    return path


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_nothing_covers_anything_and_nothing_is_cut(chromium, told, pictures, width, scheme):
    with browser.window(chromium, width, scheme) as seen:
        seen.open(told).drawn(4)
        seen.picture(pictures / f"diagnosis-{told.stem}-{width}-{scheme}.png")
        assert seen.errors == []
        assert browser.overlapping(seen.boxes()) == []
        assert seen.wide() == []
        assert seen.cut() == []
        assert seen.accessible() == []
