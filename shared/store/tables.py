"""The schema: every table, with the CHECKs and partial indexes that repeat the engine's invariants.

JSON that must come back exactly as given is `json`, which keeps its text; nothing here is queried by JSON content.
Attempts and hints carry no foreign key to tasks: a claim must not wait for them, nor they for a claim.
"""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSON

SCHEMA = "brainhands"

metadata = MetaData(
    schema=SCHEMA,
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "pk": "%(table_name)s_pkey",
    },
)

Time = DateTime(timezone=True)

compatibility = Table(
    "compatibility",
    metadata,
    Column("single", Boolean, primary_key=True, server_default=text("true")),
    Column("oldest_code", Text, nullable=False),
    CheckConstraint("single", name="single"),
)
"""One row: the newest revision that code must know to work on this schema. A contracting migration raises it."""

sessions = Table(
    "sessions",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("log_format", Integer, nullable=False),
    Column("last_seq", Integer, nullable=False),
    Column("last_hash", LargeBinary, nullable=False),
    Column("last_at", Time, nullable=False),
    Column("created_at", Time, nullable=False),
    CheckConstraint("last_seq >= 0", name="last_seq"),
    CheckConstraint("octet_length(last_hash) = 32", name="last_hash"),
    Index(None, "tenant", "created_at"),
    postgresql_with={"fillfactor": "70"},
)

conversations = Table(
    "conversations",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("session_id", Uuid, ForeignKey(sessions.c.id), nullable=False),
    Column("owner_id", Uuid),
    Column("agent", Text, nullable=False),
    Column("agent_version", Integer),
    Index(None, "session_id"),
)

events = Table(
    "events",
    metadata,
    Column("session_id", Uuid, ForeignKey(sessions.c.id), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("type", Text, nullable=False),
    Column("version", SmallInteger, nullable=False),
    Column("at", Time, nullable=False),
    Column("causes", ARRAY(Integer), nullable=False),
    Column("payload", JSON, nullable=False),
    Column("conversation_id", Uuid),
    Column("task_id", Uuid),
    Column("fence", BigInteger),
    Column("worker_id", Uuid),
    Column("pool", Text),
    Column("environment", Text),
    Column("tokens_in", Integer),
    Column("tokens_out", Integer),
    Column("salt", LargeBinary, nullable=False),
    Column("payload_digest", LargeBinary, nullable=False),
    Column("prev_hash", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    PrimaryKeyConstraint("session_id", "seq"),
    CheckConstraint("seq > 0", name="seq"),
    CheckConstraint("causes = '{}' OR (0 < ALL (causes) AND seq > ALL (causes))", name="causes_are_earlier"),
    CheckConstraint("octet_length(hash) = 32 AND octet_length(prev_hash) = 32", name="hashes"),
)

documents = Table(
    "documents",
    metadata,
    Column("session_id", Uuid, ForeignKey(sessions.c.id), nullable=False),
    Column("name", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("value", JSON, nullable=False),
    Column("seq", Integer, nullable=False),
    PrimaryKeyConstraint("session_id", "name", "version"),
    CheckConstraint("version > 0", name="version"),
)

tasks = Table(
    "tasks",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("session_id", Uuid, ForeignKey(sessions.c.id), nullable=False),
    Column("conversation_id", Uuid, ForeignKey(conversations.c.id)),
    Column("owner_id", Uuid),
    Column("submission_id", Uuid),
    Column("kind", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("requires_name", Text, nullable=False),
    Column("requires_version", Integer),
    Column("input", JSON, nullable=False),
    Column("cause", Integer, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("outcome", Text),
    Column("phase", Text, nullable=False),
    Column("checkpoint", JSON, nullable=False),
    Column("result", JSON, nullable=False),
    Column("error", Text),
    Column("fence", BigInteger, nullable=False),
    Column("step", Integer, nullable=False),
    Column("phase_attempts", Integer, nullable=False),
    Column("worker_id", Uuid),
    Column("lease_until", Time),
    Column("deadline", Time),
    Column("wake_at", Time),
    Column("signal_name", Text),
    Column("signal_key", Text),
    Column("blocked", Text),
    Column("refused_by", ARRAY(Text)),
    Column("cancel_wanted", Boolean, nullable=False),
    Column("created_at", Time, nullable=False),
    CheckConstraint("status IN ('pending', 'running', 'waiting', 'sleeping', 'completing', 'done')", name="status"),
    CheckConstraint(
        "outcome IS NULL OR outcome IN ('succeeded', 'failed', 'cancelled', 'interrupted')", name="outcome"
    ),
    CheckConstraint("(status IN ('completing', 'done')) = (outcome IS NOT NULL)", name="outcome_when_decided"),
    CheckConstraint(
        "CASE WHEN status = 'running' THEN worker_id IS NOT NULL AND lease_until IS NOT NULL AND deadline IS NOT NULL"
        " AND lease_until <= deadline AND fence > 0"
        " ELSE worker_id IS NULL AND lease_until IS NULL AND deadline IS NULL END",
        name="lease_when_running",
    ),
    CheckConstraint(
        "(status = 'sleeping' OR (status = 'waiting' AND signal_name IS NOT NULL)) = (wake_at IS NOT NULL)",
        name="wake_when_sleeping",
    ),
    CheckConstraint(
        "(signal_name IS NULL) = (signal_key IS NULL) AND (signal_name IS NULL OR status = 'waiting')",
        name="signal_when_waiting",
    ),
    CheckConstraint("blocked IS NULL OR status = 'pending'", name="blocked_when_pending"),
    CheckConstraint("NOT cancel_wanted OR status IN ('running', 'completing', 'done')", name="cancel_when_running"),
    CheckConstraint("owner_id IS NULL OR owner_id <> id", name="owner"),
    CheckConstraint("fence >= 0 AND step >= 0 AND phase_attempts >= 0", name="counters"),
    Index(None, "session_id"),
    Index("tasks_open_by_owner_idx", "owner_id", postgresql_where=text("status <> 'done'")),
    Index("tasks_unfinished_idx", "status", postgresql_where=text("status <> 'done'")),
    Index("tasks_wake_at_idx", "wake_at", postgresql_where=text("wake_at IS NOT NULL")),
    Index(
        "tasks_signal_idx",
        "session_id",
        "signal_name",
        "signal_key",
        postgresql_where=text("signal_name IS NOT NULL"),
    ),
    Index("tasks_unknown_idx", "session_id", "kind", postgresql_where=text("outcome = 'interrupted'")),
    Index("tasks_running_idx", "id", postgresql_where=text("status = 'running'")),
    Index("tasks_refused_idx", "id", postgresql_where=text("refused_by IS NOT NULL AND status <> 'done'")),
    Index("tasks_blocked_idx", "requires_name", postgresql_where=text("blocked IS NOT NULL")),
    Index(
        "tasks_one_generation_idx",
        "conversation_id",
        unique=True,
        postgresql_where=text("kind = 'generation' AND status <> 'done'"),
    ),
    postgresql_with={"fillfactor": "70"},
)

attempts = Table(
    "attempts",
    metadata,
    Column("task_id", Uuid, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("worker_id", Uuid, nullable=False),
    Column("phase", Text, nullable=False),
    Column("started_at", Time, nullable=False),
    Column("deadline", Time, nullable=False),
    Column("step", Integer, nullable=False, server_default=text("0")),
    Column("progress", Text, nullable=False, server_default=text("''")),
    Column("late_result", JSON),
    Column("ended_at", Time),
    PrimaryKeyConstraint("task_id", "fence"),
)

waits = Table(
    "waits",
    metadata,
    Column("waiter_id", Uuid, ForeignKey(tasks.c.id), nullable=False),
    Column("dependency_id", Uuid, ForeignKey(tasks.c.id), nullable=False),
    Column("fail_fast", Boolean, nullable=False),
    PrimaryKeyConstraint("waiter_id", "dependency_id"),
    CheckConstraint("waiter_id <> dependency_id", name="itself"),
    Index(None, "dependency_id"),
)

submissions = Table(
    "submissions",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("request_digest", LargeBinary, nullable=False),
    Column("session_id", Uuid, ForeignKey(sessions.c.id), nullable=False),
    Column("conversation_id", Uuid, ForeignKey(conversations.c.id), nullable=False),
    Column("agent", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("input", Text, nullable=False),
    Column("input_digest", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("outcome", Text),
    Column("output", JSON),
    Column("error", Text),
    Column("created_at", Time, nullable=False, server_default=func.clock_timestamp()),
    Column("done_at", Time),
    UniqueConstraint("request_digest"),
    CheckConstraint("status IN ('accepted', 'running', 'done')", name="status"),
    CheckConstraint(
        "(status = 'done') = (outcome IS NOT NULL) AND (status = 'done') = (done_at IS NOT NULL)",
        name="outcome_when_done",
    ),
    Index(None, "session_id"),
)

approvals = Table(
    "approvals",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("session_id", Uuid, ForeignKey(sessions.c.id), nullable=False),
    Column("task_id", Uuid, nullable=False),
    Column("question", Text, nullable=False),
    Column("tool", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("operation_id", Text, nullable=False),
    Column("arguments", JSON, nullable=False),
    Column("digest", Text, nullable=False),
    Column("about", Text, nullable=False),
    Column("default_answer", Text, nullable=False),
    Column("use_seconds", Double, nullable=False),
    Column("asked_at", Time, nullable=False),
    Column("answer_by", Time, nullable=False),
    Column("answer", Text, nullable=False),
    Column("answered_at", Time),
    Column("answered_by", Text),
    Column("comment", Text),
    Column("edited_arguments", JSON, nullable=False),
    Column("result", JSON, nullable=False),
    Column("use_by", Time),
    Column("used_at", Time),
    CheckConstraint("question IN ('approval', 'review')", name="question"),
    CheckConstraint(
        "CASE question WHEN 'approval' THEN answer IN ('pending', 'approved', 'denied', 'expired', 'cancelled')"
        " ELSE answer IN ('pending', 'happened', 'did_not_happen', 'unknown', 'expired', 'cancelled') END",
        name="answer",
    ),
    CheckConstraint("(answer = 'pending') = (answered_at IS NULL)", name="answered_once"),
    CheckConstraint("used_at IS NULL OR (question = 'approval' AND answer IN ('approved', 'expired'))", name="used"),
    Index("approvals_open_idx", "session_id", "asked_at", postgresql_where=text("answer = 'pending'")),
    Index(None, "task_id"),
    Index(None, "session_id"),
)

signals = Table(
    "signals",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("session_id", Uuid, ForeignKey(sessions.c.id), nullable=False),
    Column("name", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("payload", JSON, nullable=False),
    Column("request_digest", LargeBinary, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("sent_at", Time, nullable=False),
    Column("taken_by", Uuid),
    UniqueConstraint("request_digest"),
    Index("signals_waiting_idx", "session_id", "name", "key", postgresql_where=text("taken_by IS NULL")),
    Index(None, "session_id"),
)

inbox = Table(
    "inbox",
    metadata,
    Column("position", BigInteger, Identity(always=True), primary_key=True),
    Column("session_id", Uuid, ForeignKey(sessions.c.id), nullable=False),
    Column("conversation_id", Uuid, ForeignKey(conversations.c.id), nullable=False),
    Column("submission_id", Uuid, ForeignKey(submissions.c.id), nullable=False, unique=True),
    Column("mode", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("created_at", Time, nullable=False, server_default=func.clock_timestamp()),
    CheckConstraint("mode IN ('follow_up', 'steer')", name="mode"),
    Index(None, "conversation_id", "position"),
    Index(None, "session_id"),
)

outbox = Table(
    "outbox",
    metadata,
    Column("task_id", Uuid, primary_key=True),
    Column("session_id", Uuid, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("requires_name", Text, nullable=False),
    Column("requires_version", Integer),
    Column("log_format", Integer, nullable=False, server_default=text("1")),
    Column("not_before", Time, nullable=False),
    Column("published_at", Time),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("parked", Text),
    Column("created_at", Time, nullable=False, server_default=func.clock_timestamp()),
    Index(None, "priority", "not_before", postgresql_where=text("parked IS NULL")),
    postgresql_with={
        "fillfactor": "70",
        "autovacuum_vacuum_scale_factor": "0.01",
        "autovacuum_vacuum_threshold": "200",
    },
)

workers = Table(
    "workers",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("role", Text, nullable=False),
    Column("pool", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("parent_pid", Integer, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("environment", Text, nullable=False),
    Column("offers", JSON, nullable=False),
    Column("log_format", Integer, nullable=False),
    Column("draining", Boolean, nullable=False, server_default=text("false")),
    Column("started_at", Time, nullable=False, server_default=func.clock_timestamp()),
    Column("seen_at", Time, nullable=False, server_default=func.clock_timestamp()),
    CheckConstraint("slots > 0", name="slots"),
    Index(None, "seen_at"),
)

catalogue = Table(
    "catalogue",
    metadata,
    Column("name", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("spec", JSON, nullable=False),
    Column("published_at", Time, nullable=False, server_default=func.clock_timestamp()),
    Column("seen_at", Time, nullable=False, server_default=func.clock_timestamp()),
    PrimaryKeyConstraint("name", "version"),
)
