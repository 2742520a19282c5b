"""`python -m raydebug.cluster.supervisor NAME`: supervise one local cluster: Ray's head and the gateway.

A cluster that a `run` owns ends when no `run` uses it any more, for any reason (locks.Use).

It writes the cluster's state to status.json, and ends all its descendants on SIGTERM (keeper.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

from raydebug.cluster import audit_log, locks, private_folders, state
from raydebug.cluster.environment import cluster_environment
from raydebug.cluster.find import load_cluster
from raydebug.cluster.keeper import POLL_S, RESTARTS, RESTARTS_WINDOW_S, Keeper, Restarts, adopt_orphans
from raydebug.errors import RaydebugError
from raydebug.process import SAFE_PATH
from raydebug.protocol import variables
from raydebug.settings.debugger import widened
from raydebug.settings.flavours import flavour_variables


class Supervisor(Keeper):
    """Starts, watches and ends the processes of one local cluster."""

    def __init__(self, cluster: state.Cluster) -> None:
        environment = cluster_environment(os.environ, cluster, flavour_variables(cluster.flavour))
        super().__init__(cluster, environment, cluster.host, dict.fromkeys(("gateway", "dial"), cluster.host))
        self.starts_gateway = f"`raydebug up{state.name_option(cluster.name)}` starts it again"
        self._use = locks.Use(cluster.name) if cluster.owner else None
        self._pool_restarts = Restarts(RESTARTS, RESTARTS_WINDOW_S)
        self._pool: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Run the cluster until SIGTERM or the end of those that it is for, then end all of it."""
        try:
            self._keep()
        finally:
            self._end_all()
            if not self.stopping and self._use is not None:  # a `run` that was killed has nobody else who does it
                state.forget(self.cluster)

    def _keep(self) -> None:
        try:
            for folder in (self.cluster.folder, self.cluster.temp_dir):
                private_folders.check_private(folder)
            failure = self._take_ports()
        except RaydebugError as error:  # another user could access them
            failure = f"{error.what}: {error.cause}"
        if failure is None:
            failure = self._start_and_watch()
            failure = failure and f"{failure}; its logs: {state.keep_logs(self.cluster)}"
        if not self._is_over():
            self._say(phase="dead", reason=failure)
            self._end_all()
            while not self._is_over():  # `ps` still shows the reason; `down` ends us
                self._say_again()
                self._turn_away()
                time.sleep(POLL_S)

    def _is_over(self) -> bool:
        return self.stopping or self._is_unused()

    def _is_unused(self) -> bool:
        """Return whether the cluster is for a `run`, and none uses it; the lock stays ours then."""
        if self._use is None or not self._use.is_last():
            return False
        with contextlib.suppress(RaydebugError):
            found = state.read_record(self.cluster.name)
            if found is not None and found.id == self.cluster.id and not found.owner:  # `up` has taken it over
                self._use.give_up()
                self._use = None
                return False
        return True

    def _gateway_options(self) -> list[str]:
        return ["--audit-file", str(audit_log.file_of(self.cluster.name))]

    def _note_up(self) -> None:
        self._keep_others()
        super()._note_up()

    def _keep_others(self) -> None:
        """Start the pre-forked processes, and restart them after their end; without them processes start as usual."""
        ended = self._pool is None or self._pool.poll() is not None
        if self.cluster.prefork and ended and (self._pool is None or self._pool_restarts.take()):
            # What `run` gives to a job: some of it is read when vLLM is imported.
            environment = {**self._environment, **widened(self._environment)}
            argv = [self.cluster.python, SAFE_PATH, "-m", "raydebug.prefork.server"]
            argv += [str(self.cluster.pool_socket), str(self.cluster.pool_status)]
            self._pool = self._start(argv, self.cluster.folder / "pool.log", environment)


def main() -> None:
    """Supervise the cluster named on the command line."""
    adopt_orphans()
    supervisor = Supervisor(load_cluster(sys.argv[1]))

    def stop(_number: int, _frame: object) -> None:
        supervisor.stopping = True

    def want_gateway(_number: int, _frame: object) -> None:
        supervisor.gateway_wanted = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGUSR1, want_gateway)
    # Ctrl-C is `up`'s to answer, by SIGTERM. A handler, for SIG_IGN would be inherited by Ray's workers, and there
    # `ray.cancel` is a simulated SIGINT (ray 2.60.0 _raylet.pyx kill_main_task): it would do nothing.
    signal.signal(signal.SIGINT, lambda _number, _frame: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the cluster outlives its terminal
    os.chdir(variables.CLUSTER_DIR)
    supervisor.run()


if __name__ == "__main__":
    main()
