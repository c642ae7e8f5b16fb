"""The first schema."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "attempts",
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("worker_id", sa.Uuid(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deadline", sa.DateTime(timezone=True), nullable=False),
        sa.Column("step", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("progress", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("late_result", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("task_id", "fence", name=op.f("attempts_pkey")),
        schema="brainhands",
    )
    op.create_index(
        "attempts_started_at_idx",
        "attempts",
        ["started_at"],
        unique=False,
        schema="brainhands",
        postgresql_using="brin",
        postgresql_with={"autosummarize": "true"},
    )
    op.create_table(
        "catalogue",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("spec", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "published_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("seen_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.PrimaryKeyConstraint("name", "version", name=op.f("catalogue_pkey")),
        schema="brainhands",
    )
    op.create_table(
        "compatibility",
        sa.Column("single", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("oldest_code", sa.Text(), nullable=False),
        sa.CheckConstraint("single", name=op.f("compatibility_single_check")),
        sa.PrimaryKeyConstraint("single", name=op.f("compatibility_pkey")),
        schema="brainhands",
    )
    op.create_table(
        "outbox",
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("requires_name", sa.Text(), nullable=False),
        sa.Column("requires_version", sa.Integer(), nullable=True),
        sa.Column("log_format", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=False),
        sa.Column("published_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("parked", sa.Text(), nullable=True),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("awaits", sa.ARRAY(sa.Text()), nullable=True),
        sa.PrimaryKeyConstraint("task_id", name=op.f("outbox_pkey")),
        schema="brainhands",
        postgresql_with={
            "fillfactor": "70",
            "autovacuum_vacuum_scale_factor": "0.01",
            "autovacuum_vacuum_threshold": "200",
        },
    )
    op.create_index(
        "outbox_awaits_idx",
        "outbox",
        ["not_before"],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("awaits IS NOT NULL"),
    )
    op.create_index(
        "outbox_parked_idx",
        "outbox",
        ["task_id"],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("parked IS NOT NULL"),
    )
    op.create_index(
        op.f("outbox_priority_not_before_idx"),
        "outbox",
        ["priority", "not_before"],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("parked IS NULL"),
    )
    op.create_index(
        "outbox_published_idx",
        "outbox",
        ["published_at"],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("published_at IS NOT NULL"),
    )
    op.create_index(
        "outbox_waiting_idx",
        "outbox",
        [
            "requires_name",
            sa.literal_column("coalesce(requires_version, 0)"),
            "log_format",
            "priority",
            "tenant",
            "session_id",
            "not_before",
            "task_id",
        ],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("published_at IS NULL AND parked IS NULL"),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("log_format", sa.Integer(), nullable=False),
        sa.Column("last_seq", sa.Integer(), nullable=False),
        sa.Column("last_hash", sa.LargeBinary(), nullable=False),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("erased_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("forked_from", sa.Uuid(), nullable=True),
        sa.Column("forked_at", sa.Integer(), nullable=True),
        sa.Column("fork_request", sa.LargeBinary(), nullable=True),
        sa.Column("tokens_in", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("tokens_out", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("cost", sa.Numeric(), server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint(
            "(forked_from IS NULL) = (forked_at IS NULL) AND last_seq > forked_at", name=op.f("sessions_fork_check")
        ),
        sa.CheckConstraint("last_seq >= 0", name=op.f("sessions_last_seq_check")),
        sa.CheckConstraint("octet_length(last_hash) = 32", name=op.f("sessions_last_hash_check")),
        sa.ForeignKeyConstraint(["forked_from"], ["brainhands.sessions.id"], name=op.f("sessions_forked_from_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("sessions_pkey")),
        schema="brainhands",
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index(
        "sessions_fork_request_idx",
        "sessions",
        ["fork_request"],
        unique=True,
        schema="brainhands",
        postgresql_where=sa.text("fork_request IS NOT NULL"),
    )
    op.create_index(
        "sessions_forked_from_idx",
        "sessions",
        ["forked_from"],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("forked_from IS NOT NULL"),
    )
    op.create_index(
        op.f("sessions_tenant_created_at_id_idx"),
        "sessions",
        ["tenant", "created_at", "id"],
        unique=False,
        schema="brainhands",
    )
    op.create_table(
        "slots",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=True),
        sa.Column("taken_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(task_id IS NULL) = (taken_at IS NULL)", name=op.f("slots_taken_check")),
        sa.CheckConstraint("number > 0", name=op.f("slots_number_check")),
        sa.PrimaryKeyConstraint("name", "number", name=op.f("slots_pkey")),
        schema="brainhands",
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index(
        "slots_task_id_idx",
        "slots",
        ["task_id"],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("task_id IS NOT NULL"),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("parent_pid", sa.Integer(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("environment", sa.Text(), nullable=False),
        sa.Column("log_format", sa.Integer(), nullable=False),
        sa.Column("draining", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("tenant_concurrency", sa.Integer(), nullable=True),
        sa.Column(
            "started_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("seen_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.CheckConstraint("slots > 0", name=op.f("workers_slots_check")),
        sa.PrimaryKeyConstraint("id", name=op.f("workers_pkey")),
        schema="brainhands",
    )
    op.create_index(op.f("workers_seen_at_idx"), "workers", ["seen_at"], unique=False, schema="brainhands")
    op.create_table(
        "offers",
        sa.Column("worker_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("low", sa.Integer(), nullable=False),
        sa.Column("high", sa.Integer(), nullable=False),
        sa.Column("concurrency", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["brainhands.workers.id"], name=op.f("offers_worker_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("worker_id", "name", "low", name=op.f("offers_pkey")),
        schema="brainhands",
    )
    op.create_index(op.f("offers_name_idx"), "offers", ["name"], unique=False, schema="brainhands")
    op.create_table(
        "approvals",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("operation_id", sa.Text(), nullable=False),
        sa.Column("arguments", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("about", sa.Text(), nullable=False),
        sa.Column("default_answer", sa.Text(), nullable=False),
        sa.Column("use_seconds", sa.Double(), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("answer_by", sa.DateTime(timezone=True), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("answered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("answered_by", sa.Text(), nullable=True),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("edited_arguments", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column("result", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column("use_by", sa.DateTime(timezone=True), nullable=True),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(answer = 'pending') = (answered_at IS NULL)", name=op.f("approvals_answered_once_check")),
        sa.CheckConstraint(
            "CASE question WHEN 'approval' THEN answer IN ('pending', 'approved', 'denied', 'expired', 'cancelled') ELSE answer IN ('pending', 'happened', 'did_not_happen', 'unknown', 'expired', 'cancelled') END",
            name=op.f("approvals_answer_check"),
        ),
        sa.CheckConstraint("question IN ('approval', 'review')", name=op.f("approvals_question_check")),
        sa.CheckConstraint(
            "used_at IS NULL OR (question = 'approval' AND answer IN ('approved', 'expired'))",
            name=op.f("approvals_used_check"),
        ),
        sa.ForeignKeyConstraint(["session_id"], ["brainhands.sessions.id"], name=op.f("approvals_session_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("approvals_pkey")),
        schema="brainhands",
    )
    op.create_index(
        "approvals_open_idx",
        "approvals",
        ["session_id", "asked_at"],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("answer = 'pending'"),
    )
    op.create_index(op.f("approvals_session_id_idx"), "approvals", ["session_id"], unique=False, schema="brainhands")
    op.create_index(op.f("approvals_task_id_idx"), "approvals", ["task_id"], unique=False, schema="brainhands")
    op.create_table(
        "conversations",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("owner_id", sa.Uuid(), nullable=True),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("agent_version", sa.Integer(), nullable=True),
        sa.Column("continues", sa.Uuid(), nullable=True),
        sa.ForeignKeyConstraint(["session_id"], ["brainhands.sessions.id"], name=op.f("conversations_session_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("conversations_pkey")),
        schema="brainhands",
    )
    op.create_index(
        op.f("conversations_session_id_idx"), "conversations", ["session_id"], unique=False, schema="brainhands"
    )
    op.create_table(
        "documents",
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.Column("value", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("delta", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.CheckConstraint("(value IS NULL) = (delta IS NOT NULL)", name=op.f("documents_whole_or_delta_check")),
        sa.CheckConstraint("delta IS NULL OR version > 1", name=op.f("documents_first_is_whole_check")),
        sa.CheckConstraint("version > 0", name=op.f("documents_version_check")),
        sa.ForeignKeyConstraint(["session_id"], ["brainhands.sessions.id"], name=op.f("documents_session_id_fkey")),
        sa.PrimaryKeyConstraint("session_id", "name", "version", name=op.f("documents_pkey")),
        schema="brainhands",
    )
    op.create_index(
        op.f("documents_session_id_name_seq_idx"),
        "documents",
        ["session_id", "name", "seq"],
        unique=False,
        schema="brainhands",
    )
    op.create_table(
        "events",
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("version", sa.SmallInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("causes", sa.ARRAY(sa.Integer()), nullable=False),
        sa.Column("payload", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column("conversation_id", sa.Uuid(), nullable=True),
        sa.Column("task_id", sa.Uuid(), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=True),
        sa.Column("worker_id", sa.Uuid(), nullable=True),
        sa.Column("pool", sa.Text(), nullable=True),
        sa.Column("environment", sa.Text(), nullable=True),
        sa.Column("tokens_in", sa.Integer(), nullable=True),
        sa.Column("tokens_out", sa.Integer(), nullable=True),
        sa.Column("salt", sa.LargeBinary(), nullable=False),
        sa.Column("payload_digest", sa.LargeBinary(), nullable=False),
        sa.Column("prev_hash", sa.LargeBinary(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("redacted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("commit_seq", sa.Integer(), nullable=True),
        sa.CheckConstraint(
            "causes = '{}' OR (0 < ALL (causes) AND seq > ALL (causes))", name=op.f("events_causes_are_earlier_check")
        ),
        sa.CheckConstraint(
            "octet_length(hash) = 32 AND octet_length(prev_hash) = 32", name=op.f("events_hashes_check")
        ),
        sa.CheckConstraint("seq > 0", name=op.f("events_seq_check")),
        sa.ForeignKeyConstraint(["session_id"], ["brainhands.sessions.id"], name=op.f("events_session_id_fkey")),
        sa.PrimaryKeyConstraint("session_id", "seq", name=op.f("events_pkey")),
        schema="brainhands",
    )
    op.create_index(
        "events_context_start_idx",
        "events",
        ["session_id", "conversation_id", "type", "seq"],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("type IN ('system_prompt_set', 'context_compacted')"),
    )
    op.create_index(
        op.f("events_session_id_conversation_id_seq_idx"),
        "events",
        ["session_id", "conversation_id", "seq"],
        unique=False,
        schema="brainhands",
    )
    op.create_index(
        "events_by_type_idx",
        "events",
        ["session_id", "type", "seq"],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("type IN ('submission_done', 'session_resumed', 'events_redacted', 'session_erased')"),
    )
    op.create_index(
        "events_at_idx",
        "events",
        ["at"],
        unique=False,
        schema="brainhands",
        postgresql_using="brin",
        postgresql_with={"autosummarize": "true"},
    )
    op.create_index(
        "events_model_errors_idx",
        "events",
        ["at"],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("type = 'model_error'"),
    )
    op.create_table(
        "signals",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("payload", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column("request_digest", sa.LargeBinary(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("taken_by", sa.Uuid(), nullable=True),
        sa.ForeignKeyConstraint(["session_id"], ["brainhands.sessions.id"], name=op.f("signals_session_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("signals_pkey")),
        sa.UniqueConstraint("request_digest", name=op.f("signals_request_digest_key")),
        schema="brainhands",
    )
    op.create_index(op.f("signals_session_id_idx"), "signals", ["session_id"], unique=False, schema="brainhands")
    op.create_index(
        "signals_waiting_idx",
        "signals",
        ["session_id", "name", "key"],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("taken_by IS NULL"),
    )
    op.create_table(
        "submissions",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("request_digest", sa.LargeBinary(), nullable=False),
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("conversation_id", sa.Uuid(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("input_digest", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("output", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("done_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("tokens_in", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("tokens_out", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("cost", sa.Numeric(), server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint(
            "(status = 'done') = (outcome IS NOT NULL) AND (status = 'done') = (done_at IS NOT NULL)",
            name=op.f("submissions_outcome_when_done_check"),
        ),
        sa.CheckConstraint("status IN ('accepted', 'running', 'done')", name=op.f("submissions_status_check")),
        sa.ForeignKeyConstraint(
            ["conversation_id"], ["brainhands.conversations.id"], name=op.f("submissions_conversation_id_fkey")
        ),
        sa.ForeignKeyConstraint(["session_id"], ["brainhands.sessions.id"], name=op.f("submissions_session_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("submissions_pkey")),
        sa.UniqueConstraint("request_digest", name=op.f("submissions_request_digest_key")),
        schema="brainhands",
    )
    op.create_index(
        op.f("submissions_session_id_idx"), "submissions", ["session_id"], unique=False, schema="brainhands"
    )
    op.create_table(
        "tasks",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("conversation_id", sa.Uuid(), nullable=True),
        sa.Column("owner_id", sa.Uuid(), nullable=True),
        sa.Column("submission_id", sa.Uuid(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("requires_name", sa.Text(), nullable=False),
        sa.Column("requires_version", sa.Integer(), nullable=True),
        sa.Column("input", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column("cause", sa.Integer(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("checkpoint", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column("result", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("phase_attempts", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.Uuid(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("deadline", sa.DateTime(timezone=True), nullable=True),
        sa.Column("wake_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("signal_name", sa.Text(), nullable=True),
        sa.Column("signal_key", sa.Text(), nullable=True),
        sa.Column("blocked", sa.Text(), nullable=True),
        sa.Column("refused_by", sa.ARRAY(sa.Text()), nullable=True),
        sa.Column("cancel_wanted", sa.Boolean(), nullable=False),
        sa.Column("holds_slots", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "(signal_name IS NULL) = (signal_key IS NULL) AND (signal_name IS NULL OR status = 'waiting')",
            name=op.f("tasks_signal_when_waiting_check"),
        ),
        sa.CheckConstraint(
            "(status = 'sleeping' OR (status = 'waiting' AND signal_name IS NOT NULL)) = (wake_at IS NOT NULL)",
            name=op.f("tasks_wake_when_sleeping_check"),
        ),
        sa.CheckConstraint(
            "(status IN ('completing', 'done')) = (outcome IS NOT NULL)", name=op.f("tasks_outcome_when_decided_check")
        ),
        sa.CheckConstraint(
            "CASE WHEN status = 'running' THEN worker_id IS NOT NULL AND lease_until IS NOT NULL AND deadline IS NOT NULL AND lease_until <= deadline AND fence > 0 ELSE worker_id IS NULL AND lease_until IS NULL AND deadline IS NULL END",
            name=op.f("tasks_lease_when_running_check"),
        ),
        sa.CheckConstraint(
            "NOT cancel_wanted OR status IN ('running', 'completing', 'done')",
            name=op.f("tasks_cancel_when_running_check"),
        ),
        sa.CheckConstraint("blocked IS NULL OR status = 'pending'", name=op.f("tasks_blocked_when_pending_check")),
        sa.CheckConstraint(
            "outcome IS NULL OR outcome IN ('succeeded', 'failed', 'cancelled', 'interrupted')",
            name=op.f("tasks_outcome_check"),
        ),
        sa.CheckConstraint(
            "status IN ('pending', 'running', 'waiting', 'sleeping', 'completing', 'done')",
            name=op.f("tasks_status_check"),
        ),
        sa.CheckConstraint("fence >= 0 AND step >= 0 AND phase_attempts >= 0", name=op.f("tasks_counters_check")),
        sa.CheckConstraint("owner_id IS NULL OR owner_id <> id", name=op.f("tasks_owner_check")),
        sa.ForeignKeyConstraint(
            ["conversation_id"], ["brainhands.conversations.id"], name=op.f("tasks_conversation_id_fkey")
        ),
        sa.ForeignKeyConstraint(["session_id"], ["brainhands.sessions.id"], name=op.f("tasks_session_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("tasks_pkey")),
        schema="brainhands",
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index(
        "tasks_blocked_idx",
        "tasks",
        ["requires_name"],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("blocked IS NOT NULL"),
    )
    op.create_index(
        "tasks_blocked_why_idx",
        "tasks",
        ["blocked"],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("blocked IS NOT NULL"),
    )
    op.create_index(
        "tasks_one_generation_idx",
        "tasks",
        ["conversation_id"],
        unique=True,
        schema="brainhands",
        postgresql_where=sa.text("kind = 'generation' AND status <> 'done'"),
    )
    op.create_index(
        "tasks_open_idx",
        "tasks",
        ["session_id"],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("status <> 'done'"),
    )
    op.create_index(
        "tasks_open_by_owner_idx",
        "tasks",
        ["owner_id"],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("status <> 'done'"),
    )
    op.create_index(
        "tasks_owned_generations_idx",
        "tasks",
        ["owner_id", "cause"],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("kind = 'generation' AND owner_id IS NOT NULL"),
    )
    op.create_index(
        "tasks_refused_idx",
        "tasks",
        ["id"],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("refused_by IS NOT NULL AND status <> 'done'"),
    )
    op.create_index(
        "tasks_running_idx",
        "tasks",
        ["id"],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("status = 'running'"),
    )
    op.create_index(op.f("tasks_session_id_idx"), "tasks", ["session_id"], unique=False, schema="brainhands")
    op.create_index(
        "tasks_signal_idx",
        "tasks",
        ["session_id", "signal_name", "signal_key"],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("signal_name IS NOT NULL"),
    )
    op.create_index(
        "tasks_unfinished_idx",
        "tasks",
        ["status", "id"],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("status <> 'done'"),
    )
    op.create_index(
        "tasks_unknown_idx",
        "tasks",
        ["session_id", "kind"],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("outcome = 'interrupted'"),
    )
    op.create_index(
        "tasks_wake_at_idx",
        "tasks",
        ["wake_at"],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("wake_at IS NOT NULL"),
    )
    op.create_table(
        "inbox",
        sa.Column("position", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("conversation_id", sa.Uuid(), nullable=False),
        sa.Column("submission_id", sa.Uuid(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.CheckConstraint("mode IN ('follow_up', 'steer')", name=op.f("inbox_mode_check")),
        sa.ForeignKeyConstraint(
            ["conversation_id"], ["brainhands.conversations.id"], name=op.f("inbox_conversation_id_fkey")
        ),
        sa.ForeignKeyConstraint(["session_id"], ["brainhands.sessions.id"], name=op.f("inbox_session_id_fkey")),
        sa.ForeignKeyConstraint(
            ["submission_id"], ["brainhands.submissions.id"], name=op.f("inbox_submission_id_fkey")
        ),
        sa.PrimaryKeyConstraint("position", name=op.f("inbox_pkey")),
        sa.UniqueConstraint("submission_id", name=op.f("inbox_submission_id_key")),
        schema="brainhands",
    )
    op.create_index(
        op.f("inbox_conversation_id_position_idx"),
        "inbox",
        ["conversation_id", "position"],
        unique=False,
        schema="brainhands",
    )
    op.create_index(op.f("inbox_session_id_idx"), "inbox", ["session_id"], unique=False, schema="brainhands")
    op.create_table(
        "waits",
        sa.Column("waiter_id", sa.Uuid(), nullable=False),
        sa.Column("dependency_id", sa.Uuid(), nullable=False),
        sa.Column("fail_fast", sa.Boolean(), nullable=False),
        sa.CheckConstraint("waiter_id <> dependency_id", name=op.f("waits_itself_check")),
        sa.ForeignKeyConstraint(["dependency_id"], ["brainhands.tasks.id"], name=op.f("waits_dependency_id_fkey")),
        sa.ForeignKeyConstraint(["waiter_id"], ["brainhands.tasks.id"], name=op.f("waits_waiter_id_fkey")),
        sa.PrimaryKeyConstraint("waiter_id", "dependency_id", name=op.f("waits_pkey")),
        schema="brainhands",
    )
    op.create_index(op.f("waits_dependency_id_idx"), "waits", ["dependency_id"], unique=False, schema="brainhands")
    op.execute("INSERT INTO brainhands.compatibility (oldest_code) VALUES ('r0001')")
