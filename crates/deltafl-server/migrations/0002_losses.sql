-- How the losses of a round's cohort lay at the params that `round` rounds had led to, as JSON.
CREATE TABLE losses (
    federation TEXT NOT NULL REFERENCES federations (name),
    seed TEXT NOT NULL,
    track BIGINT NOT NULL,
    round BIGINT NOT NULL,
    distribution TEXT NOT NULL,
    PRIMARY KEY (federation, seed, track, round)
);
