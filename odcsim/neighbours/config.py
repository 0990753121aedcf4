"""What a trainer is given, read as it takes it: a file, or the command that starts it; whose it is, and how it is
launched."""

import io
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from odcsim.errors import InputError, misspelled
from odcsim.neighbours import TRAINERS, accelerate, shell
from odcsim.neighbours.launch import SHIPPED, Launcher, of_accelerate, of_deepspeed_launcher, of_torchrun, zero
from odcsim.neighbours.names import names_of
from odcsim.neighbours.neighbour import ChosenRow, Entry, Neighbour
from odcsim.neighbours.values import Values, flatten, is_here, plain, scalar
from odcsim.support.inputs import read_stdin, read_text, reading
from odcsim.trace import SFT

FILES = {".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml"}
COMMAND = "the command line"
EXPECTED = "a trainer's file (YAML, JSON, TOML), a script, or the command that starts it, in quotes"
# Flags by which a command names a file of settings, and words of launchers.
GIVES = ("--config", "--config_file", "--config-file", "--job.config_file", "--config-path")
REFERENCE, PRODUCT, DEEP = re.compile(r"\$\{([\w.]+)\}"), re.compile(r"\$\{mul:\s*(\d+),\s*(\d+)\}"), 4
OTHER_METHODS = re.compile(r"\btrl(?:/scripts/|\.scripts\.| )(?!sft|dpo|grpo|-)[a-z]\w+")
SLIP = 0.88  # of a name's letters that are those of one that is known
SURE = 2  # of a trainer's own names, in a command that starts somebody's script
EVERYBODYS = ("train.py", "sft.py", "dpo.py", "grpo.py")  # names of programs that are many people's
OWN_FILES = ("compute_environment", "distributed_type")  # of accelerate, which say nothing of training
HANDED_ON = ("accelerate_config", "num_processes", "num_machines", "use_fsdp", "fsdp_version", "fsdp_auto_wrap",
             "fsdp_reshard", "fsdp_offload", "fsdp_activation", "use_deepspeed", "zero_stage", "offload_")  # fmt: skip
STARTED = re.compile(r"^# .*\brun(?: it)?(?: by)?: (.+)$", re.MULTILINE)  # behind which a file says how it is started
OF_SLURM = {"NNODES": r"(?m)^#SBATCH\s+(?:--nodes[= ]|-N ?)(\d+)",
            "GPUS_PER_NODE": r"(?m)^#SBATCH\s+--(?:gpus-per-node[= ](?:\w+:)?|gres[= ]gpu:(?:\w+:)?)(\d+)"}  # fmt: skip
COUNTS = {"NNODES": "machines", "CUDA_VISIBLE_DEVICES": "", "ASCEND_RT_VISIBLE_DEVICES": "",
          "NPROC_PER_NODE": "per_machine", "NGPU": "per_machine", "GPUS_PER_NODE": "per_machine"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """A trainer's settings for one run, where they stand, and what is known of how it is started."""

    trainer: Neighbour
    kind: str
    form: str  # yaml, json, toml or shell
    where: str
    text: str  # of the file or the command
    values: Values
    launch: Launcher

    @property
    def entry(self) -> Entry:
        return self.trainer.entries[self.kind]

    def row(self) -> ChosenRow:
        """How a step is to be run by it."""
        return self.entry.read(self.values, self.launch)

    def unknown(self) -> list[str]:
        """Names that neither the trainer has nor anything here reads."""
        names = names_of(self.trainer.name, self.kind)
        return self.values.unread(names.known, names.prefixes)


def read_config(given: str | os.PathLike[str], launch: Launcher | None = None) -> TrainerConfig:
    """`launch`: what somebody says beside it, which has to agree with what it says itself."""
    text, where, folder, form = _source(given)
    if form == "shell":
        return _of_command(text, where, folder, launch or Launcher())
    values = parse(text, form, where)
    if any(name in values for name in OWN_FILES):
        fix = "give the command, such as 'accelerate launch --config_file F -m trl.scripts.sft ...'"
        raise InputError("is accelerate's own, and says nothing of training", where=where, fix=fix)
    trainer, kind = _whose(values, where)
    started = STARTED.search(text)
    own = _launch(shell.find(started[1], where, _programs()), started[1], folder) if started else Launcher()
    return _config(trainer, kind, form, (text, where), values, (folder, agreed(own, launch or Launcher(), where)))


def read_again(config: TrainerConfig, text: str) -> TrainerConfig:
    """A command or script of other text in the place of one that was read."""
    return _of_command(text, config.where, config.values.folder, config.launch)


def _source(given: str | os.PathLike[str]) -> tuple[str, str, Path, str]:
    """Its text, where it stands, the folder that its own paths are from, and its form."""
    name = os.fspath(given)
    if name == "-":
        text = read_stdin()
        return text, "stdin", Path(), "shell" if not _looks_nested(text) else "yaml"
    path = Path(name)
    if is_here(path):
        with reading(path, missing=f"give {EXPECTED}", expected=EXPECTED):
            return read_text(path), name, path.parent, FILES.get(path.suffix.lower(), "shell")
    if " " in name.strip():
        return name, COMMAND, Path(), "shell"
    raise InputError("no such file", where=name, fix=f"give {EXPECTED}")


def _looks_nested(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return bool(lines) and all(re.match(r"[\s-]*[\w.\"']+:|\s*- ", line) for line in lines[:3])


def parse(text: str, form: str, where: str) -> dict[str, Any]:
    """What a file holds."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    with reading(where, YAMLError, missing=f"give {EXPECTED}", expected=f"{form.upper()} of a trainer"):
        if form == "json":
            found = json.loads(text)
        elif form == "toml":
            found = tomllib.loads(text)
        else:
            reader = YAML(typ="safe", pure=True)
            reader.allow_duplicate_keys = True  # as trainers' readers do
            found = reader.load(io.StringIO(text))
    if not isinstance(found, dict) or not found:
        raise InputError("holds no settings", where=where, fix=f"give {EXPECTED}")
    return found


def _programs() -> dict[str, str]:
    """Every program by which a command is known."""
    return {
        name: trainer.name for trainer in TRAINERS.values() for of in trainer.entries.values() for name in of.programs
    }


def _whose(values: Mapping[str, Any], where: str) -> tuple[Neighbour, str]:
    """The trainer, and what it is to train, by the names that are there."""
    names = {plain(name) for name, _ in flatten(values)}
    names |= {name.partition(".")[0] for name in names}
    counts = {
        trainer.name: max(sum(plain(mark) in names for mark in entry.marks) for entry in trainer.entries.values())
        for trainer in TRAINERS.values()
    }
    fewest = {trainer.name: min(len(e.marks) for e in trainer.entries.values()) for trainer in TRAINERS.values()}
    name, count = max(counts.items(), key=lambda one: (one[1], -fewest[one[0]]))
    if not count:
        known = ", ".join(TRAINERS)
        problem = f"is no configuration that is known: {', '.join(map(str, list(values)[:6]))}"
        raise InputError(problem, where=where, fix=f"read are those of {known}")
    return TRAINERS[name], _kind(TRAINERS[name], values)


def _kind(trainer: Neighbour, values: Mapping[str, Any], program: str = "") -> str:
    """Of those that a program starts, or of all, the one of whose own names most are there."""
    names = {plain(name) for name, _ in flatten(values)}
    names |= {name.partition(".")[0] for name in names}
    kinds = [kind for kind, entry in trainer.entries.items() if program in entry.programs] or [*trainer.entries]
    return max(kinds, key=lambda kind: sum(plain(mark) in names for mark in trainer.entries[kind].own))


def _of_command(text: str, where: str, folder: Path, launch: Launcher) -> TrainerConfig:
    """By the program that it starts, whose settings are flags, overrides and a file."""
    command = shell.find(text, where, _programs())
    words = next(iter(shell.commands(text, where)), []) if command is None else []
    if command is None and not any(word.endswith(".py") or word == "-m" for word in words):
        fix = f"read are commands of {', '.join(TRAINERS)}"
        raise InputError(f"starts no trainer that is known: {' '.join(words)[:60]}", where=where, fix=fix)
    script = ""
    if command is None:
        at = next(i for i, word in enumerate(words) if word.endswith(".py") or word == "-m")
        command, script = shell.Command("", tuple(words[:at]), tuple(words[at + 1 :])), words[at]
    if (
        other := OTHER_METHODS.search(" ".join((*command.before, command.program, script, *command.after[:1])))
    ) is not None:
        problem = f"starts {other[0].strip()}"
        raise InputError(problem, where=where, fix="of TRL its SFT, DPO and GRPO are priced")
    found, others = shell.flags_of(command.after)
    values: dict[str, Any] = {}
    for name, path in _files(command, found, others):
        if not is_here(folder / path):
            if name in ("", "--job.config_file"):
                raise InputError("no such file", where=path, fix=f"{where} names it: run in its folder")
            launch = replace(launch, notes=(*launch.notes, f"{path} is not here: it was not read"))
            continue  # as one of a trainer's own folder, whose values are its defaults
        with reading(folder / path, missing="give the file", expected=EXPECTED):
            inside = read_text(folder / path)
        values |= dict(flatten(parse(inside, FILES.get(Path(path).suffix.lower(), "yaml"), path)))
    values = {plain(name): value for name, value in values.items()}
    values |= {
        name: scalar(value) if isinstance(value, str) else value for name, value in found.items() if name not in GIVES
    }
    values |= {word: None for word in others if ":" in word}  # subcommands of torchtitan
    if command.program.startswith("trl "):  # which hands these on to accelerate
        values = {name: value for name, value in values.items() if not plain(name).startswith(HANDED_ON)}
    named = TRAINERS.get(_programs().get(command.program, ""))
    if named is None or command.program in EVERYBODYS:
        trainer, kind = _whose(values, where)
        names = {plain(name) for name in values}
        sure = sum(plain(name) in names for name in trainer.entries[kind].marks if name not in accelerate.MARKS)
        if named is None and trainer.name == "trl" and sure < SURE:  # a script of one's own may call a flag as TRL does
            trainer, kind = TRAINERS["accelerate"], SFT
    else:
        trainer, kind = named, _kind(named, values, command.program)
    if named is trainer:
        kind = _kind(trainer, values, command.program)
    kind = next((one for one in trainer.entries if Path(script).stem.startswith(one)), kind)  # dpo_vlm.py
    own = _launch(command, text, folder)
    return _config(trainer, kind, "shell", (text, where), values, (folder, agreed(own, launch, where)))


def _files(command: shell.Command, found: Mapping[str, Any], others: list[str]) -> Iterator[tuple[str, str]]:
    """Files of settings that a command names: by a flag, or as its first word."""
    yield from ((name, str(found[name])) for name in GIVES if found.get(name))
    yield from (("", word) for word in others if Path(word).suffix.lower() in FILES)
    names = dict(word.split("=", 1) for word in command.before if "=" in word and not word.startswith("-"))
    if file := names.get("CONFIG_FILE"):
        yield "--job.config_file", file


def _launch(command: shell.Command | None, text: str, folder: Path) -> Launcher:
    """By the launcher before the program, by what follows a launcher's name behind it, and by the environment."""
    if command is None:
        return Launcher()
    before, _ = shell.flags_of(command.before)
    behind = command.after[command.after.index("--") + 1 :] if "--" in command.after else command.after
    flags = Values({name: scalar(value) if value else value for name, value in before.items()}, COMMAND)
    names = {Path(word).name for word in command.before}
    launch = Launcher()
    if "accelerate" in names or command.program.startswith("trl "):
        more = flags if "accelerate" in names else _values_of(behind)
        path = more.first(("config_file", "accelerate_config"))
        if path and is_here(folder / str(path)):
            inside = parse(read_text(folder / str(path)), "yaml", str(path))
            more = Values(
                {plain(n): v for n, v in flatten(inside)} | {plain(n): more.get(n) for n in more.names}, str(path)
            )
        launch = of_accelerate(more, folder)
        if str(path) in SHIPPED:
            sharding, stage = SHIPPED[str(path)]
            launch = zero(launch, stage, False) if stage else replace(launch, sharding=sharding)
        elif path and not is_here(folder / str(path)):
            launch = replace(launch, notes=(*launch.notes, f"{path} is not here: it was not read"))
    elif names & {"torchrun", "torch.distributed.run"} or "torch.distributed.run" in command.before:
        launch = of_torchrun(flags)
    elif "deepspeed" in names:
        launch = of_deepspeed_launcher(flags)
    elif "--launcher" in command.after or "--" in command.after:
        launch = of_torchrun(_values_of(behind))
    found = dict(re.findall(r"\b([A-Z_]+)=([\w,]+)", text))
    slurm = {field: re.search(pattern, text) for field, pattern in OF_SLURM.items()}
    found |= {name: match[1] for name, match in slurm.items() if match and name not in found}
    for name, field in COUNTS.items():
        if (value := found.get(name)) and not launch.gpus:
            count = len(value.split(",")) if not field else int(value) if value.isdigit() else 0
            launch = replace(launch, machines=count) if field == "machines" else replace(launch, per_machine=count)
    return launch


def _values_of(words: tuple[str, ...]) -> Values:
    found, _ = shell.flags_of(words)
    return Values({name: scalar(value) if value else value for name, value in found.items()}, COMMAND)


def agreed(own: Launcher, said: Launcher, where: str) -> Launcher:
    """What it says itself, with what somebody says beside it, where it says nothing."""
    if own.gpus and said.devices and own.gpus != said.devices:
        fix = "leave --devices out, or change it there"
        raise InputError(f"is for {own.gpus} GPUs, and --devices is {said.devices}", where=where, fix=fix)
    each, notes = said.per_machine or own.per_machine, (*own.notes, *said.notes)
    return replace(own, devices=own.gpus or said.devices, per_machine=each, notes=notes)


def resolve(values: Mapping[str, Any]) -> dict[str, Any]:
    """With references of OmegaConf put in: `${policy.model_name}`, and its own `${mul:a,b}`. Of flat names."""
    found = dict(values)

    def filled(text: str) -> Any:
        if (one := REFERENCE.fullmatch(text)) and one[1] in found:
            return found[one[1]]
        text = REFERENCE.sub(lambda m: str(found.get(m[1], m[0])), text)
        if (product := PRODUCT.fullmatch(text)) is not None:
            return int(product[1]) * int(product[2])
        return text

    for _ in range(DEEP):
        changed = {name: filled(value) for name, value in found.items() if isinstance(value, str) and "${" in value}
        if all(found[name] == value for name, value in changed.items()):
            break
        found |= changed
    return found


def _config(
    trainer: Neighbour,
    kind: str,
    form: str,
    text: tuple[str, str],
    values: Mapping[str, Any],
    place: tuple[Path, Launcher],
) -> TrainerConfig:
    told = Values(resolve(dict(flatten(values))), text[1], names_of(trainer.name, kind).usual, place[0])
    return TrainerConfig(trainer, kind, form, text[1], text[0], told, place[1])


def check_names(config: TrainerConfig) -> list[str]:
    """What is not known, each with the name that it may be meant for."""
    known = sorted(plain(name) for name in names_of(config.trainer.name, config.kind).known)
    likes = [(name, misspelled(plain(name), known, alike=SLIP)) for name in config.unknown()]
    return [f"{name} ({like})" if like else name for name, like in likes]
