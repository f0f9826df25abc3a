-- The history, for lists and reports; filled from the log and never decided from. Every statement that reads or writes
-- these tables is portable; of this file two words are SQLite's (INTEGER for 64 bits, BLOB), and the PRAGMA.
-- `position` is that of the fact a row was made from: what came after it can be undone, or left out of a report.
PRAGMA application_id = 0x53544b48; -- 'STKH'

CREATE TABLE mark (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    cluster_id TEXT    NOT NULL,
    position   INTEGER NOT NULL
);

-- Jobs that ended; narrow, so that a filter which nothing helps reads little.
CREATE TABLE job (
    id           INTEGER PRIMARY KEY,
    array_id     INTEGER NOT NULL, -- of a member; 0 = none
    is_array     INTEGER NOT NULL,
    unborn       INTEGER NOT NULL, -- members of an array that never became records
    state        TEXT    NOT NULL,
    tenant       TEXT    NOT NULL,
    account      TEXT    NOT NULL,
    job_class    TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    submitted_ms INTEGER NOT NULL,
    ended_ms     INTEGER NOT NULL,
    position     INTEGER NOT NULL
);
CREATE INDEX job_ended ON job (ended_ms, id);
CREATE INDEX job_account ON job (account, id);
CREATE INDEX job_name ON job (name, id);
CREATE INDEX job_unborn ON job (id) WHERE unborn > 0;

-- The record as it was, in the JSON of the log.
CREATE TABLE job_record (
    id     INTEGER PRIMARY KEY,
    record BLOB    NOT NULL
);

CREATE TABLE attempt (
    job        INTEGER NOT NULL,
    number     INTEGER NOT NULL,
    outcome    TEXT    NOT NULL,
    exit_code  INTEGER,
    placed_ms  INTEGER NOT NULL,
    started_ms INTEGER NOT NULL, -- 0 = never
    ended_ms   INTEGER NOT NULL,
    tasks      INTEGER NOT NULL,
    gpus       INTEGER NOT NULL,
    position   INTEGER NOT NULL,
    PRIMARY KEY (job, number)
);
CREATE INDEX attempt_ended ON attempt (ended_ms);

-- What each task held. Tenant and account stand here too: it was charged to them, whatever becomes of the job.
CREATE TABLE allocation (
    job       INTEGER NOT NULL,
    attempt   INTEGER NOT NULL,
    task_rank INTEGER NOT NULL,
    array_id  INTEGER NOT NULL,
    tenant    TEXT    NOT NULL,
    account   TEXT    NOT NULL,
    node      TEXT    NOT NULL,
    gpu_uuids TEXT    NOT NULL, -- with commas between
    gpus      INTEGER NOT NULL,
    cpus      INTEGER NOT NULL,
    from_ms   INTEGER NOT NULL,
    to_ms     INTEGER NOT NULL,
    position  INTEGER NOT NULL,
    PRIMARY KEY (job, attempt, task_rank)
);
CREATE INDEX allocation_to ON allocation (to_ms);
CREATE INDEX allocation_node ON allocation (node, to_ms);

-- From `at_ms` on the node offered so many GPUs to new work.
CREATE TABLE capacity (
    node     TEXT    NOT NULL,
    at_ms    INTEGER NOT NULL,
    gpus     INTEGER NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (node, at_ms)
);
CREATE INDEX capacity_at ON capacity (at_ms);
