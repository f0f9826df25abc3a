-- The audit trail: who told the cluster what, and what came of it. `id` is position * 2^24 + number, so that rows ascend
-- as they do by time and a position can be told from it; `principal` is who, `jobs` how many.

CREATE TABLE audit (
    id        INTEGER PRIMARY KEY,
    at_ms     INTEGER NOT NULL,
    principal TEXT    NOT NULL,
    action    TEXT    NOT NULL,
    outcome   TEXT    NOT NULL, -- 'ok', 'unchanged', or the code of a refusal
    job       INTEGER NOT NULL, -- of a member its array; 0 = none
    last_job  INTEGER NOT NULL, -- of several that were submitted together; else 0
    member    INTEGER NOT NULL, -- index of the one member; -1 = of several, or of none
    members   TEXT    NOT NULL, -- such as 0-4,9; empty = the whole of it
    jobs      INTEGER NOT NULL,
    tenant    TEXT    NOT NULL,
    target    TEXT    NOT NULL,
    details   TEXT    NOT NULL,
    times     INTEGER NOT NULL
);
CREATE INDEX audit_at ON audit (at_ms);
CREATE INDEX audit_principal ON audit (principal, id);
CREATE INDEX audit_job ON audit (job, member) WHERE job > 0;
CREATE INDEX audit_together ON audit (job) WHERE last_job > 0;
CREATE INDEX audit_factless ON audit (id) WHERE outcome <> 'ok';
