-- What a log has beyond its records: which epochs it refuses, what stands before its oldest record (so that a log that
-- begins behind a snapshot knows where), and what the history beside it is yet to be put back to after a cut.
CREATE TABLE standing (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    promised   INTEGER NOT NULL,
    epoch      INTEGER NOT NULL,
    position   INTEGER NOT NULL,
    history_to INTEGER
);
INSERT INTO standing VALUES (1, 0, 0, 0, NULL);
