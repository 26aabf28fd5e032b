//! The answers of a device under one authority, and the rules for the next one.

use std::collections::BTreeMap;

use super::note::{Name, Note, cut};
use super::{AnswerRefused, Claim, LedgerKey, SEARCH_STEPS, ServedTrack};

/// The answers of a device under one authority.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Book {
    /// The newest run.
    pub(super) run: u64,
    /// The first round of the run that is open.
    pub(super) open: u64,
    /// The answered rounds of the run.
    pub(super) rounds: BTreeMap<u64, RoundAnswers>,
}

/// The answers of a device in one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RoundAnswers {
    pub(super) divided_among: u32,
    pub(super) track: u32,
    pub(super) params: Option<Name>,
    pub(super) search_steps: u32,
    pub(super) updated: bool,
    pub(super) evaluated: bool,
}

impl Book {
    /// Returns the book after these claims.
    pub(super) fn with(
        &self,
        key: &LedgerKey,
        served: ServedTrack,
        claims: &[Claim],
    ) -> Result<Self, AnswerRefused> {
        let LedgerKey { run, round, rounds_between: between, .. } = *key;
        if run < self.run {
            return Err(AnswerRefused::OldRun { run, newest: self.run });
        }
        let mut book = self.clone();
        if run > self.run {
            // The rounds between the last answer of the previous run and the first of this one
            // belong to this one.
            let open = if self.rounds.is_empty() { 0 } else { between };
            book = Self { run, open, rounds: BTreeMap::new() };
        }
        if round < book.open {
            return Err(AnswerRefused::Closed { round, open: book.open });
        }
        let near = round.saturating_sub(between)..=round.saturating_add(between);
        if let Some((&answered, _)) = book.rounds.range(near).find(|(other, _)| **other != round) {
            return Err(AnswerRefused::TooSoon { answered, between });
        }
        let answers = match book.rounds.get(&round) {
            Some(answers) => *answers,
            None => RoundAnswers {
                divided_among: served.divided_among,
                track: served.track,
                ..RoundAnswers::default()
            },
        };
        book.rounds.insert(round, answers.with(round, served, claims)?);
        Ok(book)
    }

    /// Returns the notes that describe this book.
    pub(super) fn notes(&self, authority: Name) -> impl Iterator<Item = Note> {
        let run = self.run;
        let answered = self.rounds.iter().map(move |(&round, &answers)| Note::Answers {
            authority,
            run,
            round,
            answers,
        });
        std::iter::once(Note::Open { authority, run, round: self.open }).chain(answered)
    }
}

impl RoundAnswers {
    /// Returns the number of answers.
    pub(super) fn count(&self) -> u64 {
        u64::from(self.search_steps) + u64::from(self.updated) + u64::from(self.evaluated)
    }

    /// Returns the answers after these claims.
    pub(super) fn with(
        mut self,
        round: u64,
        served: ServedTrack,
        claims: &[Claim],
    ) -> Result<Self, AnswerRefused> {
        if (self.divided_among, self.track) != (served.divided_among, served.track) {
            return Err(AnswerRefused::OtherTrack(round));
        }
        if let Some(params) = served.params.as_ref().map(cut)
            && !claims.is_empty()
            && *self.params.get_or_insert(params) != params
        {
            return Err(AnswerRefused::OtherParams(round));
        }
        for claim in claims {
            match claim {
                Claim::Losses if self.updated || self.search_steps == SEARCH_STEPS => {
                    return Err(AnswerRefused::Losses(round));
                }
                Claim::Losses => self.search_steps += 1,
                Claim::Update if self.updated => return Err(AnswerRefused::Update(round)),
                Claim::Update => self.updated = true,
                Claim::Evaluation if self.evaluated => return Err(AnswerRefused::Evaluation(round)),
                Claim::Evaluation => self.evaluated = true,
            }
        }
        Ok(self)
    }
}
