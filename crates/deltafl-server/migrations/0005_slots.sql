-- The questions of the round under way, in order: of which cohort, who was asked, and the blob of the sums once they are
-- known. Devices are numbers on the roster, as JSON.
CREATE TABLE slots (
    federation TEXT NOT NULL REFERENCES federations (name),
    seed TEXT NOT NULL,
    round BIGINT NOT NULL,
    number BIGINT NOT NULL,
    question TEXT NOT NULL,
    cohort TEXT NOT NULL,
    asked TEXT NOT NULL,
    sums TEXT,
    PRIMARY KEY (federation, seed, round, number)
);
