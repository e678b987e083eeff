"""Page Checks: results of `snowmelt doctor` and `snowmelt check`, and a button to run them."""

from __future__ import annotations

from collections.abc import Iterator

from snowmelt.errors import PrivilegeMissing
from snowmelt.server.console.check_runner import CheckFinding, CheckResults
from snowmelt.server.console.findings import NOTE, WRONG
from snowmelt.server.console.layout import (
    ConsolePage,
    Region,
    age,
    data_table,
    empty,
    figures,
    form,
    format_number,
    format_quantity,
    href,
    link,
    panel,
    state_mark,
)
from snowmelt.server.console.markup import EMPTY, Html, join, tag
from snowmelt.server.console.pages.action import ActionRequest
from snowmelt.server.console.request import ConsoleProblem, PageRequest

_MAX_PROBLEMS = 10
_MAX_SHOWN = 200
_SEVERITIES = {"error": WRONG, "warning": NOTE, "undecided": NOTE}
# Omit these kinds of findings: the overview reads the same problems from the catalog.
_REPEATED_FINDINGS = frozenset({"chunk-quarantined"})
_REPEATED_CHECKS = frozenset({"chunk", "service"})


def list_check_problems(page: PageRequest) -> Iterator[ConsoleProblem]:
    """Yield the findings of the last run for the overview. Start a new run if it is due."""
    page.parts.checks.start_if_due()
    results = page.parts.checks.read()
    path = href("/checks")
    for failure in results.failures:
        yield ConsoleProblem(
            NOTE, failure, "Run the command on the machine of the service.", path=path
        )
    for line in results.installation:
        if line.finding == "wrong" and line.what not in _REPEATED_CHECKS:
            yield ConsoleProblem(
                WRONG,
                f"`snowmelt doctor` found a problem: {line.what}: {line.detail}",
                "Correct it, then check again.",
                since=results.checked_at,
                path=path,
            )
    found = [each for each in results.findings if each.finding not in _REPEATED_FINDINGS]
    for each in found[:_MAX_PROBLEMS]:
        yield ConsoleProblem(
            _SEVERITIES.get(each.severity, WRONG),
            f"`snowmelt check` of {each.table} found {each.finding}: {describe_finding(page, each)}",
            each.remedy,
            since=results.checked_at,
            path=path,
        )
    if len(found) > _MAX_PROBLEMS:
        yield ConsoleProblem(
            NOTE,
            f"`snowmelt check` has {format_number(len(found) - _MAX_PROBLEMS)} more findings.",
            "Open the page Checks.",
            path=path,
        )


def render_check_summary(page: PageRequest) -> Html:
    """Return one line for the overview with the time and the extent of the last run."""
    results = page.parts.checks.read()
    details = link("Checks", "/checks")
    if results.is_running:
        return tag("p", "The checks are running. ", details, class_="quiet")
    if results.checked_at is None:
        return tag("p", "This service has not checked its tables yet. ", details, class_="quiet")
    what = f"{format_quantity(results.tables, 'table')}, {format_quantity(len(results.findings), 'finding')}. "
    return tag(
        "p", "Last check: ", age(results.checked_at, page.now), ", ", what, details, class_="quiet"
    )


def show_checks(page: PageRequest) -> ConsolePage:
    """Return the page Checks."""
    return ConsolePage(
        "Checks",
        "Is the installation correct, and is every committed row stored?",
        [_render_form(page), Region("results", _render_results(page))],
        section="Checks",
        copies={
            "terminal": "snowmelt check",
            "with contents": "snowmelt check --deep",
            "installation": "snowmelt doctor",
            "JSON": href("/api/v1/checks"),
        },
    )


async def start_checks(request: ActionRequest) -> ConsolePage:
    """Start the checks, and return the page."""

    def start(page: PageRequest) -> ConsolePage:
        require_account_view(page)
        page.parts.checks.start()
        return show_checks(page)

    return await request.read(start)


def require_account_view(page: PageRequest) -> None:
    """Verify that the role may see results of checks.

    Raises:
        PrivilegeMissing: If the role lacks MONITOR on the account.
    """
    if not page.visibility.is_account_visible:
        raise PrivilegeMissing(
            role=page.session.role, privilege="MONITOR", object="the account, to see checks"
        )


def _render_form(page: PageRequest) -> Html:
    if not page.visibility.is_account_visible:
        return EMPTY
    interval = page.parts.settings.console_check_interval_s
    when = f"The checks run automatically every {interval:g} s. " if interval else ""
    return form(
        "/checks",
        page.session,
        tag(
            "p",
            "The checks read catalog, manifests and lists of objects. They change and lock nothing. ",
            when,
            "Contents of files and chunks are read by ",
            tag("code", "snowmelt check --deep"),
            " only.",
        ),
        tag("button", "Check now"),
    )


def _render_results(page: PageRequest) -> Html:
    if not page.visibility.is_account_visible:
        return empty(
            "Results of checks need MONITOR on the account:",
            f'snowmelt sql "GRANT MONITOR ON ACCOUNT TO ROLE {page.session.role}"',
        )
    results = page.parts.checks.read()
    state = "running" if results.is_running else "quiet" if results.checked_at is None else "fine"
    if any(each.severity == "error" for each in results.findings):
        state = "wrong"
    words = {"quiet": "not run yet"}
    summary = figures(
        (
            ("State", state_mark(words.get(state, state)), ""),
            ("Last run", age(results.checked_at, page.now), "of this service"),
            ("Tables", format_number(results.tables), format_quantity(results.rows, "row")),
            ("Findings", format_number(len(results.findings)), "of snowmelt check"),
        )
    )
    if results.checked_at is None:
        return summary
    failures = (tag("p", each, class_="error") for each in results.failures)
    return join(summary, failures, _render_findings(page, results), _render_installation(results))


def _render_findings(page: PageRequest, results: CheckResults) -> Html:
    if not results.findings:
        return panel(
            "Tables", tag("p", "Every committed row is where the catalog says.", class_="allwell")
        )
    rows = [
        (
            state_mark(_SEVERITIES.get(each.severity, WRONG)),
            each.finding,
            each.table,
            describe_finding(page, each),
            each.remedy,
        )
        for each in results.findings[:_MAX_SHOWN]
    ]
    return panel(
        "Tables",
        data_table(
            ("state", "finding", "table", "meaning", "remedy"),
            rows,
            caption=f"{format_number(len(results.findings))} findings of snowmelt check",
        ),
    )


def _render_installation(results: CheckResults) -> Html:
    rank = {"wrong": 0, "note": 1}
    lines = sorted(results.installation, key=lambda each: rank.get(each.finding, 2))
    rows = [
        (state_mark("fine" if each.finding == "ok" else each.finding), each.what, each.detail)
        for each in lines
    ]
    return panel(
        "Installation",
        data_table(
            ("state", "check", "result"), rows, caption="Lines of snowmelt doctor, problems first"
        ),
    )


def describe_finding(page: PageRequest, finding: CheckFinding) -> str:
    """Return the meaning of a finding, with its detail if the role may see offset tokens."""
    if page.visibility.with_tokens is None:
        return f"{finding.meaning} {finding.detail}"
    return finding.meaning
