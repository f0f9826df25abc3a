-- Who is the active control plane: the newest version of the marker, in one row. Each write takes the next version, if
-- the one before is still there; `mark` names the write, so that whoever lost its answer finds out whether it was done.
CREATE TABLE stoker_marker (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version bigint NOT NULL,
    mark    text   NOT NULL,
    record  bytea  NOT NULL
);
INSERT INTO stoker_marker (version, mark, record) VALUES (0, '', '');
