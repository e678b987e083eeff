"""What is said to a service about a batch, and what its reply says about the batch's rows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from snowmelt.functions.calling.attempts import Attempts
from snowmelt.functions.calling.background import background
from snowmelt.functions.calling.cache import cache_of
from snowmelt.functions.calling.decoding import AnswerReader
from snowmelt.functions.calling.limits import Limits
from snowmelt.functions.calling.outgoing import Outgoing
from snowmelt.functions.calling.sending import Composer
from snowmelt.functions.calling.translators import Translators

if TYPE_CHECKING:
    import pyarrow as pa

    from snowmelt.clock import Clock
    from snowmelt.functions.calling.budget import Budget
    from snowmelt.functions.calling.decoding import Answers
    from snowmelt.functions.calling.flights import Work as Calling
    from snowmelt.functions.calling.ledger import CallRecord
    from snowmelt.functions.calling.plan import CallPlan, Place
    from snowmelt.functions.calling.sending import Request, Work


class Exchange:
    """Requests and replies of one function at one place; for the thread of its task."""

    def __init__(self, plan: CallPlan, place: Place, clock: Clock, budget: Budget) -> None:
        function, options = plan.function, plan.options
        self._composer = Composer(plan, place, cache_of(function))
        self._reader = AnswerReader(
            function.signature.returns,
            plan.zone,
            binary=options.binary,
            nullable=function.returns_null,
            lenient=True,
        )
        self._translators = Translators(plan)
        self._attempts = Attempts(plan, background().client, clock, Limits(plan, clock), budget)
        self.work = self._composer.work
        self.halves = self._composer.halves

    def keep(self, work: Work, answers: pa.Array) -> None:
        """Keep answers for equal inputs to come."""
        self._composer.keep(work, answers)

    def close(self) -> None:
        """End what runs for this exchange alone."""
        self._translators.close()

    def outgoing(self, request: Request) -> tuple[Outgoing, bytes | None]:
        """Return a request as it leaves, and what its translator keeps for the reply.

        Raises:
            TranslatorFailed: The request translator did.
        """
        translated = self._translators.request(request.body)
        outgoing = Outgoing(request.batch_id, translated.body, translated.url_suffix)
        return outgoing, translated.data

    def sending(self, outgoing: Outgoing, record: CallRecord) -> Calling:
        """Return what makes the call when it is started."""
        return partial(self._attempts.ask, outgoing, record)

    def answers(self, request: Request, kept: bytes | None, body: bytes) -> Answers:
        """Return the values in a reply.

        Args:
            request: What was asked.
            kept: By the request's translator.
            body: Of the reply.

        Raises:
            ReplyInvalid: It is not what the function's service should say.
            TranslatorFailed: The response translator did.
        """
        return self._reader.read(self._translators.reply(body, kept), request.rows)
