-- The last number of a key set-up that a federation's servers may have used. Devices join each once.
CREATE TABLE setups (
    federation TEXT PRIMARY KEY REFERENCES federations (name),
    last BIGINT NOT NULL
);
