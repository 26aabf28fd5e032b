-- The roster as the authority signed it, for servers that do not hold its key: base64, hexadecimal.
CREATE TABLE rosters (
    federation TEXT PRIMARY KEY REFERENCES federations (name),
    version BIGINT NOT NULL,
    bytes TEXT NOT NULL,
    signature TEXT NOT NULL
);
