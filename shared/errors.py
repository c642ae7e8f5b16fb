"""Every error a user can meet, as one tree: the message says what is wrong, `next_step` what to do."""

from __future__ import annotations

from typing import ClassVar


class BrainhandsError(Exception):
    """Base of all errors raised on purpose by this project.

    `code` names the class for programs, at every door; a code that was released stays. README lists them.
    """

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.next_step = next_step
        if next_step:
            self.add_note(next_step)  # so that a traceback in the caller's program shows it


class BadInput(BrainhandsError):
    """The caller sent something that cannot be accepted; nothing was stored."""

    code = "bad_input"
    exit_code = 2


class SettingsError(BadInput):
    """A setting has a value that cannot be used."""

    code = "bad_setting"

    def __init__(self, variable: str, problem: str) -> None:
        super().__init__(f"{variable}: {problem}", f"set {variable} to a valid value")
        self.variable = variable
        self.problem = problem


class ServerUnavailable(BrainhandsError):
    """Postgres or Redis cannot be reached."""

    code = "server_unavailable"
    exit_code = 3

    def __init__(self, name: str, problem: str, next_step: str) -> None:
        super().__init__(f"{name} is not reachable: {problem}", next_step)
        self.name = name


class BadCursor(BadInput):
    """A place in a list was given that no page of that list had."""

    code = "bad_cursor"

    def __init__(self, text: str) -> None:
        super().__init__(f"{text[:100]!r} is no place in this list", "give the `next` of the page before, or nothing")


class ClientClosed(BrainhandsError):
    """The client was closed while something observed with it."""

    code = "client_closed"

    def __init__(self) -> None:
        super().__init__("the client was closed", "close it when nothing waits or watches with it any more")


class MissingExtra(BrainhandsError):
    """An optional part of brainhands was asked for, and its packages are not installed."""

    code = "missing_extra"

    def __init__(self, extra: str, package: str) -> None:
        super().__init__(f"{package} is not installed", f"pip install 'brainhands[{extra}]'")


class SchemaNotCurrent(BrainhandsError):
    """The database schema is older than this code."""

    code = "schema_not_current"
    exit_code = 3

    def __init__(self, found: str | None, needed: str) -> None:
        super().__init__(
            f"the database schema is at {found or 'nothing'}, this code needs {needed}", "run `brainhands migrate`"
        )


class UnfitDatabase(BrainhandsError):
    """The database is not set up in a way in which the store could work, or its role may not do what it must."""

    code = "unfit_database"
    exit_code = 3


class CodeTooOld(BrainhandsError):
    """The database schema is newer than this code, and says that it works with newer code only."""

    code = "code_too_old"
    exit_code = 3

    def __init__(self, found: str, oldest: str, code: str) -> None:
        super().__init__(
            f"the database schema is at {found} and works with code of {oldest} or newer, this code is of {code}",
            "deploy the newer version here too",
        )


class Incompatible(BrainhandsError):
    """Something stored is of a newer version than this code reads; it stays as it is until a worker comes that does."""

    code = "incompatible"


class OlderWorkers(Incompatible):
    """An event of a log format that not every live worker reads; it is written when the older ones are gone."""

    code = "older_workers"

    def __init__(self, log_format: int) -> None:
        super().__init__(
            f"log format {log_format} is written once every live worker reads it", "stop the workers of older versions"
        )
        self.log_format = log_format


class NotStorable(BadInput):
    """A JSON value that the store cannot hold; `path` says where in it."""

    code = "not_storable"

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path or 'value'}: {problem}", "send a smaller or plainer value")
        self.path = path
        self.problem = problem


class TooLarge(NotStorable):
    """More characters or bytes than are taken at once; `path` says of what."""

    code = "too_large"


class NotJson(NotStorable):
    """A text that should be JSON and is not."""

    code = "not_json"

    def __init__(self, problem: str) -> None:
        super().__init__("", f"not JSON: {problem}")
        self.next_step = """write JSON; a text stands in quotes of its own, as in '"ready"'"""


class RequestConflict(BadInput):
    """The request_id was used before with another input."""

    code = "request_conflict"

    def __init__(self, request_id: str) -> None:
        super().__init__(
            f"request_id {request_id!r} was used before with another input", "use a new request_id for a new input"
        )


class RequestInProgress(BrainhandsError):
    """The same request_id is being accepted by a transaction that has not committed yet."""

    code = "request_in_progress"

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request_id {request_id!r} is in progress", "ask again in a moment")


class UnknownSession(BadInput):
    """No session of this tenant has the given id."""

    code = "unknown_session"

    def __init__(self, session: object) -> None:
        super().__init__(f"no session {session}", "list them with `brainhands sessions`")


class OtherAgent(BadInput):
    """Input was given to one agent for a session that belongs to another."""

    code = "other_agent"

    def __init__(self, session: object, agent: str, asked: str) -> None:
        super().__init__(
            f"session {session} belongs to agent {agent}, not {asked}", f"submit to {agent}, or begin a new session"
        )


class UnknownEvent(BadInput):
    """A session's log has no event of the given seq."""

    code = "unknown_event"

    def __init__(self, session: object, seq: int, next_step: str = "") -> None:
        super().__init__(
            f"session {session} has no event {seq}", next_step or f"`brainhands show {session}` lists its events"
        )


class ErasedSession(BadInput):
    """The session's content was erased, and it takes nothing more."""

    code = "erased_session"

    def __init__(self, session: object) -> None:
        super().__init__(f"session {session} was erased and takes nothing more", "start a new session")


class StillNeeded(BadInput):
    """Content cannot be taken out of the store, since open work may still read it."""

    code = "still_needed"


class UnknownSubmission(BadInput):
    """No submission of this tenant has the given id."""

    code = "unknown_submission"

    def __init__(self, submission: object) -> None:
        super().__init__(f"no submission {submission}", "check the id in the receipt")


class UnknownTask(BadInput):
    """No task of this tenant has the given id."""

    code = "unknown_task"

    def __init__(self, task: object) -> None:
        super().__init__(f"no task {task}", "list a session's tasks with `brainhands show SESSION`")


class UnknownAgent(UserWarning):
    """An input was accepted for an agent that no worker has offered lately; it waits until one does."""


class UnknownApproval(BadInput):
    """No question of this tenant has the given id."""

    code = "unknown_approval"

    def __init__(self, approval: object) -> None:
        super().__init__(f"no question {approval}", "list the open ones with `brainhands approvals`")


class UnknownDocument(BadInput):
    """The session has no such document, or had none at the time asked for."""

    code = "unknown_document"

    def __init__(self, name: str, problem: str = "") -> None:
        super().__init__(f"no document {name!r}{problem}", "list a session's with `brainhands document SESSION`")


class UnfitConnection(BadInput):
    """A caller's connection with which a submission could not be part of the caller's transaction."""

    code = "unfit_connection"

    def __init__(
        self,
        problem: str,
        next_step: str = "pass a READ COMMITTED connection to the same database with an open transaction",
    ) -> None:
        super().__init__(problem, next_step)


class BadDefinition(BadInput):
    """An agent, tool or flow is defined in a way that cannot work."""

    code = "bad_definition"


class SpecConflict(BadInput):
    """A tool was published before with other parameters under the same name and version."""

    code = "spec_conflict"

    def __init__(self, name: str, version: int) -> None:
        super().__init__(f"{name}@{version} is already published with other parameters", f"raise the version of {name}")


class StaleWrite(BrainhandsError):
    """A commit was refused because its writer no longer owns the task, or what it read has changed."""

    code = "stale_write"


class Unsettled(BrainhandsError):
    """A commit could not be carried out within its time; whether it happened must be read from the store."""

    code = "unsettled"


class WaitTimeout(BrainhandsError, TimeoutError):
    """A submission was not done within the time for which `wait` was to wait; it goes on all the same."""

    code = "wait_timeout"
