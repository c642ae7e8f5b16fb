"""When content was redacted or erased."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("events", sa.Column("redacted_at", sa.DateTime(timezone=True)), schema="brainhands")
    op.add_column("sessions", sa.Column("erased_at", sa.DateTime(timezone=True)), schema="brainhands")


def downgrade() -> None:
    op.drop_column("sessions", "erased_at", schema="brainhands")
    op.drop_column("events", "redacted_at", schema="brainhands")
