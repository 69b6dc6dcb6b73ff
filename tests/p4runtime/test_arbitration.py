"""The election without gRPC: the rules one by one, then any sequence of clients coming, changing and going.

Source: P4Runtime 1.4.1, section "Client Arbitration and Controller Replication".
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchsum.softswitch.arbitration import Arbitration, ElectionIdTaken, Notice, Standing

PRIMARY, BACKUP, NO_PRIMARY = Standing.PRIMARY, Standing.BACKUP, Standing.NO_PRIMARY


def test_first_client_with_an_id_is_primary_even_with_id_zero() -> None:
    election: Arbitration[str] = Arbitration()
    assert election.update("a", 0) == [Notice("a", PRIMARY, 0)]
    assert election.is_primary(0)


def test_a_client_without_id_is_told_that_nobody_was_ever_primary() -> None:
    election: Arbitration[str] = Arbitration()
    assert election.update("a", None) == [Notice("a", NO_PRIMARY, None)]
    assert not election.is_primary(None)


def test_a_higher_id_takes_over_and_everybody_hears_it_the_new_primary_last() -> None:
    election: Arbitration[str] = Arbitration()
    election.update("a", 5)
    election.update("b", None)
    assert election.update("c", 6) == [Notice("a", BACKUP, 6), Notice("b", BACKUP, 6), Notice("c", PRIMARY, 6)]
    assert not election.is_primary(5)


def test_a_lower_id_hears_alone_that_it_is_a_backup() -> None:
    election: Arbitration[str] = Arbitration()
    election.update("a", 5)
    assert election.update("b", 4) == [Notice("b", BACKUP, 5)]


def test_a_taken_id_is_refused_and_changes_nothing() -> None:
    election: Arbitration[str] = Arbitration()
    election.update("a", 5)
    with pytest.raises(ElectionIdTaken, match="5"):
        election.update("b", 5)
    assert not election.has_client("b")
    assert election.is_primary_client("a")


def test_the_loss_of_the_primary_is_told_and_backups_do_not_move_up_by_themselves() -> None:
    election: Arbitration[str] = Arbitration()
    election.update("a", 5)
    election.update("b", 4)
    assert election.leave("a") == [Notice("b", NO_PRIMARY, 5)]
    assert election.update("b", 4) == [Notice("b", NO_PRIMARY, 5)]  # still below the highest id ever seen
    assert election.update("b", 5) == [Notice("b", PRIMARY, 5)]


def test_the_loss_of_a_backup_is_told_to_nobody() -> None:
    election: Arbitration[str] = Arbitration()
    election.update("a", 5)
    election.update("b", 4)
    assert election.leave("b") == []


def test_a_primary_may_step_down() -> None:
    election: Arbitration[str] = Arbitration()
    election.update("a", 5)
    election.update("b", 4)
    assert election.update("a", 3) == [Notice("a", NO_PRIMARY, 5), Notice("b", NO_PRIMARY, 5)]


def test_a_primary_may_raise_its_id() -> None:
    election: Arbitration[str] = Arbitration()
    election.update("a", 5)
    election.update("b", 4)
    assert election.update("a", 9) == [Notice("b", BACKUP, 9), Notice("a", PRIMARY, 9)]


IDS = st.one_of(st.none(), st.integers(0, 4), st.integers((1 << 128) - 2, (1 << 128) - 1))


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.one_of(st.just("leave"), IDS))))
def test_whatever_happens_the_primary_holds_the_highest_id_ever(steps: list[tuple[str, int | str | None]]) -> None:
    """At most one primary; it holds the highest id that ever won; notices tell each client its true standing."""
    election: Arbitration[str] = Arbitration()
    ids: dict[str, int | None] = {}
    highest: int | None = None
    told: dict[str, Standing] = {}
    for client, step in steps:
        if step == "leave":
            ids.pop(client, None)
            told.pop(client, None)
            notices = election.leave(client)
        else:
            assert not isinstance(step, str)
            try:
                notices = election.update(client, step)
            except ElectionIdTaken:
                assert step in [taken for other, taken in ids.items() if other != client]
                continue
            ids[client] = step
            if step is not None:
                highest = step if highest is None else max(highest, step)
        for notice in notices:
            assert notice.highest == highest
            told[notice.client] = notice.standing
        primaries = [name for name, held in ids.items() if held is not None and held == highest]
        assert len(primaries) <= 1
        assert [name for name in ids if election.is_primary_client(name)] == primaries
        assert told == {name: PRIMARY if name in primaries else BACKUP if primaries else NO_PRIMARY for name in ids}
