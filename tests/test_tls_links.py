"""Links between members: nothing is lost, nobody else comes in, and who is missing is named."""

import random

from .tls_support import a_study, posts


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
