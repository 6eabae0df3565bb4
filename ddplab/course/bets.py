"""Bets on what real runs will show: one sentence at a time, a stake on one of a few ends, then the run and its price.

    @bets.on(78, "No map is needed", "Where do weights land?", "on GPU 0", "on GPU 1", verdict="false", because="…")
    def landed():
        return "on GPU 0" if … else "otherwise", "what was measured, in words"

`bets.play()` shows them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from ddplab import screen
from ddplab.course.claims import VERDICTS
from ddplab.course.controls import widget
from ddplab.pointer import pointing
from ddplab.tables import markdown_table, marked

STAKES = Counter({3: 3, 2: 3, 1: 4})  # a stake → how often it may be laid: ten bets
GAIN = 2  # times the stake is what a right bet brings; a wrong one costs the stake: of three ends, chance wins nothing
Run = Callable[[], tuple[str, str]]


class Card(NamedTuple):
    """A sentence, what is asked of its run, the ends that one may bet on, what is to be said of it, and the run.

    The run returns its end, and what was measured, in words. Another end than those says that this machine has not
    measured what the verdict says.
    """

    claim: str
    asks: str
    ends: tuple[str, ...]
    verdict: str
    because: str
    run: Run


class Laid(NamedTuple):
    """A bet that its run has settled."""

    end: str
    stake: int
    gain: int


class Bets:
    """Sentences to bet on, by their numbers, and the bets that are settled. A sentence's run is kept.

    best: the best score of those who have settled all, None if nobody has.
    """

    def __init__(self) -> None:
        self.cards: dict[int, Card] = {}
        self.laid: dict[int, Laid] = {}
        self.best: int | None = None
        self._came: dict[int, tuple[str, str]] = {}

    def on(self, row: int, claim: str, asks: str, *ends: str, verdict: str, because: str) -> Callable[[Run], Run]:
        """Add the function below as the run of a sentence."""

        def add(run: Run) -> Run:
            self.cards[row] = Card(claim, asks, ends, verdict, because, run)
            return run

        return add

    def settled(self, row: int) -> dict[str, Any]:
        """Return what `claim` wants to know of a sentence, whether anybody has bet on it or not."""
        card, (found, words) = self.cards[row], self._end(row)
        said = {"text": card.claim, "verdict": card.verdict, "because": card.because}
        return said | {"measured": words, "holds": found in card.ends, "row": row}

    @property
    def left(self) -> Counter[int]:
        """The stakes that are left, and how often."""
        return STAKES - Counter(it.stake for it in self.laid.values())

    @property
    def score(self) -> int:
        """What all settled bets have brought."""
        return sum(it.gain for it in self.laid.values())

    @property
    def at_best(self) -> int:
        """What the same answers would have brought, had the highest stakes been laid on those that were right."""
        stakes, right = sorted(STAKES.elements(), reverse=True), [it.gain > 0 for it in self.laid.values()]
        wrong = sum(it.gain < 0 for it in self.laid.values())
        return GAIN * sum(stakes[: sum(right)]) - sum(stakes[len(stakes) - wrong :])

    @pointing
    def lay(self, row: int, end: str, stake: int) -> Laid:
        """Bet on an end of a sentence's run, and run it. What is settled stays.

        Where the run comes to an end that nobody could bet on, nothing is won and nothing lost. Raises ValueError for
        an end that the sentence has not, or a stake that is not left.
        """
        if row not in self.laid:
            if end not in self.cards[row].ends or not self.left[stake]:
                raise ValueError(f"no such bet on {row}: {end!r} for {stake}")
            found, _ = self._end(row)
            known = found in self.cards[row].ends
            self.laid[row] = Laid(end, stake, (GAIN * stake if found == end else -stake) if known else 0)
            if len(self.laid) == len(self.cards):
                self.best = max(self.score, self.score if self.best is None else self.best)
        return self.laid[row]

    def again(self) -> None:
        """Take all bets back, once all are settled. What the runs have shown is kept."""
        if len(self.laid) == len(self.cards):
            self.laid.clear()

    def play(self) -> None:
        """Show the sentences: in a live notebook a card for each, elsewhere a table of what one may bet on."""
        from IPython.display import display

        rows = [[str(row), it.claim, f"{it.asks} *{' · '.join(it.ends)}*"] for row, it in self.cards.items()]
        table = markdown_table(["", "the guide's sentence", "what will its run show?"], rows)
        data = {"text/markdown": table, "text/plain": f"{len(rows)} bets"}
        if screen.live():
            seen, _ = self._widget()._repr_mimebundle_()
            data |= {name: view for name, view in seen.items() if name != "text/plain"}
        display(data, raw=True)

    def _end(self, row: int) -> tuple[str, str]:
        if row not in self._came:
            card = self.cards[row]
            came = card.run()
            self._came[row] = (
                came if came[0] in card.ends else card.run()
            )  # on a busy machine a rank may have been late
        return self._came[row]

    def _widget(self) -> Any:
        cards = [[row, marked(it.claim), marked(it.asks), [*map(marked, it.ends)]] for row, it in self.cards.items()]
        page = widget("bets", cards=cards, asked=[0, 0, 0, 0], shown=self._shown(0))

        def settle(change: Any) -> None:
            count, row, place, stake = change["new"]
            try:
                self.lay(row, self.cards[row].ends[place], stake) if row else self.again()
                page.shown = self._shown(count)
            except (Exception, KeyboardInterrupt) as error:  # a message from the page has no cell to raise in
                said = ": ".join(filter(None, [type(error).__name__, str(error)]))
                page.shown = self._shown(count, f"{said}. The bet is open still.")

        page.observe(settle, "asked")
        return page

    def _shown(self, count: int, failed: str = "") -> dict[str, Any]:
        """Return what the page shows: of a settled sentence the bet, and as HTML the run's end, words and verdict."""
        told = {}
        for row, (end, stake, gain) in self.laid.items():
            card, (found, words) = self.cards[row], self._end(row)
            verdict = f"<b>So the sentence is {VERDICTS[card.verdict][0]} {card.verdict}:</b> {marked(card.because)}"
            verdict *= found in card.ends  # else nothing
            told[str(row)] = [card.ends.index(end), stake, gain, marked(found), marked(words), verdict]
        stakes = [[stake, self.left[stake]] for stake in sorted(STAKES)]
        return {"count": count, "told": told, "stakes": stakes, "status": self._status(), "failed": failed}

    def _status(self) -> str:
        many, score = len(self.cards), self.score
        said = f"Your score: {score}. {len(self.laid)} of {many} settled."
        if len(self.laid) == many:
            right, most = sum(it.gain > 0 for it in self.laid.values()), GAIN * sum(STAKES.elements())
            said = f"Your score: {score}, with {right} of {many} right. "
            said += (
                "With these answers no stakes bring more"
                if score == self.at_best
                else (f"The same answers, with the high stakes on those that were right, bring {self.at_best}")
            )
            said += f"; all right, {most}."
        return (said + f" Best so far: {self.best}." * (self.best is not None)).replace(" -", " −")
