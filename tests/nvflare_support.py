"""Jobs of NVFlare in one process: sites call each other as its Collab calls do."""

import sys
import threading
import types
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from vpem.engines.tls.engine import TlsEngine
from vpem.engines.tls.mailbox import Post
from vpem.engines.tls.trust import MemberSigns

from .tls_support import a_study, at_once


class CallError(Exception):
    """What a caller gets where a call fails."""


class Facade:
    """What `nvflare.collab.collab` is to a function that is being called."""

    def __init__(self):
        self._here = threading.local()
        self.carried = []  # bytes of all streams
        self.publish = self.main = self.final = lambda function: function

    def call(self, job, site, caller, name, *given):
        """Call a function at a site, in a thread of its own as Collab does."""

        if name == "carry":
            self.carried.append(bytes(given[-1]) if isinstance(given[-1], bytes) else b"")

        def work():
            self._here.__dict__.update(job=job, site=site, caller=caller)
            return getattr(job.sites[site], name)(*given)

        (found,) = at_once([work])
        if isinstance(found, BaseException):
            raise CallError(f"{site}: {name}: {found}") from found
        return found

    caller = property(lambda self: self._here.caller)
    server = property(lambda self: Proxy(self, self._here.job, self._here.site, "server"))
    fl_ctx = property(lambda self: types.SimpleNamespace(get_job_id=lambda: "job"))

    @property
    def clients(self):
        """All but the server, as the site that is called sees them."""
        job, site = self._here.job, self._here.site
        return [Proxy(self, job, site, name) for name in job.sites if name != "server"]

    @property
    def workspace(self):
        """The folders of the site that is called."""
        folder = self._here.job.folder / self._here.site
        return types.SimpleNamespace(
            get_root_dir=lambda: str(folder), get_run_dir=lambda job: str(folder / job)
        )


class Proxy:
    """A site as another one sees it."""

    def __init__(self, facade, job, caller, name):
        self.name, self._call = name, partial(facade.call, job, name, caller)

    def __call__(self, timeout):
        return self

    def __getattr__(self, name):
        return partial(self._call, name)


class Job:
    """Sites by name in folders, and the calls between them."""

    def __init__(self, facade, folder, sites):
        self.facade, self.folder, self.sites = facade, Path(folder), sites

    def main(self):
        """Run the job as its server does; all sites are ended afterwards."""
        try:
            return self.facade.call(self, "server", "server", "main")
        finally:
            for name in self.sites:
                self.facade.call(self, name, name, "end")

    def proxies(self, caller):
        """All sites as one of them sees them."""
        return {name: Proxy(self.facade, self, caller, name) for name in self.sites}


@contextmanager
def stand_in():
    """Let `vpem.engines.nvflare` be imported, with a facade in the place of Collab's."""
    nvflare, collab = types.ModuleType("nvflare"), types.ModuleType("nvflare.collab")
    facade = collab.collab = Facade()
    collab.CollabCallError = CallError
    name = "vpem.engines.nvflare"
    before = {one: sys.modules.pop(one, None) for one in ("nvflare", "nvflare.collab", name)}
    sys.modules |= {"nvflare": nvflare, "nvflare.collab": collab}
    try:
        import importlib

        yield importlib.import_module(name), facade
    finally:
        for one, module in before.items():
            sys.modules.pop(one, None)
            if module is not None:
                sys.modules[one] = module


@contextmanager
def carried(collab, folder, size, seats=None):
    """Engines of members at sites of their own, whose links a job carries, and the job."""
    module, facade = collab
    names = [f"member-{number}" for number in range(size)]
    sites = ["server", *(f"site-{number}" for number in range(1, size))]
    holds = [name for number, name in enumerate(names) if seats is None or number in seats]
    roster, identities, _ = a_study(folder, names, (), holds)
    job = Job(facade, folder, {site: module.Site("heart", "fit") for site in sites})
    where, engines, posts = dict(zip(names, sites, strict=True)), [], []
    for name, site in where.items():
        carrier = job.sites[site]._connect(where, job.proxies(site))
        posts.append(Post(roster, identities[name], carrier=carrier, timeout=20.0))
        posts[-1].start()
        engines.append(TlsEngine(posts[-1], roster, MemberSigns(roster, identities[name])))
        engines[-1].seats = seats
    yield job, engines
    at_once([post.close for post in posts])
