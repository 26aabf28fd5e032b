-- What a federation draws its cohorts by: the secret of a chain of hashes, in hexadecimal.
CREATE TABLE draws (
    federation TEXT PRIMARY KEY REFERENCES federations (name),
    secret TEXT NOT NULL
);
