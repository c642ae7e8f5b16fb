"""What sessions and submissions used, as running totals, and an index to where a context begins."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TOTALS = ("tokens_in", "tokens_out")

# What was used before; nothing had a price then.
FILL_SESSIONS = """
UPDATE brainhands.sessions SET tokens_in = used.tokens_in, tokens_out = used.tokens_out
  FROM (SELECT session_id, coalesce(sum(tokens_in), 0) AS tokens_in, coalesce(sum(tokens_out), 0) AS tokens_out
          FROM brainhands.events WHERE tokens_in IS NOT NULL OR tokens_out IS NOT NULL
         GROUP BY session_id) AS used
 WHERE used.session_id = sessions.id
"""
FILL_SUBMISSIONS = """
UPDATE brainhands.submissions SET tokens_in = used.tokens_in, tokens_out = used.tokens_out
  FROM (SELECT submission_id, coalesce(sum(tokens_in), 0) AS tokens_in, coalesce(sum(tokens_out), 0) AS tokens_out
          FROM brainhands.events JOIN brainhands.tasks ON tasks.id = events.task_id
         WHERE (tokens_in IS NOT NULL OR tokens_out IS NOT NULL) AND submission_id IS NOT NULL
         GROUP BY submission_id) AS used
 WHERE used.submission_id = submissions.id
"""


def upgrade() -> None:
    for table in ("sessions", "submissions"):
        for name in TOTALS:
            column = sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False)
            op.add_column(table, column, schema="brainhands")
        cost = sa.Column("cost", sa.Numeric(), server_default=sa.text("0"), nullable=False)
        op.add_column(table, cost, schema="brainhands")
    op.create_index(
        "events_context_start_idx",
        "events",
        ["session_id", "conversation_id", "type", "seq"],
        unique=False,
        schema="brainhands",
        postgresql_where=sa.text("type IN ('system_prompt_set', 'context_compacted')"),
    )
    op.execute(FILL_SESSIONS)
    op.execute(FILL_SUBMISSIONS)
