"""The store promise as checks, for our stores and yours. Needs no test framework."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from turnlog.contract import (
    Store,
)

from . import _store_log_checks as log
from . import _store_room_checks as room
from ._store_support import Opened

MakeStore: TypeAlias = Callable[[], Store | Awaitable[Store]]
"""Opens the store under test. A second call opens it a second time: on the same data where the store keeps
data outside the process, or empty."""

CHECKS: Sequence[Callable[[Opened], Awaitable[None]]] = (
    log.entries_come_back_as_they_were_written,
    log.what_is_missing_is_named,
    log.a_batch_is_written_whole_or_not_at_all,
    log.the_same_batch_again_is_done_already,
    log.the_expected_tail_guards_the_log,
    log.tasks_that_write_at_once_leave_no_gap,
    log.sessions_written_at_once_do_not_mix,
    log.two_openings_share_one_log,
    log.every_text_survives,
    log.every_session_id_works_or_is_refused,
    log.a_fork_shares_the_past_and_nothing_else,
    log.a_fork_of_a_fork_reads_through_both,
    log.erasing_replaces_content_and_keeps_the_rest,
    log.bytes_are_kept_once_by_name,
    log.bytes_that_only_erased_entries_name_go_with_them,
    log.a_lost_lease_writes_nothing,
    log.a_lease_runs_out,
    log.sessions_are_listed,
    room.sessions_are_found_by_what_they_are,
    room.forks_are_found_by_their_parent,
    room.a_log_without_a_digest_is_folded,
    room.the_inbox_has_every_session,
    room.runs_that_a_worker_can_continue_are_due,
    room.controls_are_queued_and_answered,
    room.a_control_is_answered_or_withdrawn_never_both,
    room.the_holder_of_a_lease_is_named,
    room.a_deleted_session_is_gone,
    room.forks_keep_a_session_from_being_deleted,
    room.bytes_come_with_the_entries_that_name_them,
    log.a_cancelled_append_is_whole_or_nothing,
    log.closing_keeps_what_was_written,
)
"""Every check, in the order they run."""


async def check_store(make_store: MakeStore) -> list[str]:
    """Run every check of the store promise; returns their names.

    Raises ``AssertionError`` that names the check and what the store got wrong.
    """
    done: list[str] = []
    for check in CHECKS:
        name = check.__name__
        stores: list[Store] = []

        async def opened(stores: list[Store] = stores) -> Store:
            made = make_store()
            store = await made if inspect.isawaitable(made) else made
            stores.append(store)
            return store

        try:
            await check(opened)
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error
        finally:
            for store in stores:
                await store.close()
        done.append(name)
    return done
