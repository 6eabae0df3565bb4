"""Answers to the exercises of lesson 5.2: the right one, the blank, and mistakes that people make."""

ANSWERS = {
    "5.2.1": {
        "correct": (31, "gpu03", 21, 0),
        "accepted": [(31.0, "gpu03:29400", 21, 0)],
        "wrong": [
            ((31, "gpu01", 21, 0), ["`store` is 'gpu01'", "does not hold it"]),
            ((31, 3, 21, 0), ["`store` is 3", "not a name"]),
        ],
    },
}
