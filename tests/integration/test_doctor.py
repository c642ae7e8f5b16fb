from shared.store import reads, health
from shared.store.database import Database


def test_x(database_url: str) -> None:
    db = Database(database_url)
    print(reads.sessions_of(db, "default"))
    print(health.without_mover(db))
