//! A server that finds out the tracks of devices, and asks one device of a track among devices of
//! other tracks.

use std::collections::BTreeMap;

use deltafl::question::{Ask, Query};
use deltafl::selection::Weighting;
use deltafl::superquantile::private::{Bins, QuantileQuery};
use deltafl::terms::{Terms, TrackSchedule};
use deltafl_device::{Consent, Defence, Defences};

use super::attack::{Asked, Attack, DEVICES, update};
use super::watchdog;

const TRACKS: u32 = 3;
/// The smallest cohort to which the owners agree.
const LEAST: u32 = 12;

const TERMS: Terms = Terms { schedule: TrackSchedule::Apart, tracks: TRACKS, ..Terms::PRIVATE };

/// Returns the number of devices of each track in a cohort without some devices.
async fn count_tracks(attack: &mut Attack, without: Vec<u32>) -> Option<Vec<u64>> {
    let bins = Bins::new(0.0, 8.0, 2).unwrap();
    let losses = Query::new(attack.model(), Ask::Quantile(QuantileQuery::Histogram(bins)));
    let queries = (0..TRACKS as usize).map(|track| losses.clone().of_track(track)).collect();
    let sums = attack.ask(Asked { terms: TERMS, without, ..Asked::new(0, queries) }).await?;
    attack.end_setup();
    Some(sums.iter().map(|sum| sum.values.iter().sum()).collect())
}

/// Compares the losses of the cohort with those of the cohort without one device, for one device
/// after another. Returns a device, its track and enough devices of other tracks.
async fn find_victim(attack: &mut Attack) -> Option<(u32, u32, Vec<u32>)> {
    let whole = count_tracks(attack, Vec::new()).await?;
    let mut tracks: BTreeMap<u32, u32> = BTreeMap::new();
    for device in 0..DEVICES {
        let rest = count_tracks(attack, vec![device]).await?;
        let track = (0..TRACKS).find(|&track| rest[track as usize] != whole[track as usize]).unwrap();
        tracks.insert(device, track);
        for (&victim, &track) in &tracks {
            let others: Vec<u32> =
                tracks.iter().filter(|(_, other)| **other != track).map(|(&device, _)| device).collect();
            if others.len() as u32 >= LEAST - 1 {
                return Some((victim, track, others));
            }
        }
    }
    unreachable!("most devices serve other tracks than any given one")
}

/// Returns the number of devices in the sum of the updates of the victim's track, and in the sum of
/// all updates.
async fn read_one_device_of_a_track(defences: Defences) -> Option<(u64, u64)> {
    let consent = Consent { min_cohort: LEAST as usize, ..Consent::default() };
    let mut attack = Attack::start_without(defences, consent).await;
    let read = match find_victim(&mut attack).await {
        Some((victim, track, others)) => {
            let without =
                (0..DEVICES).filter(|device| *device != victim && !others.contains(device)).collect();
            let updates = update(attack.model(), Weighting::everyone());
            let queries = (0..TRACKS as usize).map(|track| updates.clone().of_track(track)).collect();
            let sums = attack.ask(Asked { terms: TERMS, without, ..Asked::new(0, queries) }).await;
            sums.map(|sums| {
                let sum = &sums[track as usize];
                (sum.values[sum.values.len() - 2], sum.answered)
            })
        }
        None => None,
    };
    attack.stop().await;
    read
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_track_of_a_device_is_secret_until_its_update() {
    let _limit = watchdog::start();
    let undefended = Defences::default().without(Defence::SecretTrack);
    let (of_track, of_cohort) = read_one_device_of_a_track(undefended).await.unwrap();
    assert!(of_track == 1 && of_cohort >= u64::from(LEAST), "the update of one device is read");
    assert_eq!(read_one_device_of_a_track(Defences::default()).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_of_some_of_the_tracks_that_divide_a_cohort_are_not_given() {
    let _limit = watchdog::start();
    let mut attack = Attack::start_without(Defences::default(), Consent::default()).await;
    let updates = update(attack.model(), Weighting::everyone());
    let of = |tracks: &[usize]| tracks.iter().map(|&track| updates.clone().of_track(track)).collect();
    for (round, tracks) in [(0, &[0][..]), (0, &[1]), (0, &[1, 2]), (1, &[0, 1, 3])] {
        let asked = Asked { terms: TERMS, ..Asked::new(round, of(tracks)) };
        assert!(attack.ask(asked).await.is_none(), "{tracks:?}");
    }
    let asked = Asked { terms: TERMS, ..Asked::new(0, of(&[0, 1, 2])) };
    assert!(attack.ask(asked).await.is_some());
    attack.stop().await;
}
