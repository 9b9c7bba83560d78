"""Studies on disk, as their members have them."""

from benchmarks import studies


def folder_of(tmp_path, name):
    """A folder of one's own."""
    folder = tmp_path / name
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def make_study(tmp_path, *parties, address=("127.0.0.1", 4433), **more):
    """A study 'heart' of a server 'hub' and some parties, in a folder each: {name: Study}."""
    options = {"fit": {"topology": "star", "hops": 0, "components": 2}}
    addresses = {"hub": address, **dict.fromkeys(parties)}
    return studies.make_study(tmp_path, addresses, **({"options": options} | more))[0]
