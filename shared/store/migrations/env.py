"""Alembic's entry: migrations run on the connection that brainhands.shared.store.migrate hands over."""

from alembic import context

from brainhands.shared.store.tables import SCHEMA, metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    version_table_schema=SCHEMA,
    include_schemas=True,
    transaction_per_migration=True,
    include_name=lambda name, kind, _: kind != "schema" or name == SCHEMA,
)
with context.begin_transaction():
    context.run_migrations()
