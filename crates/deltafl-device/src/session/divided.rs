//! A round whose cohort is divided among tracks (`tracks = "apart"`).
//!
//! Each device draws its track in secret. A server that knew the tracks could ask a cohort in which
//! one device serves a track, and the sum of that track would be the answer of this device. The
//! device therefore refuses a question for reasons that do not depend on its track:
//!
//! - The first question about a track fixes the w of that track for the round, whether or not the
//!   device serves it.
//! - The active devices of later sums are a subset of those of earlier sums. The difference of two
//!   sums then reveals only the tracks of devices that have left the round.
//! - A device that does not remember the earlier questions of the round does not continue it.
//!
//! [`Consent`](crate::Consent) checks in addition that a question asks all tracks for updates.

use std::collections::BTreeMap;

use deltafl::params::ParamsId;
use deltafl::question::Question;
use deltafl_secagg::message::DeviceSet;

use crate::state::AnswerRefused;

/// The questions so far of a round whose cohort is divided among tracks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DividedRound {
    /// The run and t.
    round: (u64, u64),
    /// The roster that numbers the devices.
    roster: blake3::Hash,
    /// The hash of w of each track.
    params: BTreeMap<u32, blake3::Hash>,
    /// The active devices of the last sum.
    active: DeviceSet,
}

impl DividedRound {
    /// Returns the round after one more question, among these active devices. `before` is the last
    /// divided round, and `has_answered` states whether the device has answered in this round.
    pub(super) fn after(
        before: Option<&Self>,
        has_answered: bool,
        question: &Question<ParamsId>,
        roster: blake3::Hash,
        active: &DeviceSet,
    ) -> Result<Self, AnswerRefused> {
        let (run, round) = (question.key.run, question.key.round);
        let before = before.filter(|before| before.round == (run, round));
        let mut params = match before {
            Some(before) if before.roster != roster || active.first_outside(&before.active).is_some() => {
                return Err(AnswerRefused::OtherMembers(round));
            }
            Some(before) => before.params.clone(),
            None if has_answered => return Err(AnswerRefused::Forgotten(round)),
            None => BTreeMap::new(),
        };
        for query in &question.queries {
            let hash = query.params.hash;
            if *params.entry(query.track).or_insert(hash) != hash {
                return Err(AnswerRefused::OtherParams(round));
            }
        }
        Ok(Self { round: (run, round), roster, params, active: active.clone() })
    }
}

#[cfg(test)]
mod tests {
    use deltafl::evaluation::Measure;
    use deltafl::question::{Ask, Query, RoundKey};
    use deltafl::terms::{Terms, TrackSchedule};
    use deltafl_secagg::identity::DeviceId;

    use super::*;

    /// A question of a round about tracks, each with its w.
    fn question(round: u64, tracks: &[(u32, u8)]) -> Question<ParamsId> {
        let terms = Terms { schedule: TrackSchedule::Apart, tracks: 3, ..Terms::PRIVATE };
        let query = |&(track, w): &(u32, u8)| {
            let params = ParamsId { hash: blake3::hash(&[w]), len: 10 };
            Query::new(params, Ask::Evaluation(vec![Measure::Loss])).of_track(track as usize)
        };
        let key = RoundKey { run: 0, seed: 1, round, members: 40, terms };
        Question { key, queries: tracks.iter().map(query).collect() }
    }

    fn devices(ids: impl IntoIterator<Item = u32>) -> DeviceSet {
        ids.into_iter().map(DeviceId).collect()
    }

    #[test]
    fn a_divided_round_stays_at_the_params_of_all_tracks_among_fewer_and_fewer_devices() {
        let roster = blake3::hash(b"roster");
        let first = DividedRound::after(None, false, &question(4, &[(0, 1)]), roster, &devices(0..40));
        let first = first.unwrap();
        let after = |tracks: &[(u32, u8)], active: DeviceSet| {
            DividedRound::after(Some(&first), true, &question(4, tracks), roster, &active)
        };
        let second = after(&[(0, 1), (2, 7)], devices(1..40)).unwrap();
        assert_eq!(after(&[(0, 2)], devices(0..40)), Err(AnswerRefused::OtherParams(4)), "for any device");
        assert_eq!(after(&[(0, 1)], devices(0..41)), Err(AnswerRefused::OtherMembers(4)));
        let next =
            |active| DividedRound::after(Some(&second), true, &question(4, &[(2, 7)]), roster, &active);
        assert_eq!(next(devices([0, 2, 3])), Err(AnswerRefused::OtherMembers(4)), "device 0 has left");
        assert!(next(devices(2..40)).is_ok());
        let other = question(4, &[(2, 8)]);
        let other = DividedRound::after(Some(&second), true, &other, roster, &devices(2..40));
        assert_eq!(other, Err(AnswerRefused::OtherParams(4)));
    }

    #[test]
    fn a_divided_round_that_the_device_has_forgotten_is_not_continued() {
        let (roster, all) = (blake3::hash(b"roster"), devices(0..40));
        let asked = |before, has_answered, round, roster| {
            DividedRound::after(before, has_answered, &question(round, &[(0, 1)]), roster, &all)
        };
        assert_eq!(asked(None, true, 4, roster), Err(AnswerRefused::Forgotten(4)), "after a restart");
        let first = asked(None, false, 4, roster).unwrap();
        let second = asked(Some(&first), false, 5, roster).unwrap();
        assert_eq!(asked(Some(&second), true, 4, roster), Err(AnswerRefused::Forgotten(4)));
        let numbers = blake3::hash(b"other numbers");
        assert_eq!(asked(Some(&second), true, 5, numbers), Err(AnswerRefused::OtherMembers(5)));
        assert!(asked(Some(&second), true, 5, roster).is_ok());
    }
}
