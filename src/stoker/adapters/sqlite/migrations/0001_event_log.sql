-- The event log: one row per fact, never changed, removed only from the front once snapshots cover it.
-- `crc` covers position, epoch and record, so a row that was moved, swapped or altered is noticed when it is read.
PRAGMA application_id = 0x53544b52; -- 'STKR'
CREATE TABLE event (
    position INTEGER PRIMARY KEY,
    epoch    INTEGER NOT NULL,
    crc      INTEGER NOT NULL,
    record   BLOB    NOT NULL
);
