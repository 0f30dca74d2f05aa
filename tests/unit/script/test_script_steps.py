"""Moments of scripts in, marks and steps out."""

from types import SimpleNamespace
from typing import Any

import pytest

from scalewise.script.steps import ScriptSteps
from scalewise.train.recording import Mark


class Timer:
    """Keeps what it was told: marks by name, ``|`` between batches, steps apart."""

    def __init__(self) -> None:
        self.marks: list[str] = []
        self.steps: list[tuple[str, int, bool]] = []
        self.samples = 0
        self.gradients = SimpleNamespace(after_backward=lambda: None)
        self.clock = SimpleNamespace(divides=True, begin=self.marks.clear)

    def mark(self, mark: Mark) -> None:
        self.marks.append(mark.name.lower())

    def begin_part(self, mark: Mark) -> None:
        self.marks += ["|", mark.name.lower()]

    def end_parts(self) -> None:
        self.marks += ["|", "fetch_begin"]

    def end_step(self, epoch: int, samples: int, untimed: bool) -> None:
        self.steps.append((" ".join(self.marks), samples, untimed))
        self.marks.clear()


class Script:
    """A script that does as it is told."""

    def __init__(self) -> None:
        self.timer = Timer()
        timer: Any = self.timer
        self.moments = ScriptSteps(timer, lambda: None, lambda optimizer: None)

    def fetch(self, samples: int = 64) -> None:
        if self.moments.begin_fetch():
            self.moments.end_fetch(samples)

    def forward(self, model: int = 0, samples: int = 64) -> None:
        self.moments.begin_forward(model, samples)

    def do(self, deeds: str) -> None:
        """Deeds by name, each with an argument behind a colon if it takes one."""
        for deed in deeds.split():
            name, *given = deed.split(":")
            getattr(self if hasattr(self, name) else self.moments, name)(*map(int, given))

    def backward(self) -> None:
        if self.moments.divides:
            self.moments.begin_backward()
            self.moments.end_backward()

    def optimize(self, optimizer: int = 7) -> None:
        self.moments.begin_optimizer()
        self.moments.end_optimizer(optimizer)

    def step(self, samples: int = 64, optimizer: int = 7) -> None:
        self.forward(samples=samples)
        self.backward()
        self.optimize(optimizer)

    @property
    def steps(self) -> list[tuple[str, int, bool]]:
        if self.moments.is_due:
            self.moments.end_due_step()
        return self.timer.steps


FORWARD_BACKWARD = "forward_begin forward_end backward_begin backward_end"
OPTIMIZER = "optimizer_begin optimizer_end"
FETCH = "fetch_begin fetch_end"
ASKED = f"{FORWARD_BACKWARD} {OPTIMIZER}"
TWICE = f"{FORWARD_BACKWARD} | {FORWARD_BACKWARD}"


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.mark.parametrize(
    ("deeds", "steps", "samples"),
    [
        ("fetch step " * 2, [f"{FETCH} {ASKED}"] * 2, [64, 64]),
        # A closure, as LBFGS calls it twice: what it leaves of its step is the optimizer's.
        ("fetch begin_optimizer forward backward forward backward end_optimizer:7 " * 2,
         [f"{FETCH} {OPTIMIZER} | {ASKED} | {ASKED}"] * 2, [64, 64]),
        # Two optimizers of a GAN share a step: the real and the faked batch, and the generator's.
        ("forward:1 backward forward:1 backward optimize:1 forward:2 backward optimize:2 " * 3,
         [f"{TWICE} {OPTIMIZER}", *[f"{ASKED} | {TWICE} {OPTIMIZER}"] * 2], [128, 64, 64]),
        # Nested ones count once, and one that nobody saw begin not at all.
        ("end_optimizer:7 forward begin_optimizer optimize:8 end_optimizer:7",
         [f"forward_begin {OPTIMIZER}"], [64]),
        # Optimizers that step within backward end a step where it ends.
        ("forward begin_backward optimize:0 optimize:1 optimize:2 end_backward",
         [f"forward_begin forward_end backward_begin {OPTIMIZER}{' optimizer_end' * 2}"], [64]),
        # A fetch that ends an epoch, with an error or not.
        ("begin_fetch fetch step", [f"fetch_begin | {FETCH} {ASKED}"], [64]),
        ("begin_fetch end_fetch:64 fetch step", [f"{FETCH} | {FETCH} {ASKED}"], [64]),
    ],
)  # fmt: skip
def test_a_step_is_what_its_moments_make_it_and_counts_its_samples_once(
    script: Script, deeds: str, steps: list[str], samples: list[int]
) -> None:
    script.do(deeds)
    assert script.steps == [(*step, False) for step in zip(steps, samples, strict=True)]


def test_accumulated_batches_are_one_step_and_undivided_its_end_is_marked(script: Script) -> None:
    script.timer.clock.divides = False
    for _ in range(3):
        script.forward(samples=16)
        script.backward()
        script.step(samples=8)
    parts = f"{FORWARD_BACKWARD} | {FORWARD_BACKWARD} {OPTIMIZER}"
    assert script.steps == [(parts, 24, False), *[("optimizer_end", 24, False)] * 2]


def test_a_step_of_uncounted_samples_is_not_timed_and_the_next_is_counted(script: Script) -> None:
    script.timer.clock.divides = False
    unseen = []
    for feeds in (True, True, False, False, False):
        script.fetch(32)
        unseen.append(script.moments.unseen)
        if feeds:
            script.forward(samples=64)
        script.optimize()
    assert unseen == [0, 0, 0, 1, 0], "models are looked for once"
    assert [step[1:] for step in script.steps] == [
        (64, False), (64, False), (0, True), (32, False), (32, False),
    ]  # fmt: skip


@pytest.mark.parametrize(("calls_itself", "gives_up"), [(False, 0), (False, 1), (True, 1)])
def test_a_step_after_a_lost_one_is_one(script: Script, calls_itself: bool, gives_up: int) -> None:
    for number in range(4):
        script.forward()
        script.backward()
        if number == gives_up or calls_itself:  # an error left it, or a class wraps it
            script.moments.begin_optimizer()
        script.optimize()
        if calls_itself:
            script.moments.end_optimizer(7)
            assert script.moments.unseen == 0
    assert ([samples for _, samples, _ in script.steps], script.moments.unseen) == ([64] * 4, 0)


@pytest.mark.parametrize(
    ("ahead", "calls", "said"),
    [(0, "1111", None), (0, "2211", None), (0, "22112", (128, 64)), (1, "1111", None)],
)
def test_a_loader_that_gave_other_samples_than_counted_is_told(
    script: Script, ahead: int, calls: str, said: tuple[int, int] | None
) -> None:
    """As of a GAN whose generator makes a batch for each of both losses; one may fetch ahead."""
    for step, called in enumerate(map(int, calls)):
        for _ in range(ahead + 1 if step == 0 else int(step + ahead < len(calls))):
            script.fetch(64)
        for _ in range(called - 1):
            script.forward()
            script.backward()
        script.step()
    assert (len(script.steps), script.moments.fed_unlike_fetched) == (len(calls), said)


def test_a_second_optimizer_takes_over_where_the_first_retires(script: Script) -> None:
    script.do("optimize:1 " + "forward optimize:2 " * 150)
    assert len(script.steps) > 40


def test_a_step_that_scores_is_not_timed_and_what_is_scored_does_not_count(script: Script) -> None:
    script.fetch(48)
    script.optimize()  # of a model that nobody saw: its loader tells
    for samples in (50, 50):  # validation
        script.fetch(samples)
        script.moments.begin_forward(0, 0, scores=True)
    script.fetch(40)
    script.moments.begin_forward(0, 0, scores=True)  # as a policy is, before it is trained
    script.forward(samples=0)
    script.optimize()
    assert [step[1:] for step in script.steps] == [(48, False), (40, True)]


def test_of_what_only_optimizers_are_seen_each_of_their_steps_ends_one(script: Script) -> None:
    script.do("optimize " * 3)
    assert script.moments.unseen == 2
    # Another one, as of a GAN.
    script.do("go_alone " + "backward optimize:1 optimize " * 4)
    whole = (f"backward_begin backward_end {OPTIMIZER} optimizer_end", 0, False)
    assert script.timer.steps == [whole] * 4
    assert script.timer.samples == script.moments.uncounted == 4
