"""Writes the data of recipes/three-stages.toml: single moves on a frozen lake, and corrected walks.

    python recipes/three_stages_data.py                        before the run: three-stages-moves.jsonl
    python recipes/three_stages_data.py corrected three-stages    after it: three-stages-corrected.jsonl

A single move follows the beginning of a walk, of which the prompt has the moves and what the environment said to them.
There is one right answer: the move of every shortest way to the goal. A corrected walk is one of the run that missed the
goal, up to its first mistake, with a shortest way from there.
"""

import json
import random
import re
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

SIZE, ICE, TURNS = 4, 0.8, 10
GROUPS, GROUPS_PER_BATCH = 200, 32
STEPS = {"L": (0, -1), "D": (1, 0), "R": (0, 1), "U": (-1, 0)}
Place = tuple[int, int]


class Lake:
    """A map and the number of moves from each of its places to the goal."""

    def __init__(self, text: str) -> None:
        self.rows = text.split("/")
        places = [(r, c) for r, row in enumerate(self.rows) for c in range(len(row))]
        self.start = next(place for place in places if self.tile(place) == "S")
        queue = deque(place for place in places if self.tile(place) == "G")
        self.left = dict.fromkeys(queue, 0)
        while queue:
            here = queue.popleft()
            for place in places:
                if place not in self.left and self.tile(place) != "H" and here in self.around(place).values():
                    self.left[place] = self.left[here] + 1
                    queue.append(place)

    def tile(self, place: Place) -> str:
        row, column = place
        return self.rows[row][column] if 0 <= row < SIZE and 0 <= column < SIZE else "#"

    def around(self, place: Place) -> dict[str, Place]:
        """The places that the moves lead to."""
        moved = {move: (place[0] + r, place[1] + c) for move, (r, c) in STEPS.items()}
        return {move: place if self.tile(to) == "#" else to for move, to in moved.items()}

    def best(self, place: Place) -> list[str]:
        """The moves of the shortest ways to the goal."""
        return [m for m, to in self.around(place).items() if self.left.get(to) == self.left[place] - 1]

    def seen(self, place: Place) -> str:
        """What the environment says about a place."""
        tiles = [self.tile((place[0] + r, place[1] + c)) for r, c in STEPS.values()]
        return f"{place[0]}{place[1]}{''.join(tiles)}"


def lake(rng: random.Random) -> Lake:
    """A map that can be crossed in six moves."""
    while True:
        tiles = ["F" if rng.random() < ICE else "H" for _ in range(SIZE * SIZE)]
        tiles[0], tiles[-1] = "S", "G"
        found = Lake("/".join("".join(tiles[r * SIZE : (r + 1) * SIZE]) for r in range(SIZE)))
        if found.left.get(found.start) == 2 * (SIZE - 1):
            return found


def single_move(rng: random.Random) -> dict[str, str]:
    """A walk over ice, and the move that is right after it."""
    while True:
        on, text = lake(rng), ""
        place = on.start
        for _ in range(rng.randrange(6)):
            safe = [(m, to) for m, to in on.around(place).items() if on.left.get(to, 0) > 0]
            move, place = rng.choice(safe)
            text += f"{move}<|eos|>{on.seen(place)}"
        if len(on.best(place)) == 1:
            return {"prompt": f"{'/'.join(on.rows)}:{text}", "answer": on.best(place)[0]}


def corrected(answer: str, completion: str) -> list[str] | None:
    """The moves of a walk up to its first mistake, then a shortest way."""
    on, moves = Lake(answer), []
    place = on.start
    for move in re.findall(r"([LDRU])(?:\d\d[SFHG#]{4}|$)", completion):
        to = on.around(place)[move]
        # A hole, or a way that is too long.
        if to not in on.left or len(moves) + 1 + on.left[to] > TURNS or on.left[to] > on.left[place]:
            break
        moves.append(move)
        place = to
    while on.left[place] > 0:
        moves.append(on.best(place)[0])
        place = on.around(place)[moves[-1]]
    return moves if len(moves) <= TURNS else None


def failures(run: str, stage: str) -> list[dict[str, str]]:
    """Different walks that missed the goal, from groups of the second half of a stage."""
    done = next(shown["done"] for shown in inspected(run)["stages"] if shown["name"] == stage)
    groups = done * GROUPS_PER_BATCH
    found = {}
    for ticket in range(groups // 2, groups, max(1, groups // 2 // GROUPS)):
        group = inspected(run, f"{stage}/{ticket}")
        for sample in group["samples"]:
            if not sample["solved"]:
                found[group["task"]["answer"], sample["completion"]] = {
                    **group["task"],
                    "completion": sample["completion"],
                }
    return list(found.values())


def inspected(*arguments: str) -> dict[str, Any]:
    shown = subprocess.run(["rloom", "inspect", *arguments, "--json"], stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def main() -> None:
    if sys.argv[1:2] == ["corrected"]:
        with Path("three-stages-corrected.jsonl").open("w") as file:
            for failed in failures(sys.argv[2], "task"):
                if moves := corrected(failed["answer"], failed["completion"]):
                    row = {key: failed[key] for key in ("prompt", "answer")}
                    file.write(json.dumps({**row, "demonstration": moves}) + "\n")
        return
    rng = random.Random(0)
    with Path("three-stages-moves.jsonl").open("w") as file:
        file.writelines(json.dumps(single_move(rng)) + "\n" for _ in range(20_000))


if __name__ == "__main__":
    main()
