"""A document's version may be stored as a change of the one before; versions are found by their commit."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("documents", sa.Column("delta", postgresql.JSON(astext_type=sa.Text())), schema="brainhands")
    # Who knows nothing of deltas goes on writing whole values.
    op.alter_column("documents", "value", nullable=True, schema="brainhands")
    op.create_check_constraint(
        op.f("documents_whole_or_delta_check"),
        "documents",
        "(value IS NULL) = (delta IS NOT NULL)",
        schema="brainhands",
    )
    op.create_check_constraint(
        op.f("documents_first_is_whole_check"), "documents", "delta IS NULL OR version > 1", schema="brainhands"
    )
    op.create_index(
        op.f("documents_session_id_name_seq_idx"),
        "documents",
        ["session_id", "name", "seq"],
        schema="brainhands",
    )
