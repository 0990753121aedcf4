"""Files of every format: what is written comes back; what is damaged or forged is refused by the file's name."""

import io
import json
import math
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import damaged, mutated, schedule_files

from odcsim import profile, schedule
from odcsim import timeline as timelines
from odcsim.catalog import fits, gpu
from odcsim.cluster import Cluster, cluster_of, read_cluster
from odcsim.decide.setting import plan
from odcsim.errors import InputError
from odcsim.executors.simulation import simulate
from odcsim.profile import DTYPES, FIDELITIES, TIMINGS, Passes, Polynomial, Profile, ProfileBelow, Timing
from odcsim.recipe import CHOICES, read_file, recipe_of
from odcsim.results import metrics
from odcsim.schedule import Header, Schedule, ScheduleFile, flattened

JSONS = ("profile", "schedule", "timeline")
KINDS = (*JSONS, "cluster", "recipe")
BASE = cluster_of(gpu("a100"), 16)
FIT = fits.published("r1-distill-qwen-1.5b", "a100")
MEASURED = replace(FIT, timings=(Timing("push", 2, 1e-5, 1e-10, 1.5), Timing("overhead", 2, 1e-3)), interference=1.2)
HEADER = Header("lb-mini", "m", "published fit: x", max_tokens=100, devices=2, seed=0)
TWO = (
    Schedule.of((60, 40, 30, 70), (((0, 1),), ((2,), (3,))), (7, 8, 9, 3), (1, 0, 30, 5)),
    Schedule.of((10,), (((0,),), ()), (4,), (10,)),
)
CLUSTER = {
    "devices_per_node": 4, "nics_per_node": 2, "link_gb_s": 300.5, "nic_gbit_s": 400, "one_sided_slowdown": 3,
    "latency_us": 5, "jitter": 0.1, "sample_noise": 0.05, "swing": 0.2, "spell_seconds": 0.5, "link_share": 0.7,
    "nic_share": 0.9, "hop_us": 3,
}  # fmt: skip
RECIPE = {
    "sync": "collective", "recompute": "selective", "sharding": "hybrid", "attention": "fa3", "precision": "fp8",
    "loss": "whole", "optimizer": "8bit", "copies": "engines", "reduce": "bf16", "accumulate": "slots",
    "dtype": "bfloat16", "compile": True, "offload": True, "lora": 16,
}  # fmt: skip


def toml(values: dict[str, Any]) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


WHOLE = toml(CLUSTER) + '[slow]\n3 = 1.5\n"0" = 1\n'


@dataclass(frozen=True)
class Format:
    write: Callable[[Path], Any]
    read: Callable[[Path], Any]
    good: Callable[[Any], Any]  # of what was read from damaged bytes and not refused


@pytest.fixture(scope="module")
def formats(timeline) -> dict[str, Format]:
    two = ScheduleFile(HEADER, TWO)
    return {
        "profile": Format(partial(profile.write, MEASURED), profile.read, lambda found: isinstance(found, Profile)),
        "schedule": Format(partial(schedule.write, two), schedule.read, lambda found: found == two.sealed()),
        "timeline": Format(partial(timelines.write, timeline), timelines.read, metrics.usage),
        "cluster": Format(lambda path: path.write_text(WHOLE), partial(read_cluster, base=BASE), lambda of: of.nodes),
        "recipe": Format(lambda path: path.write_text(toml(RECIPE)), read_file, recipe_of),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("formats")


@pytest.fixture(scope="module")
def written(formats, folder) -> dict[str, Path]:
    paths = {kind: folder / f"whole-{kind}" for kind in KINDS}
    paths["timeline"] = paths["timeline"].with_suffix(".npz")
    for kind, path in paths.items():
        formats[kind].write(path)
    return paths


def read_or_refuse(one: Format, path: Path, place: str = "") -> bool:
    """Whether it is read, and is then good; else it is refused in a line that begins with the file's name."""
    try:
        assert one.good(one.read(path))
    except InputError as error:
        line = str(error)
    else:
        return True
    assert line.startswith(f"{path}{place}")
    assert "\n" not in line
    return False


# What is written comes back


seconds = st.floats(0, 1e6)
polynomials = st.builds(Polynomial, seconds, seconds, seconds, seconds)
timings = st.builds(Timing, st.sampled_from(TIMINGS), st.integers(1, 99), seconds, seconds, seconds)
OWN = {
    "fidelity": st.sampled_from(FIDELITIES),
    "dtype": st.sampled_from(["", *DTYPES]),
    "kept": st.builds(Passes, polynomials, polynomials),
    "below": st.builds(ProfileBelow, *[polynomials] * 4, seconds, seconds),
    "low": st.floats(0.1, 1),
    "high": st.floats(1, 10),
    "slow": st.lists(seconds, max_size=3).map(tuple),
    **dict.fromkeys(("kinds", "recipe"), st.lists(st.text(max_size=9), max_size=2).map(tuple)),
    "timings": st.lists(timings, max_size=4, unique_by=lambda t: (t.kind, t.devices)).map(tuple),
}
BY_TYPE = {str: st.text(max_size=9), float: seconds, int: st.integers(0, 10**6), bool: st.booleans()}
OTHERS = {f.name: BY_TYPE.get(f.type, polynomials) for f in fields(Profile) if f.name not in (*OWN, "run")}
profiles = st.builds(Profile, **OWN, **OTHERS)


@given(wanted=profiles)
def test_a_profile_comes_back(wanted, folder):
    profile.write(wanted, folder / "p.json")
    assert profile.read(folder / "p.json") == wanted


@given(file=schedule_files())
def test_a_schedule_comes_back(file, folder):
    path = folder / "s.jsonl"
    sealed = schedule.write(file, path)
    assert schedule.read(path) == sealed == schedule.write(sealed, path)
    assert (sealed.schedules, replace(sealed.header, digest="")) == (file.schedules, file.header)
    assert all(eval(repr(one)) == one for one in file.schedules)  # it says who runs what, and what waits


@pytest.mark.parametrize("balancer", ["lb-mini", "pool"])
def test_a_timeline_comes_back(setting, balancer, folder):
    line = simulate(plan(setting, balancer), setting.cost.by(sync="on-demand"))
    timelines.write(line, folder / "t.npz")
    back = timelines.read(folder / "t.npz")
    assert back.about == line.about
    for minibatch in range(len(line.samples)):
        block, place = back.block_of(minibatch)
        assert block.minibatches[place] == minibatch
    with pytest.raises(InputError):
        back.block_of(len(line.samples))
    pairs = [(getattr(back, name), getattr(line, name)) for name in ("samples", "tokens")]
    for one, other in zip(back.blocks, line.blocks, strict=True):
        assert one.program == other.program
        names = ("minibatches", "counts", "asked", "had", *["takers"] * (other.takers is not None))
        pairs += [(getattr(one, name), getattr(other, name)) for name in names]
    assert all(np.array_equal(one, other) and one.dtype == other.dtype for one, other in pairs)


def test_a_cluster_says_what_is_otherwise(written, folder):
    slow = ((0, 1), (3, 1.5))
    assert read_cluster(written["cluster"], BASE) == Cluster(
        16, 4, 300.5e9, 50e9, 2, 3.0, 5 * 1e-6, 0.1, slow, 0.05, 0.2, 0.5, 0.7, 0.9, 3 * 1e-6, 312e12, BASE.memory_bytes
    )
    (folder / "c.toml").write_text("")
    assert read_cluster(folder / "c.toml", BASE) == BASE
    (folder / "c.toml").write_text("devices_per_node = 4")  # another size of node brings its cards
    found = read_cluster(folder / "c.toml", BASE)
    assert (found.devices_per_node, found.nics_per_node) == (4, 4)
    # Links are shared between nodes alone: by devices, devices and cards of a node.
    shared = {(8, 8, 8): False, (8, 8, 1): False, (9, 8, 8): False, (16, 8, 4): True, (3, 8, 1): False}
    for (devices, per_node, nics), expected in shared.items():
        cluster = Cluster(devices, per_node, 1e9, 1e9, nics)
        assert (cluster.nodes, cluster.shared_links) == (-(-devices // per_node), expected)
    assert (BASE.devices_per_node, BASE.nodes, BASE.shared_links) == (8, 2, False)
    assert cluster_of(gpu("a100"), 16, 16).nodes == 1


@given(st.data())
def test_a_recipe_comes_back(folder, data):
    names = data.draw(
        st.lists(st.sampled_from([n for n, c in CHOICES.items() if not c.hidden and c.values]), unique=True)
    )
    values = {name: data.draw(st.sampled_from(CHOICES[name].values)) for name in names}
    values |= data.draw(st.fixed_dictionaries({}, optional={"lora": st.integers(0, 4096), "offload": st.booleans()}))
    (folder / "r.toml").write_text(toml(values))
    assert recipe_of(read_file(folder / "r.toml")) == recipe_of(values)


# What is damaged is refused, or says nothing else


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=120)
@given(data=st.data())
def test_damaged_bytes_are_refused_or_harmless(kind, data, formats, written):
    path = written[kind].with_stem("damaged")
    path.write_bytes(data.draw(damaged(written[kind].read_bytes())))
    read_or_refuse(formats[kind], path)


@pytest.mark.parametrize("kind", JSONS)
@settings(max_examples=120)
@given(data=st.data())
def test_changed_json_is_refused_or_harmless(kind, data, formats, written):
    path = written[kind].with_stem("changed")
    columns = columns_of(written[kind]) if kind == "timeline" else {}
    text = str(columns["header"]) if columns else written[kind].read_text()
    entries = [json.loads(line) for line in (text.splitlines() if kind == "schedule" else [text])]
    place = data.draw(st.integers(0, len(entries) - 1))
    entries[place] = data.draw(mutated(entries[place]))
    changed = "".join(json.dumps(entry) + "\n" for entry in entries)
    if columns:
        np.savez(path, **columns | {"header": np.array(changed)})
    else:
        path.write_text(changed)
    read_or_refuse(formats[kind], path)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_such_file_or_a_part_of_one_is_refused(kind, formats, written, folder):
    path, content = written[kind].with_stem("other"), written[kind].read_bytes().rstrip(b"\n")
    wrong = [b"\xff\xfe", b"[" * 100_000, b"jitter = " + b"[" * 20_000, b"[1]]", b"minibatch,device\n0,1\n"]
    wrong += [written[other].read_bytes() for other in JSONS if other != kind]
    if kind in JSONS:
        wrong += [content[: int(share * len(content))] for share in (0.0, 0.01, 0.5, 0.99, 0.9999)]
    for one in wrong:
        path.write_bytes(one)
        assert not read_or_refuse(formats[kind], path)
    assert not read_or_refuse(formats[kind], folder / "missing")
    assert not read_or_refuse(formats[kind], folder)


@pytest.mark.parametrize("kind", JSONS)
def test_a_file_is_written_whole_or_not_at_all(kind, formats, tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    formats[kind].write(path)
    content = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(path), "replace", full)
    with pytest.raises(InputError):
        formats[kind].write(path)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


# Wrong values


def timing(**more: object) -> dict[str, object]:
    return {"timings": [{"kind": "push", "devices": 2} | more]}


WRONG_PROFILES: tuple[dict[str, object], ...] = (
    *({"overhead": value} for value in (-1, math.nan, math.inf, 10**400, 1e300, "1", True)),
    *({"forward": value} for value in ({"linear": None}, {"cubic": 1}, [1, 2, 3], {"sample": "1"})),
    *({"low": value} for value in (1.1, 0)),
    {"high": 0.9}, {"dtype": "int8"}, {"fidelity": "guess"}, {"node_transfers_included": 1}, {"recompute": 1},
    {"timings": {}}, {"timings": [1]}, {"timings": 2 * [{"kind": "push", "devices": 2}]},
    timing(kind="send"), timing(devices=0), timing(constant=-1), timing(rate=1), timing(slowdown=-2),
    timing(slowdown=None), {"backward_error": {"sample": -1}}, {"forward_error": {"linear": -1}},
    {"kept": {"backward": {"linear": -1}}}, {"interference": True}, {"interference": math.inf}, {"jitter": -0.1},
    {"slow": [1.0, -0.1]}, {"speed": 1}, {"longest": 1.5}, {"version": 7}, {"format": "odcsim schedule"},
)  # fmt: skip
NEEDED = ("model", "gpu", "fidelity", "origin", "forward", "backward", "head")


def test_wrong_values_of_a_profile_are_refused(formats, folder):
    path, whole = folder / "p.json", {"format": profile.FORMAT, "version": profile.VERSION, **asdict(FIT)}
    path.write_text(json.dumps(whole))
    assert read_or_refuse(formats["profile"], path)
    less = [{n: v for n, v in whole.items() if n != name} for name in NEEDED]
    for content in (*(whole | change for change in WRONG_PROFILES), *less):
        path.write_text(json.dumps(content))
        assert not read_or_refuse(formats["profile"], path), content


def test_what_a_profile_may_leave_out_is_as_if_nothing_was_known(folder):
    content = {name: value for name, value in asdict(FIT).items() if name in NEEDED}
    (folder / "p.json").write_text(json.dumps({"format": profile.FORMAT, "version": 1, **content}))
    assert profile.read(folder / "p.json") == Profile(**{name: getattr(FIT, name) for name in NEEDED})
    bare, none = Profile(*[""] * 4, *[Polynomial()] * 3), (Polynomial(), Passes(), ProfileBelow())
    assert (bare.overhead, bare.publish, bare.low, bare.high, bare.longest) == (0, 0, 1, 1, 0)
    assert (bare.embed, bare.kept, bare.below) == none


WRONG_MINIBATCHES = (
    *({"devices": value} for value in (
        [[[0, 1]], [[2]]], [[[0, 1]], [[2], [3, 3]]], [[[0, 1]], [[2], [4]]], [[[0, 1]], [[2, 3], []]], {},
        [[[0, 1, 2, 3]]], [[[0, 1]], 3], [[[0, 1]], [2, 3]],
    )),
    *({"lengths": [60, 40, 30, value]} for value in ("70", 7.0, math.nan, True, 0, 2**31)),
    {"lengths": [61, 40, 30, 70]}, {"lengths": None}, {"samples": [1]}, {"loss": [1, 2]}, {"loss": [-1, 0, 30, 5]},
)  # fmt: skip
WRONG_HEADERS = (
    {"format": "odcsim timeline"}, {"version": 2}, {"devices": "2"}, {"devices": True}, {"devices": 0},
    {"max_tokens": -5}, {"seed": 1.0}, {"colour": "red"},
)  # fmt: skip


def test_wrong_values_of_a_schedule_are_refused_by_their_line(formats, written):
    """By the digest alone where each value could be."""
    header, first, second = (json.loads(line) for line in written["schedule"].read_text().splitlines())
    swapped = {**first, "devices": [[[2], [3]], [[0, 1]]]}
    forged = [(":1: ", [header | change, first, second]) for change in WRONG_HEADERS]
    for change in WRONG_MINIBATCHES:
        forged += [(":2: ", [header, first | change, second]), (":3: ", [header, second, first | change])]
    others = ([swapped, second], [second, first], [first], [first, second, second], [])
    forged += [(": ", [header, *rest]) for rest in others] + [(": ", [header | {"seed": 5}, first, second])]
    for field in fields(HEADER):
        less = {key: value for key, value in header.items() if key != field.name}
        if field.default is MISSING or header[field.name] != field.default:
            forged.append((":1: " if field.default is MISSING else ": ", [less, first, second]))
    path = written["schedule"].with_stem("forged")
    for place, entries in forged:
        path.write_text("".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in entries))
        assert not read_or_refuse(formats["schedule"], path, place), entries


@given(schedule_files(), st.data())
def test_any_other_content_has_another_digest(file, data):
    digest = file.sealed().header.digest
    assert file.sealed().header.digest == file.sealed().sealed().header.digest == digest
    name = data.draw(st.sampled_from("balancer model weights max_tokens devices seed trace in_order".split()))
    value, first = getattr(file.header, name), file.schedules[0]
    more = {name: not value if isinstance(value, bool) else value + (1 if isinstance(value, int) else "x")}
    changed = (
        {"lengths": (first.lengths[0] + 1, *first.lengths[1:])}, {"flat": flattened((*first.devices, ()))},
        {"samples": tuple(i + 1 for i in first.samples) or tuple(range(len(first.lengths)))},
        {"loss": () if first.loss else first.lengths},
    )  # fmt: skip
    others = [replace(file, header=replace(file.header, **more)), replace(file, schedules=(*file.schedules, first))]
    others += [replace(file, schedules=(replace(first, **change), *file.schedules[1:])) for change in changed]
    assert digest not in [other.sealed().header.digest for other in others]


def columns_of(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as found:
        return {name: found[name] for name in found.files}


def spoilt(columns: dict[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    """Columns with one wrong thing; None stands for one that is not there."""
    header = json.loads(str(columns["header"]))
    for change in ({"version": 2}, {"format": "x"}, {"max_tokens": "8"}, {"devices": 3}):
        yield {"header": np.array(json.dumps(header | change))}
    for name in ("header", "samples", "0.shape", "0.steps", "0.minibatches", "0.counts", "0.had"):
        yield {name: None}
    for name in ("0.asked", "0.had"):
        for value in (math.nan, math.inf, -math.inf, 1e306, -1e306):
            times = columns[name].copy()
            times[1, 0, 0] = value
            yield {name: times}
    for name in ("samples", "tokens", "0.minibatches", "0.counts", "0.asked", "0.had", "0.shape"):
        kinds = ("U8", "complex128", "bool", "object") if name != "0.shape" else ()
        yield from ({name: columns[name].astype(kind)} for kind in kinds)
        yield from ({name: other} for other in (columns[name][:-1], columns[name][..., None], np.array(3)))
    numbers = columns["0.minibatches"]
    yield from ({"0.minibatches": other} for other in (np.full_like(numbers, numbers[0]), numbers + 1))
    yield {"0.steps": np.array("0 compute")}
    yield {"0.shape": np.array([10**9, 10**3])}  # which nobody waits for


def test_wrong_columns_of_a_timeline_are_refused(formats, written, setting, folder):
    """Takers that there are not, too: such numbers were counted up to."""
    columns, queued = columns_of(written["timeline"]), folder / "queued.npz"
    timelines.write(simulate(plan(setting, "pool"), setting.cost.by(sync="on-demand")), queued)
    forged = [columns | change for change in spoilt(columns)]
    for taker in (4, 2**31, 2**62, -2):
        forged.append(columns_of(queued))
        forged[-1]["0.takers"][0, 0] = taker
    path = written["timeline"].with_stem("spoilt")
    for found in forged:
        np.savez(path, **{name: column for name, column in found.items() if column is not None})
        assert not read_or_refuse(formats["timeline"], path), found


def test_a_damaged_member_is_refused_although_the_archive_is_whole(formats, written):
    """The checksum of the archive cannot see this: a header that is no Python literal, a method nobody knows."""
    path = written["timeline"].with_stem("member")
    with zipfile.ZipFile(written["timeline"]) as whole, zipfile.ZipFile(path, "w") as other:
        for name in whole.namelist():
            other.writestr(name, whole.read(name).replace(b"'fortran_order'", b"('fortran_order"))
    assert not read_or_refuse(formats["timeline"], path)
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_DEFLATED):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", method) as other:
            other.writestr("header.npy", b"\x93NUMPY" * 40)
        data = bytearray(out.getvalue())
        data[60:64] = b"\xff\x00\xff\x00"
        path.write_bytes(data)
        assert not read_or_refuse(formats["timeline"], path)


WRONG_CLUSTERS = (
    "devices_per_nod = 4", "devices_per_node = 0", "devices_per_node = 4.0", "devices_per_node = true", "link_gb_s = 0",
    "link_gb_s = 1e308", "nic_gbit_s = nan", "nic_gbit_s = inf", "nic_gbit_s = '400'", "latency_us = -1",
    "latency_us = " + "9" * 400, "latency_us = 0x" + "f" * 9000, "jitter = 1979-05-27", "slow = 3", "[slow]\n16 = 2",
    "[slow]\n-1 = 2", "[slow]\nfirst = 2", "[slow]\n" + "1" * 5000 + " = 2", "[slow]\n1 = 0", "[slow]\n1 = [1]",
    "jitter",
)  # fmt: skip
WRONG_RECIPES = (
    'attn = "fa3"', "lora_rank = 8", 'attention = "fa4"', 'recompute = "some"', "lora = -1", "lora = true",
    "offload = 1", "compile = 'yes'", "[recipe]\nlora = 8", "lora =",
)  # fmt: skip


@pytest.mark.parametrize(("kind", "texts"), [("cluster", WRONG_CLUSTERS), ("recipe", WRONG_RECIPES)])
def test_wrong_lines_of_toml_are_refused(kind, texts, formats, folder):
    for text in texts:
        (folder / "wrong.toml").write_text(text)
        assert not read_or_refuse(formats[kind], folder / "wrong.toml"), text
