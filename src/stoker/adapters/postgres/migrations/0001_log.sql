-- The event log: one row per fact, never changed, removed only from the front once snapshots cover it.
-- `crc` covers position, epoch and record, so a row that was moved, swapped or altered is noticed when it is read.
CREATE TABLE stoker_event (
    position bigint PRIMARY KEY,
    epoch    bigint NOT NULL,
    crc      bigint NOT NULL,
    record   bytea  NOT NULL
);
-- Where the log ends. Each append moves it, if it is still where the writer believes; `append` names the newest one,
-- so that a writer which lost its connection finds out whether its commit was done.
CREATE TABLE stoker_end (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch    bigint NOT NULL,
    position bigint NOT NULL,
    append   text   NOT NULL
);
INSERT INTO stoker_end (epoch, position, append) VALUES (0, 0, '');
CREATE TABLE stoker_snapshot (
    position bigint  PRIMARY KEY,
    chunks   integer NOT NULL,
    crc      bigint  NOT NULL
);
CREATE TABLE stoker_snapshot_chunk (
    position bigint  NOT NULL REFERENCES stoker_snapshot ON DELETE CASCADE,
    number   integer NOT NULL,
    chunk    bytea   NOT NULL,
    PRIMARY KEY (position, number)
);
