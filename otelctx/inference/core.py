"""What the engine's thread does: place turns, run a step for all of them, look at what came out, settle them.

Nothing here waits, knows an event loop or is safe to call from another thread. What the event loop is to be told goes
to ``post``, to be delivered once per step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from otelctx.errors import ArenaExhausted, OtelctxError
from otelctx.inference.detokenize import Detokenizer
from otelctx.inference.drawing import draw
from otelctx.inference.faults import ERRORS, engine_failed, kind_of
from otelctx.inference.job import Admission, Ended, Job
from otelctx.inference.overflow import Mode, Truncate
from otelctx.inference.placing import kept_ids, place, place_alone, remember, shown_text
from otelctx.inference.reuse import Hope
from otelctx.inference.rows import Rows
from otelctx.inference.runner import Runner
from otelctx.inference.sampling import Sampler
from otelctx.inference.scheduler import Limits, Scheduler
from otelctx.inference.sliding import Slide, keep
from otelctx.inference.stepping import Stepped, Stepper
from otelctx.inference.tokenizer import ChatTokenizer
from otelctx.inference.turn import FinishReason, Limit
from otelctx.sessions.arena import Arena, pages_for
from otelctx.sessions.record import SessionRecord, reclaim

__all__ = ["Core", "Post"]

_log = logging.getLogger(__name__)

Post = Callable[[Callable[[], None]], None]


class Core:
    """The turns in flight and all that they share."""

    def __init__(
        self,
        runner: Runner,
        tokenizer: ChatTokenizer,
        arena: Arena,
        *,
        when_full: Mode,
        eos_ids: frozenset[int],
        limits: Limits,
        clock: Callable[[], float],
        post: Post,
        detokenizer: Detokenizer,
    ) -> None:
        self._runner = runner
        self._tokenizer = tokenizer
        self._detokenizer = detokenizer
        self._arena = arena
        self._when_full: Mode = when_full
        self._eos = eos_ids
        self._clock = clock
        self._post = post
        self._stepper = Stepper(runner)
        self._sampler = Sampler()
        self._scheduler = Scheduler(limits)
        self._rows = Rows(runner.kv)
        self._jobs: dict[int, Job] = {}
        self._promised = 0  # pages that running answers may still take

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute."""
        return self._scheduler.idle

    @property
    def rows_busy(self) -> int:
        return self._rows.busy

    @property
    def reserved_tokens(self) -> int:
        """Tokens of KV that the running turns may fill: their prompts and their answers. From any thread."""
        return self._rows.reserved

    @property
    def budget_tokens(self) -> int:
        """Tokens of KV that there are. From any thread."""
        return self._rows.budget

    @property
    def queued(self) -> int:
        return self._scheduler.queued

    @property
    def active(self) -> int:
        return self._scheduler.running

    # commands

    def admit(self, job: Job) -> None:
        """Give a turn its place in the window and in the queue, or refuse it."""
        try:
            self._scheduler.submit(job.number, job.request.priority)
            try:
                admission = self._place(job)
            except BaseException:
                self._scheduler.finish(job.number)
                self._close(job, commit=False)
                raise
        except OtelctxError as error:
            self._post(partial(job.listener.refused, error))
            return
        except Exception as error:
            # Nothing of it has been computed yet: what is wrong is wrong with this turn.
            _log.exception("a turn could not be placed")
            self._post(partial(job.listener.refused, engine_failed()))
            if kind_of(error) == "poisoned":
                raise
            return
        self._jobs[job.number] = job
        self._post(partial(job.listener.admitted, admission))
        # Now, and not with the next step: a burst must not fill the queue while there are free rows.
        self._start()

    def settle(self, job: Job, commit: bool) -> None:
        """The turn's reader has its last chunk, or has gone: keep the turn or take it back. The first call counts."""
        if self._jobs.pop(job.number, None) is None:
            return
        error: OtelctxError | None = engine_failed()
        try:
            self._stop(job)
            error = self._close(job, commit)
        finally:
            self._post(partial(job.listener.settled, job.sampled, error))

    def drop_idle(self, told: Callable[[int], None]) -> None:
        """Forget the KV that no running turn needs; ``told`` gets the number of tokens, on the event loop."""
        self._post(partial(told, self._rows.drop_idle()))

    def fail_all(self) -> None:
        """The engine itself went wrong: end every turn that has no end yet."""
        for job in list(self._jobs.values()):
            if not job.over:
                try:
                    self._fail(job, engine_failed())
                except Exception:  # the others are still to be told
                    _log.exception("a turn could not be taken back")

    # the loop

    def step(self) -> None:
        """One step: schedule, run, look at what came out."""
        self._expire()
        self._start()
        work = self._scheduler.step()
        if not work:
            return
        jobs = [self._jobs[item.turn] for item in work]
        feeds = [
            (job.row, job.generated[-1:] if item.decode else job.feed[item.start : item.start + item.count])
            for item, job in zip(work, jobs, strict=True)
        ]
        stepped = self._stepper.run(feeds)
        for index, (job, (row, ids)) in enumerate(zip(jobs, feeds, strict=True)):
            if index in stepped.failures:
                self._fail(job, ERRORS[stepped.failures[index]]())
            else:
                self._rows.fed(row, ids[: stepped.counts[index]])
        fed = [replace(item, count=count) for item, count in zip(work, stepped.counts, strict=True)]
        ready = self._scheduler.fed([item for index, item in enumerate(fed) if index not in stepped.failures])
        lines = {item.turn: index for index, item in enumerate(work)}
        self._sample([self._jobs[turn] for turn in ready], stepped, [lines[turn] for turn in ready])

    def _start(self) -> None:
        """Rows for turns that wait, as long as there are some."""
        while (number := self._scheduler.admit()) is not None:
            job = self._jobs[number]
            taken = self._rows.take(job.ids, job.request.owner, job.hope, len(job.ids) + job.output)
            job.row, job.feed, job.began = taken.row, job.ids, self._clock()
            self._scheduler.start(number, taken.reused, len(job.ids))
            self._post(partial(job.listener.started, job.began, taken.row, taken.reused, taken.miss))

    def _expire(self) -> None:
        now = self._clock()
        for job in list(self._jobs.values()):
            if job.deadline is not None and now >= job.deadline and not job.over:
                self._alone(job, partial(self._finish, job, "length", "deadline", now))

    def _sample(self, jobs: list[Job], stepped: Stepped, lines: list[int]) -> None:
        if not jobs:
            return
        logits = stepped.logits if lines == list(range(len(stepped.counts))) else stepped.logits[lines]
        tokens, failures = draw(self._sampler, logits, [job.state for job in jobs])
        now = self._clock()
        for line, (job, token) in enumerate(zip(jobs, tokens, strict=True)):
            if line in failures:
                self._fail(job, ERRORS[failures[line]]())
            else:
                self._alone(job, partial(self._token, job, token, now))

    def _alone(self, job: Job, call: Callable[[], None]) -> None:
        """Do what concerns ``job`` only: if it goes wrong, the job fails and the others go on."""
        try:
            call()
        except Exception as error:
            if kind_of(error) == "poisoned":
                raise
            _log.exception("a turn failed")
            self._fail(job, engine_failed())

    def _token(self, job: Job, token: int, now: float) -> None:
        job.sampled += 1
        if job.sampled == 1:
            self._post(partial(job.listener.first_token, now))
        if token in self._eos:
            self._finish(job, "stop", None, now)
            return
        job.generated.append(token)
        self._show(job, job.stops.push(job.stream.push(token)))
        if job.stops.stopped:
            self._finish(job, "stop", None, now)
        elif job.sampled >= job.output:
            self._finish(job, "length", job.limit, now)
        elif job.slide is not None and job.slide.due(len(job.ids), len(job.generated)):
            job.feed = job.slide.slide(job.ids, job.generated)
            self._rows.crop(job.row, job.slide.pinned)
            self._scheduler.start(job.number, job.slide.pinned, len(job.feed))

    def _show(self, job: Job, text: str) -> None:
        if text:
            job.shown += len(text)
            self._post(partial(job.listener.text, text))

    # ends

    def _finish(self, job: Job, reason: FinishReason, limit: Limit | None, now: float) -> None:
        """The answer is complete. It is kept once its reader has taken the last chunk."""
        try:
            ended = self._end(job, reason, limit, now)
        except OtelctxError as error:  # the lease was taken back over its deadline
            self._fail(job, error)
        else:
            self._stop(job)
            self._post(partial(job.listener.ended, ended))

    def _end(self, job: Job, reason: FinishReason, limit: Limit | None, now: float) -> Ended:
        tail, dropped = job.stream.finish()
        if not job.stops.stopped:
            self._show(job, job.stops.push(tail))
            self._show(job, job.stops.finish())
        evicted, recomputed = (job.slide.evicted, job.slide.recomputed) if job.slide is not None else (0, 0)
        used = len(job.ids) + len(job.generated) - evicted
        if job.record is not None and job.tx is not None:
            kept = job.generated
            if job.stops.stopped:
                kept = kept_ids(self._detokenizer, self._tokenizer.encode, kept, job.shown)
            window = job.record.window
            # Encoded anew, the end of the text may take a token more than it did.
            keep(window, job.tx, kept, evicted)
            used = window.kept
        cut = "utf8" if dropped and limit is not None else None
        return Ended(reason, limit, cut, job.sampled, used, now, evicted, recomputed)

    def _fail(self, job: Job, error: OtelctxError) -> None:
        try:
            self._stop(job)
            self._close(job, commit=False)
        finally:
            self._post(partial(job.listener.failed, error, job.sampled))

    def _stop(self, job: Job) -> None:
        """No more steps for it, and its row is free; what the row holds may serve the session's next turn."""
        if job.over:
            return
        job.over = True
        self._scheduler.finish(job.number, self._clock() - job.began if job.row >= 0 else None)
        if job.row >= 0:
            self._rows.give_back(job.row)

    # the window

    def _place(self, job: Job) -> Admission:
        mode, most = job.request.mode(self._when_full), job.request.max_tokens
        if job.record is None:
            placed = place_alone(job.prompt, self._runner.window, most, mode)
        else:
            self._make_room(job.record, pages_for(len(job.prompt.ids)) + 2)
            placed = place(job.record, job.prompt, most, mode)
        job.ids, job.output, job.tx = placed.ids, placed.verdict.output, placed.tx
        pinned = len(job.prompt.head) if job.record is None else job.record.window.pinned
        job.slide = Slide(self._runner.window, pinned) if mode == "slide" else None
        job.hope = Hope(
            head=pinned,
            kept=placed.before,
            history=job.prompt.history,
            truncated=isinstance(placed.verdict, Truncate),
            row=None if job.record is None else job.record.row,
        )
        if job.record is None:
            return Admission(placed.verdict)
        window = job.record.window
        # Asked for now, so that an answer that was shown can always be kept.
        slides = len(job.ids) + job.output > window.limit
        promised = pages_for(window.limit) + 2 if slides else pages_for(job.output) + 1
        if not self._make_room(job.record, self._promised + promised):
            self._close(job, commit=False)
            raise ArenaExhausted("the memory for sessions is used up; try again later")
        job.promised = promised
        self._promised += promised
        return Admission(placed.verdict, placed.before, placed.evicted, window.evicted, window.version)

    def _make_room(self, record: SessionRecord, pages: int) -> bool:
        """Whether ``pages`` pages are free, once ``record`` and the other sessions here have given up versions for it.
        Versions of idle sessions are the store's, and made room when this one was leased."""
        if not self._arena.can_allocate(pages):
            others = (job.record for job in self._jobs.values() if job.record is not None)
            reclaim((record, *others), self._arena, pages)
        return self._arena.can_allocate(pages)

    def _close(self, job: Job, commit: bool) -> OtelctxError | None:
        """End the transaction. Returns what kept a commit from happening."""
        self._promised -= job.promised
        job.promised = 0
        record, tx = job.record, job.tx
        if record is None or tx is None:
            return None
        job.tx = None
        if not commit:
            record.window.rollback(tx)
            return None
        try:
            record.commit(tx)
        except OtelctxError as error:
            return error
        whole = job.prompt.messages is not None
        answer = shown_text(self._detokenizer, job.generated, job.shown) if whole else ""
        remember(record, job.request, job.prompt, self._tokenizer.closing, answer)
        record.row = job.row if job.row >= 0 else record.row
        record.input_tokens += len(job.ids)
        record.output_tokens += job.sampled
        return None
