"""Dagster's SQLite storage with connections that stay open.

Dagster opens an engine and a connection for every event and closes both behind it, and the close of a database's last connection
writes its whole log back. A step of an asset makes some twenty events, so that this takes most of a short step's time:
`benchmarks/executor` shows both side by side. Schema, files and everything else are Dagster's: either storage reads what the other wrote.
"""

import fcntl
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dagster._core.event_api import EventHandlerFn
from dagster._core.storage.event_log import SqliteEventLogStorage
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorageWatchdog
from dagster._core.storage.sqlite import SQLITE_BUSY_TIMEOUT_SECONDS
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage
from dagster._serdes import ConfigurableClassData
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import QueuePool
from watchdog.events import FileSystemEvent
from watchdog.observers import Observer

OPEN_DATABASES = 16
"""A run has a database of its own: a webserver that shows old runs keeps no more of them open than this."""


class LabStorage(DagsterSqliteStorage):
    """For `storage.custom` of a `dagster.yaml`: `DagsterSqliteStorage` with the event log below; same folders, same `base_dir`."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        with _one_process_at_a_time(Path(base_dir)):
            super().__init__(base_dir, inst_data)
        # Dagster's constructor names its own class; that one holds nothing open.
        self._event_log_storage = LabEventLogStorage(self._event_log_storage._base_dir)

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]) -> "LabStorage":
        return cls.from_local(inst_data=inst_data, **config_value)


class LabEventLogStorage(SqliteEventLogStorage):
    """`SqliteEventLogStorage` that reuses one connection for each database, which its lock lets one thread use at a time."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        self._engines: OrderedDict[str, Engine] = OrderedDict()
        super().__init__(base_dir, inst_data)

    @contextmanager
    def _connect(self, shard: str) -> Iterator[Connection]:
        with self._db_lock:
            engine = self._engine(shard)
            if shard not in self._initialized_dbs:
                self._initdb(engine)
                self._initialized_dbs.add(shard)
            with engine.connect() as connection, connection.begin():
                yield connection

    def _engine(self, shard: str) -> Engine:
        if shard not in self._engines:
            self._engines[shard] = engine = create_engine(
                self.conn_string_for_shard(shard),
                poolclass=QueuePool,
                pool_size=1,
                connect_args={"timeout": SQLITE_BUSY_TIMEOUT_SECONDS, "check_same_thread": False},
            )
            event.listen(engine, "connect", _sync_at_checkpoints)
        self._engines.move_to_end(shard)
        while len(self._engines) > OPEN_DATABASES:
            _, oldest = self._engines.popitem(last=False)
            oldest.dispose()
        return self._engines[shard]

    def watch(self, run_id: str, cursor: str | None, callback: EventHandlerFn) -> None:
        """As Dagster's, but a database that stays open grows by its write-ahead log, so that is watched too."""
        observer: Any = self._obs
        if observer is None:
            observer = self._obs = Observer()  # type: ignore[assignment]
            observer.start()
        watchdog = _Watchdog(self, run_id, callback, cursor)
        self._watchers[run_id][callback] = (watchdog, observer.schedule(watchdog, self._base_dir, recursive=True))

    def wipe(self) -> None:
        self._close()
        super().wipe()

    def dispose(self) -> None:
        self._close()
        super().dispose()

    def _close(self) -> None:
        with self._db_lock:
            while self._engines:
                self._engines.popitem()[1].dispose()


@contextmanager
def _one_process_at_a_time(folder: Path) -> Iterator[None]:
    """Of two processes that make the tables of runs at once one dies in Dagster ("table runs already exists")."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "setup.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Watchdog(SqliteEventLogStorageWatchdog):
    def __init__(self, storage: LabEventLogStorage, run_id: str, callback: EventHandlerFn, cursor: str | None) -> None:
        super().__init__(storage, run_id, callback, cursor)
        self._patterns = [self._log_path, f"{self._log_path}-wal"]

    def on_modified(self, event: FileSystemEvent) -> None:
        self._process_log()


def _sync_at_checkpoints(connection: Any, _: Any) -> None:
    """A killed process loses nothing. A power cut may cost the last events, never the database; artifacts have records of their own."""
    connection.execute("PRAGMA synchronous=NORMAL")
