"""The bugs to plant in worker processes (tests/mutants/planted.py says how)."""

from collections.abc import Sequence

from tests.mutants.planted import Mutant

_WORKERS = "tests/http/test_workers.py"

WORKERS_MUTANTS: Sequence[Mutant] = (
    Mutant(
        "two servers share a port",
        "process/listening_sockets.py",
        "        if number > 0:\n            bound.set",
        "        if len(groups) > 1:\n            bound.set",
        (f"{_WORKERS}::test_the_port_of_a_server_with_workers_is_not_shared",),
    ),
    Mutant(
        "each worker has the bound on connections to itself",
        "workers/connection_counts.py",
        "        return sum(self._numbers)\n",
        "        return max(self._numbers)\n",
        (f"{_WORKERS}::test_the_bound_on_connections_is_that_of_all_workers_together",),
    ),
    Mutant(
        "what a worker refuses alone is not counted",
        "workers/forwarding.py",
        "        if type(answered) is Reply:\n",
        "        if False:\n",
        (f"{_WORKERS}::test_what_a_worker_refuses_alone_is_counted",),
    ),
    Mutant(
        "workers outlive the main process",
        "workers/forwarding.py",
        "            self.closing.set_result(None)\n",
        "            pass\n",
        (
            f"{_WORKERS}::test_no_acknowledged_message_is_lost_when_workers_and_the_main_process_"
            "are_killed",
        ),
    ),
    Mutant(
        "a session through a worker has no principal",
        "workers/relays.py",
        "                said = pack((head.authorization, head.certificate, head.address))\n",
        "                said = pack((None, (), head.address))\n",
        (f"{_WORKERS}::test_a_session_through_a_worker_has_the_principal_of_its_certificate",),
    ),
    Mutant(
        "a session through a worker outlives the server",
        "workers/relays.py",
        "        if not self._half_closes or other is None:\n",
        "        if other is None:\n",
        (f"{_WORKERS}::test_a_session_through_a_worker_ends_with_the_server",),
    ),
    Mutant(
        "a stop waits for a worker that hangs",
        "workers/processes.py",
        "            if each.link.unanswered_count:\n",
        "            if False:\n",
        (
            "tests/workers/test_processes.py::test_a_worker_that_does_not_answer_a_stop_is_not_waited_for",
        ),
    ),
)
