"""Fair hints and limits: what waits by tenant and session, slots, and the priority of a submission."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

SCHEMA = "brainhands"


def upgrade() -> None:
    zero = sa.text("0")
    for table, column in (
        ("tasks", sa.Column("holds_slots", sa.Boolean(), server_default=sa.text("false"), nullable=False)),
        ("submissions", sa.Column("priority", sa.SmallInteger(), server_default=zero, nullable=False)),
        ("inbox", sa.Column("priority", sa.SmallInteger(), server_default=zero, nullable=False)),
        ("workers", sa.Column("tenant_concurrency", sa.Integer(), nullable=True)),
        ("outbox", sa.Column("awaits", postgresql.ARRAY(sa.Text()), nullable=True)),
    ):
        op.add_column(table, column, schema=SCHEMA)
    op.create_index(
        "outbox_waiting_idx",
        "outbox",
        [
            "requires_name",
            sa.text("coalesce(requires_version, 0)"),
            "priority",
            "tenant",
            "session_id",
            "not_before",
            "task_id",
        ],
        schema=SCHEMA,
        postgresql_where=sa.text("published_at IS NULL AND parked IS NULL"),
    )
    op.create_index(
        "outbox_published_idx",
        "outbox",
        ["published_at"],
        schema=SCHEMA,
        postgresql_where=sa.text("published_at IS NOT NULL"),
    )
    op.create_index(
        "outbox_awaits_idx",
        "outbox",
        ["not_before"],
        schema=SCHEMA,
        postgresql_where=sa.text("awaits IS NOT NULL"),
    )
    op.create_table(
        "slots",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=True),
        sa.Column("taken_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("number > 0", name=op.f("slots_number_check")),
        sa.CheckConstraint("(task_id IS NULL) = (taken_at IS NULL)", name=op.f("slots_taken_check")),
        sa.PrimaryKeyConstraint("name", "number", name=op.f("slots_pkey")),
        schema=SCHEMA,
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index(
        "slots_task_id_idx",
        "slots",
        ["task_id"],
        schema=SCHEMA,
        postgresql_where=sa.text("task_id IS NOT NULL"),
    )
