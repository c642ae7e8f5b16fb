"""Which code may work on the schema, and who found a task unreadable."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "compatibility",
        sa.Column("single", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("oldest_code", sa.Text(), nullable=False),
        sa.CheckConstraint("single", name=op.f("compatibility_single_check")),
        sa.PrimaryKeyConstraint("single", name=op.f("compatibility_pkey")),
        schema="brainhands",
    )
    # Code of before this revision does not look here, and asks for its own revision exactly.
    op.execute("INSERT INTO brainhands.compatibility (oldest_code) VALUES ('0007')")
    op.add_column("tasks", sa.Column("refused_by", sa.ARRAY(sa.Text()), nullable=True), schema="brainhands")
    op.create_index(
        "tasks_refused_idx",
        "tasks",
        ["id"],
        schema="brainhands",
        postgresql_where=sa.text("refused_by IS NOT NULL AND status <> 'done'"),
    )
    op.add_column(
        "outbox",
        sa.Column("log_format", sa.Integer(), server_default=sa.text("1"), nullable=False),
        schema="brainhands",
    )
