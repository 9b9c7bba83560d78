"""Light enough to be imported by a process that does trials."""

import os
import signal

from vpem.fits.selection.trials import Problem


class Deadly(Problem):
    """A problem one of whose trials ends its process."""

    def run(self, trial):
        if trial.number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run(trial)


class Broken(Problem):
    """A problem with a defect."""

    def run(self, trial):
        found = self.X.flags
        raise ZeroDivisionError(f"at {trial}, own: {found.writeable}, by columns: {found.fnc}")
