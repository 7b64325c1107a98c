"""Evaluation from the log: suites of cases, what must come of them, and a report that compares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazy

if TYPE_CHECKING:
    from ._cases import Case as Case
    from ._cases import add_case as add_case
    from ._cases import read_cases as read_cases
    from ._checks import Attempt as Attempt
    from ._checks import Check as Check
    from ._checks import ToolUse as ToolUse
    from ._checks import Verdict as Verdict
    from ._checks import called as called
    from ._checks import contains as contains
    from ._checks import equals as equals
    from ._checks import fits as fits
    from ._checks import judge as judge
    from ._checks import matches as matches
    from ._checks import not_called as not_called
    from ._checks import similar as similar
    from ._report import Change as Change
    from ._report import Rate as Rate
    from ._report import Report as Report
    from ._report import Score as Score
    from ._report import Trial as Trial
    from ._suite import Suite as Suite
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "._cases": "Case add_case read_cases",
            "._checks": "Attempt Check ToolUse Verdict called contains equals fits judge matches "
            "not_called similar",
            "._report": "Change Rate Report Score Trial",
            "._suite": "Suite",
        },
    )
