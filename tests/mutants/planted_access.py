"""The bugs to plant in access control and TLS (tests/mutants/planted.py says how)."""

from collections.abc import Sequence

from tests.mutants.planted import Mutant

_ACCESS = "tests/http/test_access.py"
_PRINCIPALS = "tests/http/test_principals_and_quotas.py"
_TLS = "tests/http/test_server_tls.py"
_CLUSTER = "tests/cluster/test_access.py"
_AUDIT = "tests/http/test_audit_topic.py"
_AUDIT_RATE = "tests/access/test_audit.py"
_AUDIT_WRITES = "tests/process/test_audit_topic.py"
_TURNS = "tests/process/test_session.py"
_JOINT = "tests/http/test_joint_calls.py"
_REQUESTS = "tests/process/test_http_requests.py"
_MANY = "tests/process/test_batch_routes.py"

ACCESS_MUTANTS: Sequence[Mutant] = (
    Mutant(
        "publishes that arrive together are charged to no quota",
        "process/access_guard.py",
        "            self._charge(found.principal, found.usage, request.size)\n",
        "",
        (
            "tests/http/test_session.py::test_a_quota_counts_each_publish_of_those_that_arrive_together",
        ),
    ),
    Mutant(
        "commits that arrive together belong to nobody",
        "process/access_guard.py",
        "        request = request.of_caller(found.caller)\n",
        "",
        (f"{_JOINT}::test_each_needs_its_rights_and_its_owner",),
    ),
    Mutant(
        "commits of other principals' transactions leave no record",
        "process/audit_topic.py",
        "        foreign = self._foreign(operation, request)\n",
        "        foreign: Sequence[str] = ()\n",
        (f"{_JOINT}::test_who_may_administer_ends_those_of_others_on_record",),
    ),
    Mutant(
        "a request that was answered stays admitted",
        "process/admission_and_dispatch.py",
        "            admission.under_way -= 1\n",
        "",
        (
            f"{_JOINT}::test_a_commit_that_is_refused_fails_by_itself",
            f"{_MANY}::test_a_reply_to_a_client_that_has_disconnected_is_dropped",
        ),
    ),
    Mutant(
        "a request that is given up stays admitted",
        "process/admission_and_dispatch.py",
        '        self._end(ConnectionResetError("the client has disconnected"))\n',
        "",
        (f"{_REQUESTS}::test_a_read_ends_when_its_client_disconnects",),
    ),
    Mutant(
        "a request whose body never comes stays admitted",
        "process/http_connection.py",
        "            call.fail(lost)\n",
        "            pass\n",
        (f"{_REQUESTS}::test_a_body_that_its_client_never_sends_leaves_no_request_under_way",),
    ),
    Mutant(
        "replies are charged to no quota",
        "process/access_guard.py",
        "            call.watch(partial(_meter, found.usage))\n",
        "",
        (f"{_MANY}::test_refused_requests_leave_the_list_and_replies_count_in_the_quota",),
    ),
    Mutant(
        "a handler of a list that fails leaves requests without a reply",
        "kernel/requests_and_replies.py",
        "            if not each.call.is_answered:\n",
        "            if False:\n",
        (f"{_MANY}::test_an_error_of_the_handler_is_the_reply_to_each_that_has_none",),
    ),
    Mutant(
        "the check of the head stands for that of the topics in the body",
        "process/access_guard.py",
        "        if operation.access.of_topics is None and _is_short(call):",
        "        if _is_short(call):",
        (f"{_ACCESS}::test_a_commit_in_parts_is_checked_with_its_body",),
    ),
    Mutant(
        "a body is read before its token is checked",
        "process/http_connection.py",
        "            self._service.dispatcher.begin_head(call, head)\n",
        "            pass\n",
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
        "tx/transaction_principals.py",
        "    if caller is None or caller.may_administer or",
        "    if True or",
        (f"{_PRINCIPALS}::test_nobody_else_takes_over_an_epoch",),
    ),
    Mutant(
        "a snapshot file has no principals",
        "tx/state.py",
        "            principals=self.principals.image(),\n",
        "            principals=(),\n",
        (
            f"{_PRINCIPALS}::test_nobody_else_changes_or_ends_a_transaction_also_after_a_crash[snapshot]",
        ),
    ),
    Mutant(
        "an invalid transaction has no principal",
        "tx/transaction_principals.py",
        "            if not is_invalid:\n",
        "            if True:\n",
        (f"{_PRINCIPALS}::test_nobody_else_takes_an_invalid_transaction_from_the_list",),
    ),
    Mutant(
        "keys of conflicts are those of all tenants",
        "tx/transaction_principals.py",
        "        return frozenset(prefix + each for each in changes)\n",
        "        return changes\n",
        (
            f"{_PRINCIPALS}::test_conflicts_are_those_of_a_tenant_also_after_a_crash",
            f"{_PRINCIPALS}::test_a_prepared_transaction_keeps_no_changes_of_another_tenant",
        ),
    ),
    Mutant(
        "a change without a tenant can be that of one",
        "tx/transaction_principals.py",
        "    if any(each.startswith(_KEYS) for each in changes):",
        "    if False:",
        (f"{_PRINCIPALS}::test_a_principal_without_a_tenant_can_t_name_a_change_of_one",),
    ),
    Mutant(
        "the tenant of a transaction is forgotten with its end",
        "tx/transaction_principals.py",
        "        if not tenant_of(self._by_id.get(transaction_id)):\n",
        "        if True:\n",
        (f"{_PRINCIPALS}::test_no_call_tells_of_a_transaction_of_another_tenant[log]",),
    ),
    Mutant(
        "a principal in another tenant is the same one",
        "tx/transaction_principals.py",
        "caller.may_administer or caller.full_name == principal:",
        "caller.may_administer or caller.principal == principal_name(principal or ''):",
        (
            f"{_PRINCIPALS}::test_a_principal_that_moves_to_another_tenant_can_t_go_on_with_its_transactions",
        ),
    ),
    Mutant(
        "sinks are those of all tenants",
        "tx/transaction_principals.py",
        '    return f"{caller.tenant}{_TENANT}{name}" if caller is not None and caller.tenant else name\n',
        "    return name\n",
        (f"{_PRINCIPALS}::test_a_sink_is_that_of_its_tenant",),
    ),
    Mutant(
        "replies count for no quota",
        "access/quotas.py",
        "            self._bytes.take(size_bytes)\n",
        "            pass\n",
        (f"{_PRINCIPALS}::test_a_principal_above_its_rate_has_to_wait_and_others_do_not",),
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
        "access/permission.py",
        "        if principal is not SERVER:\n",
        "        if False:\n",
        (
            f"{_CLUSTER}::test_only_servers_make_the_calls_of_servers[Bearer token-of-reader-ForbiddenError]",
        ),
    ),
    Mutant(
        "an old certificate is used for ever",
        "process/tls.py",
        "        connection.context = self._files.value.context\n",
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
        ("tests/http/test_principals_and_quotas.py::test_a_request_id_is_that_of_its_principal",),
    ),
    Mutant(
        "a quota is not checked again after a wait for a pointer",
        "tx/state_machine.py",
        "            require_quota(caller, state.principals)\n"
        "        if len(state.open) >= OPEN_COUNT_MAX:\n            raise _too_many_open()\n"
        "        pointer = self._pointers.take(now_ms=now_ms)\n        if pointer is None:\n",
        "            pass\n"
        "        pointer = self._pointers.take(now_ms=now_ms)\n        if pointer is None:\n"
        "            if caller is not None:\n                require_quota(caller, state.principals)\n",
        (
            "tests/tx/test_start_and_checkpoint.py::test_starts_that_wait_for_a_pointer_keep_the_quota",
        ),
    ),
    Mutant(
        "a session begins all calls of a read before others have their turn",
        "process/session_connection.py",
        "while self._arrived and left_count and ",
        "while self._arrived and ",
        (f"{_TURNS}::test_the_calls_of_one_read_take_turns_with_other_work_and_keep_their_order",),
    ),
    Mutant(
        "a turn of a session takes as long as its calls take",
        "process/session_connection.py",
        " or now_s() >= until_s:\n",
        ":\n",
        (f"{_TURNS}::test_a_turn_ends_when_its_time_is_over",),
    ),
    Mutant(
        "a session keeps the replies of all polls under way for a client that reads none",
        "process/session_connection.py",
        "        if elements is not None and self._unread_bytes() > UNREAD_BYTES_MAX:\n",
        "        if False:\n",
        (
            f"{_TURNS}::test_polls_that_are_answered_together_read_again_later_if_nobody_reads_their_replies",
        ),
    ),
    Mutant(
        "a session begins calls while its client does not read",
        "process/session_connection.py",
        "        is_full = self._is_paused or ",
        "        is_full = ",
        (f"{_TURNS}::test_calls_wait_while_their_client_does_not_read",),
    ),
    Mutant(
        "share groups that are created together exceed the limit",
        "messaging/groups/share_coordinator.py",
        "        self._require_room(partitions, group)  # of others",
        "        pass  # of others",
        (
            "tests/groups/test_share_coordinator.py::test_a_topic_has_a_limited_number_of_share_groups",
        ),
    ),
    Mutant(
        "/health/ready of a server that is down is an error with an audit topic",
        "process/audit_topic.py",
        "    if reply.content_type == PROBLEM_TYPE:",
        "    if reply.status >= 400:",
        (f"{_AUDIT_WRITES}::test_a_server_that_is_down_still_answers_health_checks",),
    ),
    Mutant(
        "a right on every topic includes the audit topic in a commit",
        "access/permission.py",
        "    return principal.audit_topic is None and principal.may(right, EVERY, EVERY)\n",
        "    return principal.may(right, EVERY, EVERY)\n",
        (f"{_AUDIT}::test_nobody_changes_the_audit_topic",),
    ),
    Mutant(
        "the rights of a group's namespace are enough for its topics of other namespaces",
        "access/permission.py",
        "    return (names_in(namespace, name) for name in",
        "    return ((namespace, name) for name in",
        (f"{_ACCESS}::test_each_topic_of_another_namespace_needs_the_right_there",),
    ),
    Mutant(
        "an administrator truncates the audit topic",
        "access/permission.py",
        "    is_kept = needed.deletes_messages and ",
        "    is_kept = False and ",
        (f"{_AUDIT}::test_nobody_changes_the_audit_topic",),
    ),
    Mutant(
        "each reader reads the audit topic",
        "access/principals.py",
        "            right = Right.ADMINISTER\n",
        "            pass\n",
        (f"{_AUDIT}::test_only_who_may_administer_reads_the_audit_topic",),
    ),
    Mutant(
        "a refusal before the body is not recorded",
        "process/admission_and_dispatch.py",
        "        self._watch(call, head)\n",
        "",
        (f"{_AUDIT}::test_a_refusal_before_the_body_is_recorded",),
    ),
    Mutant(
        "the end of another principal's transaction is not recorded",
        "process/audit_topic.py",
        "        return [each for each in named if self._principal_of(int(each)) != name]\n",
        "        return []\n",
        (f"{_AUDIT}::test_the_end_of_a_transaction_of_another_principal_is_recorded",),
    ),
    Mutant(
        "each refused call is an audit message",
        "access/audit.py",
        "        if key not in counts and len(counts) < FAILURE_KINDS_MAX:\n",
        "        if key not in counts:\n",
        (
            f"{_AUDIT_RATE}::test_a_client_that_changes_each_call_makes_no_more_messages_than_the_bound",
        ),
    ),
    Mutant(
        "audit messages that can't be written are forgotten",
        "process/audit_topic.py",
        "                for _ in batch:\n                    self._waiting.popleft()\n",
        "",
        (f"{_AUDIT_WRITES}::test_what_can_t_be_written_waits_and_is_written_once[here]",),
    ),
    Mutant(
        "a server records what another one has forwarded",
        "process/audit_topic.py",
        "        if not result or self._guard.is_of_server(request):\n",
        "        if not result:\n",
        (f"{_AUDIT_WRITES}::test_a_forwarded_call_is_recorded_by_the_server_that_got_it",),
    ),
    Mutant(
        "each publisher writes under each transaction",
        "tx/write_permits.py",
        "        self._require_writer(caller, pointer)\n        return self.join(pointer, recall=None)\n",
        "        return self.join(pointer, recall=None)\n",
        (f"{_PRINCIPALS}::test_nobody_else_writes_under_a_transaction",),
    ),
    Mutant(
        "a commit of offsets is of nobody",
        "messaging/groups/group_logs.py",
        "request, caller=caller)",
        "request)",
        (f"{_PRINCIPALS}::test_nobody_else_writes_under_a_transaction",),
    ),
    Mutant(
        "another owner lets each publisher write under a transaction",
        "cluster/transactions_client.py",
        "        require_writer(caller, key.pointer, join.principal)\n",
        "",
        (
            "tests/cluster/test_transactions_across_servers.py::test_another_owner_lets_only_the_principal_of_a_transaction_write",
        ),
    ),
)
