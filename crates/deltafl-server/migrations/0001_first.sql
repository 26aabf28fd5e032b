-- Times are milliseconds since 1970 by the database's clock; keys, hashes and seeds are text, so that one schema serves
-- SQLite and Postgres.
CREATE TABLE federations (
    name TEXT PRIMARY KEY,
    experiment TEXT,
    roster_version BIGINT NOT NULL,
    created_at BIGINT NOT NULL
);

CREATE TABLE devices (
    federation TEXT NOT NULL REFERENCES federations (name),
    number BIGINT NOT NULL,
    name TEXT NOT NULL,
    signing_key TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    enrolled_at BIGINT NOT NULL,
    revoked_at BIGINT,
    PRIMARY KEY (federation, number),
    UNIQUE (federation, name),
    UNIQUE (fingerprint)
);

CREATE TABLE tokens (
    hash TEXT PRIMARY KEY,
    federation TEXT NOT NULL REFERENCES federations (name),
    uses_left BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);

-- Who leads; the fence grows with each new leader and never falls.
CREATE TABLE leases (
    federation TEXT PRIMARY KEY REFERENCES federations (name),
    holder TEXT NOT NULL,
    fence BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);

CREATE TABLE rounds (
    federation TEXT NOT NULL REFERENCES federations (name),
    seed TEXT NOT NULL,
    round BIGINT NOT NULL,
    lines TEXT NOT NULL,
    timeline TEXT,
    fence BIGINT NOT NULL,
    committed_at BIGINT NOT NULL,
    PRIMARY KEY (federation, seed, round)
);

-- A state from which training goes on: the last one of a seed.
CREATE TABLE states (
    federation TEXT NOT NULL REFERENCES federations (name),
    seed TEXT NOT NULL,
    round BIGINT NOT NULL,
    sha256 TEXT NOT NULL,
    PRIMARY KEY (federation, seed)
);

-- The params of each track after a committed round; those published stay.
CREATE TABLE models (
    federation TEXT NOT NULL REFERENCES federations (name),
    seed TEXT NOT NULL,
    round BIGINT NOT NULL,
    track BIGINT NOT NULL,
    about TEXT NOT NULL,
    blob TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    published BIGINT NOT NULL,
    PRIMARY KEY (federation, seed, round, track)
);

CREATE INDEX models_by_blob ON models (blob);
