"""Owned generations: a call of an agent finds the newest generation of the conversation that it owns."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "tasks_owned_generations_idx",
        "tasks",
        ["owner_id", "cause"],
        schema="brainhands",
        postgresql_where=sa.text("kind = 'generation' AND owner_id IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("tasks_owned_generations_idx", "tasks", schema="brainhands")
