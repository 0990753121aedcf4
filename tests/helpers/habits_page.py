"""What habits of training loops come to under on-demand, as the table of docs/habits.md.

    python tests/helpers/habits_page.py > docs/habits.md

Each is followed by two devices and by one process (tests/helpers/habits, tests/odc_engine/fsdp/test_habits.py).
"""

import re

ROW = re.compile(r"^\| (?!habit|---)(.+?) \| (works|refused: .+) \|$", re.MULTILINE)  # as row() writes it
HEAD = """# Habits of training loops

Does your training loop work under `OnDemand`? This page is a reference for people who put the engine into their own
loop: it lists what loops do between two minibatches, and the result. A habit works, with the gradients of one process
that has all the data, or the engine refuses it with the error on the right. Mistakes that leave no trace and are as
wrong under stock FSDP2 are in [the engine's table](engine/index.md#what-is-supported-and-what-is-refused). Tests run
every habit on two devices and in one process, and compare this page with the results. There gradients are sums, as in
one process: where nothing else is said, by `OnDemand(model, average=False)`.
`python tests/helpers/habits_page.py > docs/habits.md` writes it.
"""


def row(sentence: str, verdict: str) -> str:
    return f"| {sentence} | {'works' if verdict == 'works' else f'refused: {verdict}'} |"


def page(rooms: dict[str, str], verdicts: dict[str, dict[str, str]]) -> str:
    """`verdicts`: of each room, by sentences."""
    parts = [HEAD]
    for room, title in rooms.items():
        rows = "\n".join(row(sentence, verdict) for sentence, verdict in verdicts[room].items())
        parts.append(f"## {title}\n\n| habit | result |\n|---|---|\n{rows}\n")
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
