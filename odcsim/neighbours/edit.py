"""A trainer's file or command with some of its values changed: all else stays as it stands there."""

import io
import json
import re
import shlex
from collections.abc import Collection, Mapping
from typing import Any

from odcsim.errors import InputError
from odcsim.neighbours.accelerate import AGAIN
from odcsim.neighbours.config import COMMAND, TrainerConfig
from odcsim.neighbours.neighbour import ChosenRow
from odcsim.neighbours.settings import FILES, format_value, format_yaml, written
from odcsim.neighbours.shell import flags_of
from odcsim.neighbours.values import flatten, plain

GONE, GONE_FLAG = object(), object()  # of a name that is left out, and of one that has no value behind it
# Flags of `accelerate launch`, which stand before the program.
LAUNCHED = ("--use_fsdp", "--fsdp_version", "--fsdp_auto_wrap", "--fsdp_reshard", "--multi_gpu", "--use_parallelism",
            "--parallelism_config", "--num_processes", "--num_machines")  # fmt: skip
OLDER_KERNELS = ("flash_attention", "sdp_attention", "eager_attention", "flex_attention", "xformers_attention")
LOGICAL = re.compile(r"(?m)^(?:[^\n]*\\[ \t]*\n)*[^\n]*$")  # a line with all that it goes on in
OPERATOR = re.compile(r"\s(?:\d?>{1,2}|\||&&?|;|#)(?=[\s&\d]|$)[^\n]*\Z|;[^\n]*\Z")
ARRAYS = re.compile(r"(?s)^[ \t]*\w+\+?=\(.*^[ \t]*\)", re.MULTILINE)  # from the first to the end of the last
SUBCOMMANDS = re.compile(r"[a-z-]+:[a-z]+$")


def differences(config: TrainerConfig, before: ChosenRow, after: ChosenRow) -> dict[str, Any]:
    """What is to be changed for one row in place of another: by the names that stand there, else by the trainer's."""
    one, other = (_flat(config, config.trainer.settings(row)) for row in (before, after))
    if config.form == "shell":
        one |= _launcher(config.trainer.command(before))
        other |= _launcher(config.trainer.command(after))
    every = {name: other.get(name, GONE) for name in {**one, **other} if one.get(name, GONE) != other.get(name, GONE)}
    bare = [name for name, value in every.items() if value is GONE and one[name] is None]
    every |= dict.fromkeys(bare, GONE_FLAG)
    # What is not there cannot go.
    there = {plain(name) for name in config.values.names}
    gone = (GONE, GONE_FLAG)
    every = {name: of for name, of in every.items() if of not in gone or plain(name) in there or name in config.text}
    if "attn_implementation" in every:  # beside which axolotl 0.19.0 refuses its older flags
        every |= dict.fromkeys([name for name in config.values.names if name in OLDER_KERNELS], GONE)
    return {_spelled(config, name): value for name, value in every.items()}


def is_launched(config: TrainerConfig) -> bool:
    """Whether the same text says how it is started and sharded."""
    if config.entry.command.startswith("accelerate"):  # its flags are none of torchrun's, DeepSpeed's or the script's
        return config.form == "shell" and re.search(r"accelerate +launch\b|\btrl +[a-z]+ ", config.text) is not None
    return config.form == "shell" or config.trainer.name in ("axolotl", "verl", "torchtitan")


def _flat(config: TrainerConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """By one name each. What a command has as a flag without a value is true in a file, and what it has as a
    subcommand a mode."""
    flat = dict(flatten(settings))
    if config.form == "shell":
        return flat
    of_file: dict[str, Any] = {}
    for name, value in flat.items():
        if SUBCOMMANDS.match(name):
            section, _, mode = plain(name).partition(":")
            of_file[f"{section}.mode"] = mode
        else:
            of_file[name] = True if value is None else value
    return of_file


def _launcher(command: str) -> dict[str, Any]:
    """Flags of `accelerate launch`, which stand before the program."""
    words = shlex.split(re.split(r" -m | \S+\.py", command)[0]) if command.startswith("accelerate") else []
    return dict(flags_of(tuple(words))[0])


def _spelled(config: TrainerConfig, name: str) -> str:
    """As it is written there already."""
    if plain(name) == "gradient_checkpointing" and AGAIN in config.values:
        name = name.replace("gradient_checkpointing", AGAIN)
    known = config.values.names.get(plain(name))
    of_flags = config.form == config.trainer.form == "shell" and not SUBCOMMANDS.match(name)
    if known is not None and of_flags and not known.startswith("-"):
        return f"--{known}"
    if known is not None:
        return known
    return plain(name) if config.form in ("yaml", "json", "toml") else name


def lines(config: TrainerConfig, changes: Mapping[str, Any]) -> list[str]:
    """Each change as it would stand there; of what goes, that it goes."""
    form = "yaml" if config.form in ("yaml", "json", "toml") else config.trainer.form
    found = []
    for name, value in changes.items():
        if value in (GONE, GONE_FLAG):
            found.append(f"without {name}")
        elif config.form == "toml":
            found.append(f"{name} = {json.dumps(value)}")
        else:
            found += list(written({name: value}, form))
    return found


def edit(config: TrainerConfig, changes: Mapping[str, Any]) -> str:
    """The text with these values."""
    text = config.text
    for name, value in changes.items():
        if config.form == "yaml":
            text = _in_yaml(text, name, value)
        elif config.form == "json":
            text = _in_json(text, name, value)
        elif config.form == "toml":
            text = _in_toml(text, name, value)
        else:
            text = _in_command(text, name, value, config)
    return text if config.where == COMMAND else text.rstrip("\n") + "\n"


def _in_yaml(text: str, name: str, value: Any) -> str:
    """At the line of its key; a block beneath it goes with it. What is new stands at the end of what it lies in."""
    from ruamel.yaml import YAML

    if text.lstrip().startswith("{"):  # JSON is YAML, too
        return _in_json(text, name, value)
    rows, parts = text.splitlines(), name.split(".")
    reader = YAML(typ="rt")
    reader.allow_duplicate_keys = True
    document = reader.load(io.StringIO(text))
    depth, first, last = 0, 0, len(rows)
    while depth < len(parts):
        own = getattr(getattr(document, "lc", None), "data", None) or {}  # not what a merge (<<) brings
        if parts[depth] not in own:
            break
        inside = document[parts[depth]]
        if depth + 1 < len(parts) and getattr(inside, "fa", None) is not None and inside.fa.flow_style():
            parts, value = parts[: depth + 1], _merged(inside, parts[depth + 1 :], value)  # {a: 1} in one line
        keys = [key for key in document if key in own]
        first = document.lc.key(parts[depth])[0]
        after = [document.lc.key(key)[0] for key in keys[keys.index(parts[depth]) + 1 :]]
        last = min([row for row in after if row > first], default=last)
        depth += 1
        document = document[parts[depth - 1]]
    if depth == len(parts):
        while last > first + 1 and (not rows[last - 1].strip() or rows[last - 1].lstrip().startswith("#")):
            last -= 1
        indent = rows[first][: len(rows[first]) - len(rows[first].lstrip())]
        comment = re.search(r"\s+#.*$", rows[first]) if last == first + 1 else None
        new = [] if value is GONE else [f"{indent}{line}" for line in format_yaml(parts[-1], value)]
        if new and comment:
            new[0] += comment[0]
        return "\n".join([*rows[:first], *new, *rows[last:]])
    if value is GONE:
        return text
    nested = value
    for part in reversed(parts[depth + 1 :]):
        nested = {part: nested}
    if depth == 0:
        return "\n".join([*rows, *format_yaml(parts[0], nested)])
    step = re.match(r"\s*", rows[first + 1] if first + 1 < last else "")
    indent = step[0] if step and step[0] else "  "
    while last > first + 1 and not rows[last - 1].strip():
        last -= 1
    return "\n".join([*rows[:last], *(f"{indent}{line}" for line in format_yaml(parts[depth], nested)), *rows[last:]])


def _merged(inside: Mapping[str, Any], parts: list[str], value: Any) -> dict[str, Any]:
    """A mapping with one more value in it, or one fewer."""
    first, *rest = parts
    merged = {name: dict(of) if isinstance(of, Mapping) else of for name, of in inside.items()}
    if rest:
        within = merged.get(first)
        merged[first] = _merged(within if isinstance(within, Mapping) else {}, rest, value)
    elif value is GONE:
        merged.pop(first, None)
    else:
        merged[first] = value
    return merged


def _in_json(text: str, name: str, value: Any) -> str:
    content = json.loads(text)
    return json.dumps(_merged(content, name.split("."), value), indent=2)


def _in_toml(text: str, name: str, value: Any) -> str:
    """A name with dots stays as it stands where it stands so; else it lies in its table."""
    import tomlkit

    line = re.compile(rf"(?m)^{re.escape(name)}[ \t]*=.*\n?")
    new = "" if value is GONE else f"{name} = {json.dumps(value)}\n"
    if line.search(text):
        return line.sub(lambda _: new, text)
    if not re.search(r"(?m)^\s*\[", text):
        return f"{text.rstrip()}\n{new}"
    document = tomlkit.parse(text)
    *way, last = name.split(".")
    inside: Any = document
    for part in way:
        if not isinstance(inside.get(part), dict):  # also of a section that is off
            inside[part] = tomlkit.table()
        inside = inside[part]
    if value is GONE:
        inside.pop(last, None)
    else:
        inside[last] = value
    return tomlkit.dumps(document)


def command_span(text: str, programs: Collection[str]) -> tuple[int, int]:
    """Where the line that starts a trainer begins and ends in a script, with all lines that it goes on in, and without
    what its words are piped into; all of the text, where none stands there as it is."""
    for line in LOGICAL.finditer(text):
        words = line[0]
        if words.lstrip().startswith("#"):
            continue
        for program in programs or (".py",):
            if re.search(rf"(?:^|[\s/]){re.escape(program)}(?=\s|$)" if programs else r"\S\.py(?=\s|$)", words):
                end = OPERATOR.search(words)
                return line.start(), line.start() + (end.start() if end else len(words.rstrip()))
    return 0, len(text.rstrip())


def _in_command(text: str, name: str, value: Any, config: TrainerConfig) -> str:
    """A flag with the words behind it, or an override: where it stands in the command, or in an array of a script;
    what is new stands at the end of the command."""
    hydra = config.trainer.form == "hydra"
    start, end = command_span(text, config.entry.programs)
    if (start, end) == (0, len(text.rstrip())):
        start, end = command_span(text, ())
    inside = _in_words(text[start:end], name, value, hydra=hydra, added=False)
    if inside is None and (start, end) != (0, len(text)) and (found := ARRAYS.search(text)):
        other = _in_words(found[0], name, value, hydra=hydra, added=False)
        if other is not None:
            return f"{text[: found.start()]}{other}{text[found.end() :]}"
    if inside is None:
        inside = _in_words(text[start:end], name, value, hydra=hydra, added=True)
    return f"{text[:start]}{inside}{text[end:]}"


def _in_words(text: str, name: str, value: Any, *, hydra: bool, added: bool) -> str | None:
    """The words of a command with one changed; None where it is not there and is not to be `added`."""
    gone = value in (GONE, GONE_FLAG)
    if hydra:
        pattern = rf"(?m)(?<![\w.]){re.escape(name)}=(\"[^\"]*\"|'[^']*'|[^\s\\]*)"
        new = "" if gone else f"{name}={shlex.quote(format_value(value))}"
    elif SUBCOMMANDS.match(name):
        pattern, new = rf"(?m)(?<!\S){re.escape(name)}(?!\S)", "" if gone else name
    else:
        flag = name if name.startswith("-") else f"--{name}"
        bare = flag.lstrip("-")
        spelled = "[-_]".join(map(re.escape, re.split("[-_]", bare)))
        word = "" if value is GONE_FLAG else r"(?:[ =]+(?!--?[A-Za-z])(\"[^\"]*\"|'[^']*'|[^\s\\]+))?"
        pattern = rf"(?m)(?<!\S)--{spelled}{word}(?![\w.-])"
        new = "" if gone else flag if value is None else f"{flag} {shlex.quote(format_value(value))}"
    found = list(re.finditer(pattern, text))
    if found:
        start, end = found[-1].span()
        return f"{text[:start]}{new}{text[end:]}" if new else _without(text, start, end)
    if not added:
        return None
    if not new:
        return text
    if name.startswith(LAUNCHED) and (launch := re.search(r"accelerate +launch\b", text)):
        return f"{text[: launch.end()]} {new}{text[launch.end() :]}"
    return _append(text, new)


def _without(text: str, start: int, end: int) -> str:
    """With the line that a word stood in by itself, or the space before it; what is last goes on no further."""
    line, rest = text.rfind("\n", 0, start) + 1, re.match(r"[ \t]*\\?[ \t]*(?:\n|$)", text[end:])
    if not text[line:start].strip() and rest:
        start, end = line, end + rest.end()
    else:
        start = len(text[:start].rstrip(" \t"))
    return re.sub(r"[ \t]*\\\s*\Z", "\n", f"{text[:start]}{text[end:]}")


def _append(text: str, words: str) -> str:
    """Behind the last word of the command, which is the last line that is no comment. A subcommand stays last."""
    rows = text.rstrip().splitlines()
    at = max(i for i, row in enumerate(rows) if row.strip() and not row.lstrip().startswith("#"))
    line = rows[at].rstrip()
    last = line.split()[-1]
    if SUBCOMMANDS.match(last):
        line = f"{line[: -len(last)]}{words} {last}"
    elif len(rows) == 1:
        line = f"{line} {words}"
    else:
        line = f"{line} \\\n    {words}"
    return "\n".join([*rows[:at], line, *rows[at + 1 :]])


def check_place(config: TrainerConfig) -> None:
    """Settings that a command has in a file of their own are changed in that file."""
    if config.form == "shell" and config.trainer.form in FILES:
        words = re.findall(r"[^\s'\"]+", config.text)
        file = next((word for word in words if word.endswith((".yaml", ".yml", ".json"))), "")
        fix = f"give that file: 'odcsim audit {file}'"
        raise InputError(f"has its settings in {file or 'a file'}", where=config.where, fix=fix)
