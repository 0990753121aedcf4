import json
from pathlib import Path

import pytest

from odcsim import catalog
from odcsim.cli import catalog as command
from odcsim.errors import InputError
from odcsim.support.command import Parser


def run(*words: str) -> None:
    parser = Parser()
    command.add(parser.add_subparsers())
    args = parser.parse_args(["catalog", *words])
    assert args.run(args) is None


def test_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    run("list")
    lines = capsys.readouterr().out.splitlines()
    listed = {line.split()[0] for line in lines if line}
    assert {*catalog.gpu_names(), *catalog.model_names()} <= listed
    assert max(map(len, lines)) <= 100


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    run("list", "--json")
    data = json.loads(capsys.readouterr().out)
    assert data == {"schema": 1, "gpus": catalog.gpu_names(), "models": catalog.model_names()}


@pytest.mark.parametrize("name", ["h100", "GB300", "L40S"])
def test_show_a_gpu_gives_every_figure_its_source_and_date(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("show", name)
    out = capsys.readouterr().out
    for figure in catalog.gpu_figures(name):
        line = next(line for line in out.splitlines() if line.split()[0] == figure.name)
        assert figure.kind in line
        assert figure.source.title in line
        assert figure.source.as_of in line
        assert f"{figure.value:g}" in line


def test_show_a_gpu_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    run("show", "a100", "--json")
    data = json.loads(capsys.readouterr().out)
    assert data["figures"]["nic_gbit_s"]["value"] == 100
    assert "arxiv.org" in data["figures"]["nic_gbit_s"]["url"]


@pytest.mark.parametrize("name", catalog.model_names())
def test_show_a_model(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("show", name)
    out = capsys.readouterr().out
    source = catalog.model_source(name)
    assert source is not None
    assert source.title in out
    assert f" {catalog.model(name).parameters:,}\n" in out


def test_show_a_model_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    run("show", "gemma-3-1b", "--json")
    data = json.loads(capsys.readouterr().out)
    assert data["shape"]["window_layers"] == 22
    assert data["derived"]["even_length"] is None


def test_show_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 256, "intermediate_size": 128}))
    run("show", str(tmp_path))
    assert str(tmp_path) in capsys.readouterr().out


def test_show_a_gpu_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.toml").write_text('like = "a100"\nnic_gbit_s = 50')
    run("show", str(tmp_path / "own.toml"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "own: figures of own.toml, else of a100"
    (given,) = [line.split() for line in lines if "given" in line]
    assert given == ["nic_gbit_s", "50", "Gb/s", "given", str(tmp_path / "own.toml")]


def test_show_something_unknown() -> None:
    with pytest.raises(InputError, match="unknown GPU or model 'h10'; did you mean 'h100'"):
        run("show", "h10")
    with pytest.raises(InputError, match="no such file"):
        run("show", "nowhere/config.json")
