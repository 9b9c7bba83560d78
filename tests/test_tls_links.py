"""Links between members: nothing is lost, nobody else comes in, and who is missing is named."""

import random

from vpem.engines.tls.link import Pace

from .tls_support import CuttingProxy, a_study, at_once, dialled_at, posts

QUICK = Pace(pulse=0.5, silence=1.0, stuck=1.5, opening=2.0, pauses=(0.002, 0.05))


def test_messages_arrive_by_sender_and_tag(tmp_path):
    with posts(*a_study(tmp_path)) as (hub, lab, clinic):
        for tag, size in enumerate([0, 1, 1 << 18, (1 << 18) + 1, 3_000_000]):
            for who in (lab, clinic):
                who.put(0, tag, random.Random(tag).randbytes(size), "estep")
        for who in (2, 1):
            for tag, size in reversed(list(enumerate([0, 1, 1 << 18, (1 << 18) + 1, 3_000_000]))):
                assert bytes(hub.take(who, tag)) == random.Random(tag).randbytes(size)
                assert not hub.arrived(who, tag)


def test_two_that_both_send_before_they_read_do_not_block(tmp_path):
    with posts(*a_study(tmp_path)) as (hub, lab, _):
        mail = [bytes([number]) * 30_000_000 for number in range(2)]
        hub.put(1, 0, mail[0])
        lab.put(0, 0, mail[1])
        assert bytes(hub.take(1, 0)) == mail[1]
        assert bytes(lab.take(0, 0)) == mail[0]


def test_a_link_that_is_cut_at_any_moment_loses_and_doubles_nothing(tmp_path):
    """In TLS's handshake, in the first frames, in the middle of messages, while both send."""
    roster, identities, sockets = a_study(tmp_path, ("hub", "lab"))
    rng = random.Random(0)
    budgets = [int(10 ** rng.uniform(1, 6)) for _ in range(60)]
    letters = [rng.randbytes(rng.choice([0, 10, 100_000, 900_000])) for _ in range(60)]
    with CuttingProxy(roster.members[0].address, budgets) as line:
        through = dialled_at(roster, "hub", line.address)
        with posts(through, identities, sockets, pace=QUICK) as (hub, lab):

            def talk(post, other):
                for letter in letters:
                    post.put(other, 5, letter)
                return [bytes(post.take(other, 5)) for _ in letters]

            found = at_once([lambda: talk(hub, 1), lambda: talk(lab, 0)])
        assert line.cuts >= 50
    assert found == [letters, letters]
