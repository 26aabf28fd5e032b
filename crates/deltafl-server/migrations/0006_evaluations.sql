-- What a cohort told of the examples that its devices hold out, at the params that `version` rounds had led to, as JSON.
CREATE TABLE evaluations (
    federation TEXT NOT NULL REFERENCES federations (name),
    seed TEXT NOT NULL,
    track BIGINT NOT NULL,
    version BIGINT NOT NULL,
    evaluation TEXT NOT NULL,
    PRIMARY KEY (federation, seed, track, version)
);
