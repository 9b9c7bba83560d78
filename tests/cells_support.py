"""What cells of the table share (see test_table.py)."""


def lost_messages(sent, n_edges):
    """Whether rounds had far fewer messages than two a link: links, or agents, really failed."""
    return 0 < sent["messages"] < 0.9 * 2 * n_edges * sent["rounds"]
