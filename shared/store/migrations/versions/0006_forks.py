"""Sessions that go on from an event of another session, and where each commit ends in a log."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Events that are there already have no commit_seq; those of one commit have one time, which tells as much.
    op.add_column("events", sa.Column("commit_seq", sa.Integer(), nullable=True), schema="brainhands")
    op.add_column("conversations", sa.Column("continues", sa.Uuid(), nullable=True), schema="brainhands")
    op.add_column("sessions", sa.Column("forked_from", sa.Uuid(), nullable=True), schema="brainhands")
    op.add_column("sessions", sa.Column("forked_at", sa.Integer(), nullable=True), schema="brainhands")
    op.add_column("sessions", sa.Column("fork_request", sa.LargeBinary(), nullable=True), schema="brainhands")
    op.create_foreign_key(
        op.f("sessions_forked_from_fkey"),
        "sessions",
        "sessions",
        ["forked_from"],
        ["id"],
        source_schema="brainhands",
        referent_schema="brainhands",
    )
    op.create_check_constraint(
        op.f("sessions_fork_check"),
        "sessions",
        "(forked_from IS NULL) = (forked_at IS NULL) AND last_seq > forked_at",
        schema="brainhands",
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
        "sessions_fork_request_idx",
        "sessions",
        ["fork_request"],
        unique=True,
        schema="brainhands",
        postgresql_where=sa.text("fork_request IS NOT NULL"),
    )
