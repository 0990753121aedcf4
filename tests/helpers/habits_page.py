"""What habits of training loops come to under on-demand, as the table of docs/habits.md.

    python tests/helpers/habits_page.py > docs/habits.md

Each is followed by two devices and by one process (tests/helpers/habits, tests/odc_engine/fsdp/test_habits.py).
"""

HEAD = """# Habits of training loops

What people do between two minibatches, and what comes of it under `OnDemand`: it is right, as in one process that has
all the data, or it is refused in the words on the right. There is no third column; what leaves no trace and
is as wrong under stock FSDP2 has a row in [the engine's table](engine/index.md#what-is-supported-and-what-is-refused).
The tests follow every habit on two devices and in one process, and hold this page to what they find.
`python tests/helpers/habits_page.py > docs/habits.md` writes it anew.
"""


def row(sentence: str, verdict: str) -> str:
    return f"| {sentence} | {'works' if verdict == 'works' else f'refused: {verdict}'} |"


def page(rooms: dict[str, str], verdicts: dict[str, dict[str, str]]) -> str:
    """`verdicts`: of each room, by sentences."""
    parts = [HEAD]
    for room, title in rooms.items():
        rows = "\n".join(row(sentence, verdict) for sentence, verdict in verdicts[room].items())
        parts.append(f"## {title}\n\n| habit | comes to |\n|---|---|\n{rows}\n")
    return "\n".join(parts)


def main() -> None:
    from habits import EVERY, ROOMS, sentence
    from pool import Pools
    from users import found

    pools, verdicts = Pools(), {room: {} for room in ROOMS}
    for name, habit in EVERY.items():
        verdicts[name.partition(":")[0]][sentence(habit)] = found(pools, habit)
    pools.stop()
    print(page(ROOMS, verdicts), end="")


if __name__ == "__main__":
    main()
