"""Ask drawn questions at every door of whichever odcsim is on PYTHONPATH: a line of JSON for each.

cd tests/odcsim/doors && PYTHONPATH=SOURCE python ask_all.py 300 > figures.jsonl

PYTHONPATH decides which sources answer; the questions and the doors are those beside this file. `compare_states.py`
then tells what differs between two states. Each takes 5 minutes of one processor for 300 questions.
"""

import argparse
import json
import sys
import time

import ways_in
from questions import drawn


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask drawn questions at every door.")
    parser.add_argument("count", type=int, nargs="?", default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the question of this number alone")
    parser.add_argument("--share", default="1/1", help="I/N: every N-th question, from the I-th")
    parser.add_argument("--seconds", action="store_true", help="tell on stderr how long each door took")
    args = parser.parse_args()
    part, parts = map(int, args.share.split("/"))
    spent = dict.fromkeys(ways_in.DOORS, 0.0)
    with ways_in.beside_files():
        for number, question in enumerate(drawn(args.count, args.seed)):
            if number % parts != part - 1 or (args.only is not None and number != args.only):
                continue
            answers = {}
            for door in ways_in.DOORS:
                begun = time.process_time()
                found = ways_in.ask(door, question)
                spent[door] += time.process_time() - begun
                if found is not None:
                    answers[door] = found
            line = {"number": number, "question": question.as_json(), "doors": answers}
            print(json.dumps(line, sort_keys=True), flush=True)
    if args.seconds:
        print(json.dumps({door: round(seconds, 1) for door, seconds in spent.items()}), file=sys.stderr)


if __name__ == "__main__":
    main()
