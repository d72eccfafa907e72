"""The bugs to plant in access control and TLS (tests/mutants/planted.py says how)."""

from collections.abc import Sequence

from tests.mutants.planted import Mutant

_ACCESS = "tests/http/test_access.py"
_OWNERS = "tests/http/test_owners_and_quotas.py"
_TLS = "tests/http/test_server_tls.py"
_CLUSTER = "tests/cluster/test_access.py"

ACCESS_MUTANTS: Sequence[Mutant] = (
    Mutant(
        "the check of the head stands for that of the topics in the body",
        "process/access_guard.py",
        "        if requirement_of(operation).of_topics is None and _is_short(call):",
        "        if _is_short(call):",
        (f"{_ACCESS}::test_a_commit_in_parts_is_checked_with_its_body",),
    ),
    Mutant(
        "a body is read before its token is checked",
        "process/http_connection.py",
        "        self._service.require_access(self._served, head)\n",
        "",
        (f"{_ACCESS}::test_a_bad_token_is_refused_before_the_body_is_read[large]",),
    ),
    Mutant(
        "an allowed call outlives a change of the access file",
        "process/access_guard.py",
        "            self._allowed.clear()\n        return has_changed\n",
        "            pass\n        return has_changed\n",
        (f"{_ACCESS}::test_a_changed_file_takes_effect_and_a_wrong_one_changes_nothing",),
    ),
    Mutant(
        "each principal ends the transactions of others",
        "tx/ownership.py",
        "    if caller is None or caller.may_administer or",
        "    if True or",
        (f"{_OWNERS}::test_nobody_else_takes_over_an_epoch",),
    ),
    Mutant(
        "the calls of a batch are of nobody",
        "tx/batch.py",
        "body, caller=caller)",
        "body)",
        (f"{_OWNERS}::test_a_batch_is_of_its_principal",),
    ),
    Mutant(
        "a snapshot file has no owners",
        "tx/snapshot_file.py",
        "    for owners in _chunks(image.owners):\n",
        "    for owners in _chunks(()):\n",
        (
            f"{_OWNERS}::test_nobody_else_changes_or_ends_a_transaction_also_after_a_crash[snapshot]",
        ),
    ),
    Mutant(
        "an invalid transaction has no owner",
        "tx/ownership.py",
        "            if not is_invalid:\n",
        "            if True:\n",
        (f"{_OWNERS}::test_nobody_else_takes_an_invalid_transaction_from_the_list",),
    ),
    Mutant(
        "replies count for no quota",
        "access/quotas.py",
        "            self._bytes.take(size_bytes)\n",
        "            pass\n",
        (f"{_OWNERS}::test_a_principal_above_its_rate_has_to_wait_and_others_do_not",),
    ),
    Mutant(
        "any secret is that of the cluster",
        "process/access_guard.py",
        '        return compare_digest(hash_of(rest.partition(" ")[0]), self._secret_hash)\n',
        "        return True\n",
        (f"{_CLUSTER}::test_only_servers_make_the_calls_of_servers",),
    ),
    Mutant(
        "clients call what is for servers",
        "access/operations.py",
        "        if principal is not SERVER:\n",
        "        if False:\n",
        (
            f"{_CLUSTER}::test_only_servers_make_the_calls_of_servers[Bearer token-of-reader-ForbiddenError]",
        ),
    ),
    Mutant(
        "an old certificate is used for ever",
        "process/tls.py",
        "        connection.context = self._files.value\n",
        "        pass\n",
        (f"{_TLS}::test_the_files_are_read_again_without_a_restart",),
    ),
    Mutant(
        "handshakes do not count as connections",
        "process/listener.py",
        "        self._in_handshake.add(reference)\n",
        "",
        (f"{_TLS}::test_a_handshake_that_does_not_go_on_counts_as_a_connection",),
    ),
    Mutant(
        "handshakes that have failed count as connections",
        "process/listener.py",
        "        reference = ref(connection, forget)\n",
        "        reference = ref(connection)\n",
        (f"{_TLS}::test_a_handshake_that_fails_counts_no_longer",),
    ),
    Mutant(
        "principals share their request ids",
        "tx/routes.py",
        '    return request_id if caller is None else f"{caller.principal} {request_id}"\n',
        "    return request_id\n",
        ("tests/http/test_owners_and_quotas.py::test_a_request_id_is_that_of_its_principal",),
    ),
    Mutant(
        "a quota is not checked again after a wait for a pointer",
        "tx/start_and_checkpoint.py",
        "        while True:\n            self.require_room(caller)  #",
        "        self.require_room(caller)\n        while True:\n            #",
        (
            "tests/tx/test_start_and_checkpoint.py::test_starts_that_wait_for_a_pointer_keep_the_quota",
        ),
    ),
)
