"""When model calls failed lately, without a look at every event."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "events_model_errors_idx",
        "events",
        ["at"],
        schema="brainhands",
        postgresql_where=sa.text("type = 'model_error'"),
    )


def downgrade() -> None:
    op.drop_index("events_model_errors_idx", table_name="events", schema="brainhands")
